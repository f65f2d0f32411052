/* Keeps the threads of a run on one processor. Only one of them runs at a time, so they need no more; and a turn then passes on at
 * once, while another processor would have to wake up or to leave other work for it. With --free, those that alternate come there. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "real.h"
#include "self.h"

enum { HOME_BYTES = sizeof here.area->homes[0] };

static bool set(int tid, const uint64_t *processors) {
    return tid > 0 && syscall(SYS_sched_setaffinity, tid, HOME_BYTES, processors) == 0;
}

void pin_begin(int thread, int maker) {
    uint64_t *home = here.area->homes[thread];
    if (maker >= 0) memcpy(home, here.area->homes[maker], HOME_BYTES);
    else if (syscall(SYS_sched_getaffinity, 0, HOME_BYTES, home) < 0) memset(home, 0, HOME_BYTES);
    if (here.area->options.free_running) unpin(thread); /* its maker may be on the run's processor */
    else pin(thread);
}

void pin_together(int thread) {
    program_area *a = here.area;
    uint64_t one[PROGRAM_PROCESSORS / 64] = {0};
    int32_t none = 0;
    __atomic_compare_exchange_n(&a->processor, &none, sched_getcpu() + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    const int at = __atomic_load_n(&a->processor, __ATOMIC_SEQ_CST) - 1;
    if (at < 0 || at >= PROGRAM_PROCESSORS || memcmp(a->homes[thread], one, HOME_BYTES) == 0) return;
    one[at / 64] = UINT64_C(1) << at % 64;
    if (a->options.free_running && !(a->homes[thread][at / 64] & one[at / 64])) return;
    a->together[thread] = set(a->threads[thread].tid, one);
}

void pin(int thread) {
    if (!here.area->options.free_running) pin_together(thread);
}

void unpin(int thread) {
    program_area *a = here.area;
    a->together[thread] = false;
    set(a->threads[thread].tid, a->homes[thread]);
}

/* With --free, let the threads on the run's processor run anywhere. Those that still alternate come back, perhaps to another one. */
PROGRAM_EXPORT void program_part(void) {
    program_area *a = here.area;
    __atomic_store_n(&a->processor, 0, __ATOMIC_SEQ_CST);
    for (int k = 0; k < a->thread_count; k++)
        if (a->together[k] && turn_state(k) != THREAD_ENDED) unpin(k);
}

/* --- what the program sees: the processors that it would have otherwise ---------------------------------------------- */

static uint64_t *home_of(pid_t tid) {
    const bool mine = self && (tid == 0 || tid == here.area->threads[self->thread].tid);
    return mine ? here.area->homes[self->thread] : NULL;
}

REAL(int, sched_getaffinity, pid_t, size_t, cpu_set_t *)
PROGRAM_EXPORT int sched_getaffinity(pid_t tid, size_t nbytes, cpu_set_t *processors) {
    const uint64_t *home = home_of(tid);
    const int error = real_sched_getaffinity()(tid, nbytes, processors);
    if (error == 0 && home) memcpy(processors, home, nbytes < HOME_BYTES ? nbytes : HOME_BYTES);
    return error;
}

REAL(int, sched_setaffinity, pid_t, size_t, const cpu_set_t *)
PROGRAM_EXPORT int sched_setaffinity(pid_t tid, size_t nbytes, const cpu_set_t *processors) {
    uint64_t *home = home_of(tid);
    const int error = real_sched_setaffinity()(tid, nbytes, processors);
    if (error || !home) return error;
    memset(home, 0, HOME_BYTES);
    memcpy(home, processors, nbytes < HOME_BYTES ? nbytes : HOME_BYTES);
    pin(self->thread);
    return 0;
}

REAL(int, pthread_getaffinity_np, pthread_t, size_t, cpu_set_t *)
PROGRAM_EXPORT int pthread_getaffinity_np(pthread_t thread, size_t nbytes, cpu_set_t *processors) {
    if (self && pthread_equal(thread, pthread_self())) return sched_getaffinity(0, nbytes, processors) ? errno : 0;
    return real_pthread_getaffinity_np()(thread, nbytes, processors);
}

REAL(int, pthread_setaffinity_np, pthread_t, size_t, const cpu_set_t *)
PROGRAM_EXPORT int pthread_setaffinity_np(pthread_t thread, size_t nbytes, const cpu_set_t *processors) {
    if (self && pthread_equal(thread, pthread_self())) return sched_setaffinity(0, nbytes, processors) ? errno : 0;
    return real_pthread_setaffinity_np()(thread, nbytes, processors);
}
