/* Copies by ordinary stores: memcpy's, but where that crawls on this machine. */
#ifndef CXLEMU_COPY_H
#define CXLEMU_COPY_H

#include <stdint.h>

/* Return from how many bytes on an array that a call fills is stored past the caches. An argument above 0 sets that for the
 * whole process. */
#define PAST_CACHES_BYTES (4 << 20)
int64_t copy_past_caches_from(int64_t nbytes);

/* Copy between regions that do not overlap. */
void copy_bytes(void *to, const void *from, int64_t nbytes);

/* Copy whole lines to two places, in one pass where this machine has vectors and `to` begins one. past: there they are stored past
 * the caches, for nobody looks at them soon, and are there when this returns. */
void copy_lines_twice(void *to, void *too, const void *from, int64_t nbytes, int past);

/* Copy by vectors, of whatever size and on any machine that has them; otherwise by memcpy: for tests. */
void copy_by_vectors(void *to, const void *from, int64_t nbytes);

#endif
