/* What a rank does while nothing progresses: look again, yield its core, sleep for a moment. */
#ifndef CXLEMU_IDLE_H
#define CXLEMU_IDLE_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "pause.h"

enum {
    LOOKS_WITHOUT_PAUSE = 32, /* a peer in step with this rank rings within these */
    SLEEP_AFTER_YIELDS = 64,
    SLEEP_NS = 20000,
    LONGEST_SLEEP_NS = 250000, /* where others need the core: a sleep is a sixteenth of the wait until then */
    SPIN_NS = 100000 /* the last part of a rest of known length is spun */
};

typedef struct {
    int64_t looks, ns; /* looks so far; when spinning ended on the monotonic clock, 0 before */
} idling;

static inline int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

static inline void nap(int64_t ns) {
    const struct timespec length = {ns / 1000000000, ns % 1000000000};
    nanosleep(&length, NULL);
}

/* Spin, yield or sleep for a moment after a look without progress. Return false when that has gone on for idle_ns.
 * rest_ns: how long until the next modelled time is due; nothing_rings: whether no stream waits for a doorbell. */
static inline bool idle(idling *since, int64_t idle_ns, int64_t spins, int64_t rest_ns, bool nothing_rings) {
    if (rest_ns <= 0 || (nothing_rings && spins && rest_ns < SPIN_NS)) {
        PAUSE();
        return true;
    }
    if (!nothing_rings && ++since->looks <= spins) {
        if (since->looks > LOOKS_WITHOUT_PAUSE) PAUSE();
        return true;
    }
    if (since->ns == 0) since->ns = now_ns();
    const int64_t left_ns = idle_ns - (now_ns() - since->ns);
    if (left_ns <= 0) return false;
    if (nothing_rings) nap(least(spins ? rest_ns - SPIN_NS / 2 : rest_ns, left_ns));
    else if (since->looks <= spins + SLEEP_AFTER_YIELDS) sched_yield();
    else nap(least(rest_ns, spins ? SLEEP_NS : least(SLEEP_NS + (idle_ns - left_ns) / 16, LONGEST_SLEEP_NS)));
    return true;
}

#endif
