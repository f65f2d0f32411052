/* Host 0 writes a value to two lines, then says so; host 1, which looks once, takes the one that it can read.
 * -DBUG: host 0 says so after the first line. That takes both: host 1 in between, and an error of that line. */
#include "words.h"

#include <setjmp.h>
#include <signal.h>

enum { COPIES = 2, VALUE = 7, UNREADABLE = 8 };

typedef struct {
    word copies[COPIES], written;
} shared;

static sigjmp_buf before;

static void on_error(int number) { siglongjmp(before, number); }

static uint64_t get_safely(word *w) { return sigsetjmp(before, 1) ? UNREADABLE : get(w); }

static void write_both(shared *s) {
    set(&s->copies[0], VALUE);
#ifdef BUG
    set(&s->written, 1);
#endif
    set(&s->copies[1], VALUE);
#ifndef BUG
    set(&s->written, 1);
#endif
}

static void read_one(shared *s) {
    signal(SIGBUS, on_error);
    if (get_safely(&s->written) != 1) return;
    uint64_t value = get_safely(&s->copies[0]);
    if (value == UNREADABLE) value = get_safely(&s->copies[1]);
    if (value != VALUE && value != UNREADABLE) fail("the value was lost");
}

int main(int count, char **words) {
    shared *s = map_pool("/dev/shm/mirror", sizeof *s);
    const char what = count == 2 ? words[1][0] : 0;
    if (what == 'w') write_both(s);
    else if (what == 'r') read_one(s);
    else fail("mirror write|read");
    return 0;
}
