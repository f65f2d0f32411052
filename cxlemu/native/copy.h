/* Copies by ordinary stores: memcpy's, but where that crawls on this machine. */
#ifndef CXLEMU_COPY_H
#define CXLEMU_COPY_H

#include <stdint.h>

/* The regions do not overlap. */
void copy_bytes(void *to, const void *from, int64_t nbytes);

/* The same by vectors, of whatever size and on any machine that has them; otherwise by memcpy: for tests. */
void copy_by_vectors(void *to, const void *from, int64_t nbytes);

#endif
