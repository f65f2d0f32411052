/* The damage to an emulated pool's hardware, a page of its own: memory/damage.py is the definition. While nothing was ever
 * armed, an access takes one look at it. */
#ifndef CXLEMU_DAMAGE_H
#define CXLEMU_DAMAGE_H

#include "core.h"

enum { DAMAGE_BYTES = 512 };

/* Where a load fails. */
typedef struct {
    int32_t card;
    int64_t offset;
} damaged_place;

static inline bool damage_armed(const uint64_t *page) { return __atomic_load_n(page, __ATOMIC_RELAXED) != 0; }

/* Return DONE, or why nothing moves between a host and a card: LINK_DOWN or CARD_LOST. */
enum status damage_cut_off(const uint64_t *page, int32_t host, int32_t card);

bool damage_poisoned(const uint64_t *page, int32_t card, int64_t line);

/* Note that lines got new bytes: they are no longer poisoned. */
void damage_overwritten(uint64_t *page, int32_t card, int64_t first, int64_t last);

#endif
