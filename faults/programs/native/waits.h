/* How a thread waits in the schedule: it lets others go first, and looks again. */
#ifndef CXLEMU_WAITS_H
#define CXLEMU_WAITS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "self.h"

#define HERE __builtin_return_address(0)

/* Whether a thread that may have to wait does so in the schedule. With --free it waits by itself, perhaps for a thread at rest. */
static inline bool scheduled(void) {
    if (!self || self->inside) return false;
    if (here.area->options.free_running) rest_tell();
    return !here.area->options.free_running;
}
static inline uint64_t clock_now(void) { return here.area->clock_ns; }

/* Let others go first in a wait, or for a time: a thread that was cancelled ends there. */
static inline void wait_ns(uint64_t ns, const void *pc) {
    prog_sleep(ns, pc);
    pthread_testcancel();
}
static inline void wait_on(const void *pc) { wait_ns(0, pc); }

static inline void set_add(thread_set *set, int thread) { set->bits[thread / 64] |= UINT64_C(1) << thread % 64; }
/* threads.c: the same in a wait for one of these threads to end, behind which it looks again. */
void wait_for(const thread_set *ends, const void *pc);

/* threads.c: pthread_join and pthread_cond_wait, called at `pc`. */
int thread_joined(pthread_t handle, void **result, const void *pc);
int condition_waited(pthread_mutex_t *lock, const struct timespec *until, const void *pc);

#endif
