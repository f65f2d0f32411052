/* Bytes and strings that the C library's functions load and store, as steps where they lie in a pool. */
#ifndef CXLEMU_BYTES_H
#define CXLEMU_BYTES_H

#include <stddef.h>

/* Move bytes as memmove does; return `to`. */
void *moved(void *to, const void *from, size_t nbytes, const void *pc);

/* A string is read, at most `most` of its bytes. */
void look(const char *text, size_t most, const void *pc);

#endif
