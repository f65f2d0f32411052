/* With --free, a thread that polls rests until something has arrived, because each look takes the lock that the others need for
 * their steps. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "self.h"

enum { LOOKS = 6, SPINS = 64, REST_NS = 100000 }; /* not for long: nature only moves when somebody makes steps */
#if defined(__x86_64__)
#define SPIN() __builtin_ia32_pause()
#else
#define SPIN() atomic_signal_fence(memory_order_seq_cst)
#endif

void rest_ends(void) {
    program_area *a = here.area;
    if (!a->options.free_running) return;
    a->arrivals++;
}

bool rest_is_over(void) {
    program_area *a = here.area;
    const bool over = a->resting && a->woken != a->arrivals;
    if (over) a->woken = a->arrivals;
    return over;
}

void rest_wake(void) { syscall(SYS_futex, &here.area->arrivals, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

void rest_ends_for_host(int thread) {
    const program_area *a = here.area;
    if (!a->options.free_running) return;
    for (int k = 0; k < a->thread_count; k++)
        if (k != thread && a->threads[k].host == a->threads[thread].host && turn_state(k) != THREAD_ENDED) {
            rest_ends();
            return;
        }
}

void rest_if_idle(uint64_t idle) {
    static _Thread_local uint32_t seen; /* the arrivals before this thread's last looks */
    static _Thread_local bool in_vain; /* whether it last spun for nothing, as where its processor has other work */
    program_area *a = here.area;
    if (!idle || idle % LOOKS) return;
    for (int k = 0; k < SPINS && !in_vain && a->arrivals == seen; k++) SPIN();
    in_vain = a->arrivals == seen;
    if (in_vain) {
        a->resting++;
        syscall(SYS_futex, &a->arrivals, FUTEX_WAIT, seen, &(struct timespec){.tv_nsec = REST_NS}, NULL, 0);
        a->resting--;
    }
    seen = a->arrivals;
}
