#include "damage.h"

enum { LINK = 1, CARD, LINE };
enum { WORDS = DAMAGE_BYTES / 8, KIND_SHIFT = 56, WHERE_SHIFT = 40 };

static uint64_t entry_of(int kind, int32_t where, int64_t line) {
    return (uint64_t)kind << KIND_SHIFT | (uint64_t)where << WHERE_SHIFT | (uint64_t)line;
}

static int find(const uint64_t *page, uint64_t entry) {
    for (int k = 1; k < WORDS; k++)
        if (__atomic_load_n(page + k, __ATOMIC_RELAXED) == entry) return k;
    return 0;
}

enum status damage_cut_off(const uint64_t *page, int32_t host, int32_t card) {
    if (find(page, entry_of(LINK, host, 0))) return LINK_DOWN;
    return find(page, entry_of(CARD, card, 0)) ? CARD_LOST : DONE;
}

bool damage_poisoned(const uint64_t *page, int32_t card, int64_t line) {
    return find(page, entry_of(LINE, card, line)) != 0;
}

void damage_overwritten(uint64_t *page, int32_t card, int64_t first, int64_t last) {
    for (int k = 1; k < WORDS; k++) {
        const uint64_t entry = __atomic_load_n(page + k, __ATOMIC_RELAXED);
        if (entry >= entry_of(LINE, card, first) && entry < entry_of(LINE, card, last))
            __atomic_store_n(page + k, 0, __ATOMIC_RELAXED);
    }
}
