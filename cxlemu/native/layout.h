/* The geometry of a communicator's extent, as plan/layout.py defines it, and the place of a doorbell, for all C
 * files. */
#ifndef CXLEMU_LAYOUT_H
#define CXLEMU_LAYOUT_H

#include <stdint.h>

#define LINE_BYTES 64

/* A row of LAYOUT_DTYPE. All offsets are in bytes from the start of the extent, which is the same on every card. */
typedef struct {
    int32_t ranks, cards, slots, doorbells_per_rank;
    int32_t pool_cards; /* the others are memories of the ranks, one each, behind them */
    int32_t own_doorbells; /* of a rank's doorbells in a slot, as many of the last lie in its own memory */
    int64_t slot_card_bytes, doorbells_offset, slot_doorbell_bytes, data_offset, heap_offset, extent_bytes;
} layout;

_Static_assert(sizeof(layout) == 72, "layout differs from LAYOUT_DTYPE");

typedef struct {
    int32_t card;
    int64_t offset; /* from the start of the card, or of the extent */
} place;

/* Return the number of all ranks' doorbells in one slot; the done doorbells are numbered from there on. */
static inline int32_t layout_published(const layout *l) { return l->ranks * l->doorbells_per_rank; }

/* Return where in the extent a doorbell lies, as Layout.doorbell_address does. slot: that of its epoch; done doorbells
 * lie in none. */
static inline place layout_doorbell(const layout *l, int32_t doorbell, int64_t slot) {
    const int32_t published = layout_published(l);
    int32_t number = doorbell;
    int64_t at = 0;
    if (doorbell >= published) number -= published;
    else {
        at = l->doorbells_offset + slot * l->slot_doorbell_bytes;
        const int32_t own = l->own_doorbells
                                ? doorbell % l->doorbells_per_rank - l->doorbells_per_rank + l->own_doorbells
                                : -1;
        if (own >= 0) return (place){l->pool_cards + doorbell / l->doorbells_per_rank, at + (int64_t)own * LINE_BYTES};
    }
    return (place){number % l->pool_cards, at + (int64_t)(number / l->pool_cards) * LINE_BYTES};
}

#endif
