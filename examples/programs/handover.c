/* Host 0 changes a value under an undo log, then lets host 1 change it, which looks once whether it may.
 * -DBUG: it lets host 1 before it gives up the log, so that a restart may put back what host 1 has changed since. It takes both: host
 * 1 in between, and a crash. */
#include "words.h"

typedef struct {
    word value, logged, valid, turn, changed;
} shared;

static void first(shared *s) {
    set(&s->logged, 0);
    set(&s->valid, 1);
    set(&s->value, 1);
#ifdef BUG
    set(&s->turn, 1);
#endif
    set(&s->valid, 0);
#ifndef BUG
    set(&s->turn, 1);
#endif
}

static void second(shared *s) {
    if (!get(&s->turn)) return;
    (void)get(&s->value);
    set(&s->value, 2);
    set(&s->changed, 1);
}

static void recover(shared *s) {
    if (get(&s->valid)) set(&s->value, get(&s->logged));
    if (get(&s->changed) && get(&s->value) != 2) fail("what host 1 has changed is lost");
}

int main(int count, char **words) {
    shared *s = map_pool("/dev/shm/handover", sizeof *s);
    const char what = count == 2 ? words[1][0] : 0;
    if (what == 'f') first(s);
    else if (what == 's') second(s);
    else if (what == 'r') recover(s);
    else fail("handover first|second|recover");
    return 0;
}
