#include "damage.h"

enum { WORDS = DAMAGE_BYTES / 16 };

static void meet(uint64_t *page, int k) { __atomic_store_n(page + WORDS + k, 1, __ATOMIC_RELAXED); }

static bool find(uint64_t *page, uint64_t entry) {
    bool found = false;
    for (int k = 1; k < WORDS; k++) {
        if (__atomic_load_n(page + k, __ATOMIC_RELAXED) != entry) continue;
        meet(page, k);
        found = true;
    }
    return found;
}

enum status damage_cut_off(uint64_t *page, int32_t host, int32_t card) {
    if (find(page, damage_entry(LINK_ENTRY, host, 0))) return LINK_DOWN;
    return find(page, damage_entry(CARD_ENTRY, card, 0)) ? CARD_LOST : DONE;
}

bool damage_poisoned(uint64_t *page, int32_t card, int64_t line) {
    return find(page, damage_entry(LINE_ENTRY, card, line));
}

void damage_overwritten(uint64_t *page, int32_t card, int64_t first, int64_t last) {
    for (int k = 1; k < WORDS; k++) {
        const uint64_t entry = __atomic_load_n(page + k, __ATOMIC_RELAXED);
        if (entry < damage_entry(LINE_ENTRY, card, first) || entry >= damage_entry(LINE_ENTRY, card, last)) continue;
        meet(page, k);
        __atomic_store_n(page + k, 0, __ATOMIC_RELAXED);
    }
}
