/* Nature as an adversary, move for move that of memory/adversary.py, which is the definition. */
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
    window touched[LAPS]; /* a ring */
    uint32_t touches;
} adversary;

typedef struct {
    enum action action;
    window lines;
    uint8_t among[WINDOW_LINES]; /* 1 for the lines meant */
} adversary_move;

void adversary_touched(adversary *a, window lines);

/* Which kinds of moves come now, in order; returns how many. Aim each before the next random number is drawn. */
int adversary_actions(adversary *a, enum action actions[ACTIONS]);

void adversary_aim(adversary *a, enum action action, adversary_move *move);

#endif
