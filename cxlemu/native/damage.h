/* What is broken in an emulated pool's hardware: the page of memory/damage.py, which is the definition. One look as long
 * as nothing was ever armed. */
#ifndef CXLEMU_DAMAGE_H
#define CXLEMU_DAMAGE_H

#include "core.h"

enum { DAMAGE_BYTES = 512 };

/* Where a load fails, if it does. */
typedef struct {
    int32_t card;
    int64_t offset;
} damaged_place;

static inline bool damage_armed(const uint64_t *page) { return __atomic_load_n(page, __ATOMIC_RELAXED) != 0; }

/* DONE, or why nothing moves between this host and this card: LINK_DOWN or CARD_LOST. */
enum status damage_cut_off(const uint64_t *page, int32_t host, int32_t card);

bool damage_poisoned(const uint64_t *page, int32_t card, int64_t line);

/* These lines got new bytes: they are not poisoned any more. */
void damage_overwritten(uint64_t *page, int32_t card, int64_t first, int64_t last);

#endif
