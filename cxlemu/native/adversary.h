/* Nature as an adversary: it makes the same moves as memory/adversary.py, which defines them. */
#ifndef CXLEMU_ADVERSARY_H
#define CXLEMU_ADVERSARY_H

#include <stdint.h>

enum { WINDOW_LINES = 256, LAPS = 32 };
enum action { EVICT, PREFETCH, LAND, ACTIONS };

typedef struct {
    int32_t card;
    int64_t first, last;
} window;

typedef struct {
    uint64_t state; /* of the random numbers */
    double rates[ACTIONS];
    int64_t card_lines;
    window touched[LAPS]; /* the last windows that were touched, as a ring */
    uint32_t touches;
} adversary;

typedef struct {
    enum action action;
    window lines;
    uint8_t among[WINDOW_LINES]; /* 1 for each line of the window that moves */
} adversary_move;

void adversary_touched(adversary *a, window lines);

/* Draw the kinds of moves that come now, in order, and return how many. Aim each before the next random number is
 * drawn. */
int adversary_actions(adversary *a, enum action actions[ACTIONS]);

void adversary_aim(adversary *a, enum action action, adversary_move *move);

#endif
