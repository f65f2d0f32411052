/* Copies in the way that suits this machine, by memcpy in most cases (see copy.c). */
#ifndef CXLEMU_COPY_H
#define CXLEMU_COPY_H

#include <stdint.h>

/* Copy between regions that do not overlap. */
void copy_bytes(void *to, const void *from, int64_t nbytes);

/* Copy into an array that no cache holds whole, from lines that another core may write again: neither is to stay in this
 * core's caches. The next lines_fence completes this. */
void copy_bytes_past(void *to, const void *from, int64_t nbytes);

/* Copy whole lines to two places, in one pass where this machine has AVX2 and `to` is aligned to its vectors. past:
 * then the copy at `to` bypasses the caches, for lines that are not read soon, and is in memory when this returns. */
void copy_lines_twice(void *to, void *too, const void *from, int64_t nbytes, int past);

/* Copy by vectors whatever the size, or by memcpy on a machine without AVX2: for tests. */
void copy_by_vectors(void *to, const void *from, int64_t nbytes);

#endif
