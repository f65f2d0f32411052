/* With --free, a thread that polls rests until something has arrived, because each look takes the lock that the others need for
 * their steps. It is told late: once the thread that let it arrive waits as well, or has made many more steps. So hosts that alternate
 * hand over as rarely as in turns, and on one processor, as another one would have to wake up each time. Where a schedule's turns are
 * shortest, it is told at once, and stays where the system puts it. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pause.h"
#include "self.h"

enum { LOOKS = 6, TOLD_AFTER = 128, TOLD_AT_ONCE = 2 /* of ten schedules */ };
/* A rest is short, as nature only moves when somebody makes steps. A thread that was told the last time may rest for longer than a
 * tick of the system's clock, for which no timer has to be set. */
enum { REST_NS = 100000, LONG_REST_NS = 5000000 };
enum { LITTLE_NS = 200000 }; /* of processor time between two rests: who computes more gains by another processor */

static _Thread_local uint32_t seen; /* how often threads at rest had been told before this thread's last looks */

static bool tells_late(void) { return here.area->options.schedule % 10 >= TOLD_AT_ONCE; }

static bool rests(uint64_t idle) { return idle && idle % LOOKS == 0; }

void rest_ends(void) {
    program_area *a = here.area;
    if (a->options.free_running && !a->untold) a->untold = a->steps;
}

/* Count that threads at rest are told of everything; false where there is nothing to tell. */
static bool tells(void) {
    program_area *a = here.area;
    if (!a->untold || !atomic_exchange(&a->untold, 0)) return false;
    a->told++;
    return true;
}

bool rest_is_over(uint64_t idle) {
    program_area *a = here.area;
    if (idle == 1) seen = a->told;
    const bool late = tells_late() && a->steps - a->untold < TOLD_AFTER;
    if (late && !rests(idle)) return false;
    if (!tells()) return false;
    if (rests(idle)) seen++;
    return a->resting;
}

void rest_wake(void) { syscall(SYS_futex, &here.area->told, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

void rest_tell(void) {
    if (tells() && here.area->resting) rest_wake();
}

void rest_ends_for_host(int thread) {
    const program_area *a = here.area;
    if (!a->options.free_running) return;
    for (int k = 0; k < a->thread_count; k++)
        if (k != thread && a->threads[k].host == a->threads[thread].host && turn_state(k) != THREAD_ENDED) {
            rest_ends();
            return;
        }
}

/* Look whether a thread is told soon, as it mostly is: a processor that sleeps takes longer to wake. Where it is not, because no
 * processor is free for who would tell it, its next rests are without this look. */
static bool is_told_soon(void) {
    enum { SOON = 1000, IN_VAIN = 16 };
    static _Thread_local uint32_t left_out;
    const program_area *a = here.area;
    if (left_out && left_out--) return false;
    for (int k = 0; k < SOON && a->told == seen; k++) PAUSE();
    const bool told = a->told != seen;
    if (!told) left_out = IN_VAIN;
    return told;
}

/* Whether this thread has computed for little time since it was asked last. */
static bool computed_little(void) {
    static _Thread_local int64_t before;
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &now);
    const int64_t last = before;
    before = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    return before - last < LITTLE_NS;
}

void rest_if_idle(uint64_t idle) {
    static _Thread_local bool told; /* whether its last rest ended because something had arrived */
    program_area *a = here.area;
    if (!rests(idle)) return;
    const bool together = a->together[self->thread], alternates = !together && tells_late() && computed_little();
    if (together || !is_told_soon()) {
        const struct timespec most = {.tv_nsec = told ? LONG_REST_NS : REST_NS};
        a->resting++;
        syscall(SYS_futex, &a->told, FUTEX_WAIT, seen, &most, NULL, 0);
        a->resting--;
    }
    told = a->told != seen, seen = a->told;
    if (told && alternates) pin_together(self->thread);
}
