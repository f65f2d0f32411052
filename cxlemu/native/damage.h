/* The damage to an emulated pool's hardware, a page of its own: memory/damage.py is the definition. While nothing was ever
 * armed, an access takes one look at it. An access that meets a fault notes that in the page. */
#ifndef CXLEMU_DAMAGE_H
#define CXLEMU_DAMAGE_H

#include "core.h"

enum { DAMAGE_BYTES = 1024 };
enum { LINK_ENTRY = 1, CARD_ENTRY, LINE_ENTRY, KIND_SHIFT = 56, WHERE_SHIFT = 40 };

/* Return the word of a fault. where: the host of a link, else the card; line: 0 but for a line. */
static inline uint64_t damage_entry(int kind, int32_t where, int64_t line) {
    return (uint64_t)kind << KIND_SHIFT | (uint64_t)where << WHERE_SHIFT | (uint64_t)line;
}

/* Where a load fails. */
typedef struct {
    int32_t card;
    int64_t offset;
} damaged_place;

static inline bool damage_armed(const uint64_t *page) { return __atomic_load_n(page, __ATOMIC_RELAXED) != 0; }

/* Return DONE, or why nothing moves between a host and a card: LINK_DOWN or CARD_LOST. */
enum status damage_cut_off(uint64_t *page, int32_t host, int32_t card);

bool damage_poisoned(uint64_t *page, int32_t card, int64_t line);

/* Note that lines got new bytes: they are no longer poisoned. */
void damage_overwritten(uint64_t *page, int32_t card, int64_t first, int64_t last);

#endif
