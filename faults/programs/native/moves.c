#include "moves.h"

#include "crash.h"
#include "self.h"
#include "tears.h"

_Static_assert((int)MOVE_CRASH == (int)ACTIONS, "a crash is none of nature's moves");

void move_make(program_turn turn) {
    program_area *a = here.area;
    const int pool = (int)(turn.thread >> 12 & 15), host = (int)(turn.thread >> 8 & 15);
    const unsigned action = turn.thread & 255;
    const int64_t line = turn.steps;
    const bool tears = action > MOVE_TEAR && action < MOVE_TEAR + 2 * TEAR_LAST && action % TEAR_LAST;
    a->steps++;
    if (turn.thread >> 17 == 0 && host < a->options.hosts && action == MOVE_CRASH) {
        if (crash_now) crash_point_here(-1);
        host_crashes(host, 0);
        turn_crash(host);
        turn_all_written();
        return;
    }
    if ((turn.thread >> 17 && action != MOVE_PAST) || pool >= a->options.pools || host >= a->options.hosts ||
        (action > MOVE_PAST && !tears) || line >= image_of(host, pool)->lines)
        return;
    if (tears) {
        if (tear_make(host, pool, line, action & TEAR_LAST, action % TEAR_LAST)) turn_written(host);
        return;
    }
    if (action == MOVE_PAST) {
        if (past_land((int)(turn.thread >> 17), pool, line)) turn_written(host);
        return;
    }
    if (action == MOVE_POISON || action == MOVE_LOSE) {
        area_break(action == MOVE_POISON ? LINE_ENTRY : CARD_ENTRY, pool, line);
        turn_all_written();
        return;
    }
    if (line >= a->extent[pool]) a->extent[pool] = line + 1;
    const uint8_t state = image_of(host, pool)->cache.state[line];
    const bool leaves = action == EVICT && (state & (FLUSHED | DIRTY)) == FLUSHED; /* as it will in any case: no news */
    const bool moved = image_nature((mover){host, 0, BY_NATURE}, (enum action)action, pool, line);
    if (moved && action != PREFETCH && !leaves) turn_written(host);
}
