#include "moves.h"

#include "image.h"

void move_make(program_turn turn) {
    program_area *a = here.area;
    const int pool = (int)(turn.thread >> 12 & 15), host = (int)(turn.thread >> 8 & 15);
    const enum action action = (enum action)(turn.thread & 255);
    const int64_t line = turn.steps;
    a->steps++;
    if (turn.thread >> 17 || pool >= a->options.pools || host >= a->options.hosts || action >= ACTIONS ||
        line >= image_of(host, pool)->lines)
        return;
    if (line >= a->extent[pool]) a->extent[pool] = line + 1;
    const adversary_move move = {.action = action, .lines = {pool, line, line + 1}, .among = {1}};
    if (image_nature((mover){host, 0, BY_NATURE}, &move) && action != PREFETCH) a->written = a->steps;
}
