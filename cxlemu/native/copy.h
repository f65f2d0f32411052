/* Copies by ordinary stores, by memcpy except where it crawls on this machine (see copy.c). */
#ifndef CXLEMU_COPY_H
#define CXLEMU_COPY_H

#include <stdint.h>

/* Return from which size on, in bytes, an array that a call fills is stored past the caches. An argument above 0 sets
 * that size for the whole process. */
#define PAST_CACHES_BYTES (4 << 20)
int64_t copy_past_caches_from(int64_t nbytes);

/* Copy between regions that do not overlap. */
void copy_bytes(void *to, const void *from, int64_t nbytes);

/* Copy whole lines to two places, in one pass where this machine has AVX2 and `to` is aligned to its vectors. past:
 * then the copy at `to` bypasses the caches, for lines that are not read soon, and is in memory when this returns. */
void copy_lines_twice(void *to, void *too, const void *from, int64_t nbytes, int past);

/* Copy by vectors whatever the size, or by memcpy on a machine without AVX2: for tests. */
void copy_by_vectors(void *to, const void *from, int64_t nbytes);

#endif
