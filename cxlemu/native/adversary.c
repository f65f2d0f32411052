#include "adversary.h"

#include <string.h>

static uint64_t bits(adversary *a) {
    uint64_t z = a->state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static double random_number(adversary *a) { return (double)(int64_t)(bits(a) >> 11) * 0x1p-53; }

void adversary_touched(adversary *a, window lines) {
    if (lines.first < lines.last) a->touched[a->touches++ % LAPS] = lines;
    if (a->touches == 2 * LAPS) a->touches = LAPS; /* the count never overflows */
}

int adversary_actions(adversary *a, enum action actions[ACTIONS]) {
    int count = 0;
    for (int k = 0; k < ACTIONS; k++)
        if (random_number(a) < a->rates[k]) actions[count++] = (enum action)k;
    if (a->touches == 0) return 0;
    for (int last = count - 1; last > 0; last--) {
        const int other = (int)(random_number(a) * (last + 1));
        const enum action kept = actions[last];
        actions[last] = actions[other], actions[other] = kept;
    }
    return count;
}

void adversary_aim(adversary *a, enum action action, adversary_move *move) {
    static const int64_t sides[] = {-1, 0, 0, 1};
    const double newest = random_number(a), age = random_number(a), side = random_number(a), where = random_number(a);
    const double whole = random_number(a);
    const uint32_t known = a->touches < LAPS ? a->touches : LAPS;
    const uint32_t back = newest < 0.5 ? 0 : (uint32_t)(age * known);
    const window range = a->touched[(a->touches - 1 - back) % LAPS];
    const int64_t range_lines = range.last - range.first;
    const int64_t lines = range_lines < WINDOW_LINES ? range_lines : WINDOW_LINES;
    int64_t start = range.first + range_lines * sides[(int)(side * 4)];
    start += (int64_t)(where * (double)(range_lines - lines + 1));
    if (start < 0) start = 0;
    if (start > a->card_lines - lines) start = a->card_lines - lines;
    move->action = action;
    move->lines = (window){range.card, start, start + lines};
    if (whole < 0.5) {
        memset(move->among, 1, (size_t)lines);
        return;
    }
    uint64_t word = 0;
    for (int64_t k = 0; k < lines; k++, word >>= 1) {
        if (k % 64 == 0) word = bits(a);
        move->among[k] = word & 1;
    }
}
