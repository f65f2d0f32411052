/* Arrays whose places doorbells tell: a SIGNAL carries where its rank's input and output lie, and a WAIT for it learns them. In the
 * heap a place is an offset in the rank's strip. It comes out of the pool, so it is compared with the strip before it is used. */
#ifndef CXLEMU_TOLD_H
#define CXLEMU_TOLD_H

#include "core.h"

#include <string.h>

enum { TOLD_BUFFERS = 2, IN_POOL = -1, NO_PLACE = -1 };

/* Of which array a region is a part: from `offset` on of the owner's input (0) or output (1). IN_POOL: of none. */
typedef struct {
    int64_t owner, buffer, offset;
} berth;

struct told_places {
    int32_t ranks, own;
    const berth *berths; /* of each region */
    const int64_t *strips; /* of each rank: where its strip begins in the heap, on its card */
    int64_t strip_bytes;
    int64_t (*at)[TOLD_BUFFERS]; /* of each rank, in its strip; NO_PLACE: not told in this call, or in no strip */
    int64_t (*need)[TOLD_BUFFERS]; /* of each rank: how many bytes of the array this rank's records name */
};

/* Return where the granules of a region in the heap begin on its card, from the heap's offset. */
static inline int64_t told_granules(const struct told_places *its, const region *r, int64_t number) {
    const berth *of = &its->berths[number];
    return its->strips[of->owner] + its->at[of->owner][of->buffer] + of->offset - r->start;
}

/* Find the rank whose array a record names though it has not told where that lies in this call; NO_PLACE where there is none. */
int32_t told_lacks(const program *p, const record *r);

static inline void told_tell(const struct told_places *its, uint8_t *words) {
    memcpy(words, its->at[its->own], sizeof its->at[0]);
}

/* Learn a rank's places. Return false where an array that this rank's records name does not lie in the strip; *wrong: its place. */
bool told_learn(const struct told_places *its, int32_t owner, const uint8_t *words, int64_t *wrong);

/* Forget what peers told in the last call. */
void told_forget(const struct told_places *its);

/* Work out what records need, and return whether tables and the rank's own places fit. Regions, layout and records are right. */
bool told_check(const program *p);

/* Make a table of places, with copies of its arguments. own_at: the rank's own. Return NULL without memory. */
struct told_places *told_new(int32_t ranks, int32_t own, int64_t strip_bytes, const int64_t own_at[TOLD_BUFFERS],
                             const int64_t *strips, const berth *berths, int64_t regions);
void told_free(struct told_places *its);

#endif
