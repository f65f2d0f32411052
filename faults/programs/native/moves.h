/* Moves of a schedule: what nature does at a place that the schedule names, beside the turns of threads. */
#ifndef CXLEMU_MOVES_H
#define CXLEMU_MOVES_H

#include "area.h"

/* The threads of turns that are moves begin at MOVE_TURNS: 1 << 16 | pool << 12 | host << 8 | action, one of enum action, or the crash
 * of the host, or damage to the pool, or an eviction in the middle of a store; or the arrival of the oldest store past the cache that
 * `thread` has made to the line, with thread << 17. */
enum { MOVE_TURNS = 1 << 16, MOVE_CRASH = 3, MOVE_POISON, MOVE_LOSE, MOVE_PAST, MOVE_TEAR = 16 };
enum { TEAR_LAST = 8 }; /* MOVE_TEAR + how many words have arrived, the first or, with this bit, the last ones */

static inline bool is_move(program_turn turn) { return turn.thread >= MOVE_TURNS; }

/* Make the move of a turn, whose `steps` are its line, as a step of its own. A move that is not possible here changes nothing. */
void move_make(program_turn turn);

#endif
