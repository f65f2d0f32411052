#define _GNU_SOURCE
#include "hostlock.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { MADE = 1 };

#if defined(__SANITIZE_THREAD__) /* which does not know of the other one */
#define CLOCK CLOCK_REALTIME
#define LOCK_UNTIL(mutex, until) pthread_mutex_timedlock(mutex, until)
#else
#define CLOCK CLOCK_MONOTONIC
#define LOCK_UNTIL(mutex, until) pthread_mutex_clocklock(mutex, CLOCK, until)
#endif
#if defined(LOCK_WAIT) && !defined(__SANITIZE_THREAD__) /* of programs, whose waits are scheduled */
int LOCK_WAIT(pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until);
#undef LOCK_UNTIL
#define LOCK_UNTIL(mutex, until) LOCK_WAIT(mutex, CLOCK, until)
#endif

bool host_lock_make(host_lock *lock) {
    pthread_mutexattr_t attributes;
    if (atomic_load_explicit(&lock->made, memory_order_acquire) == MADE) return true;
    if (pthread_mutexattr_init(&attributes)) return false;
    bool ok = !pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) &&
              !pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) &&
              !pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE) &&
              !pthread_mutex_init(&lock->mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
    if (ok) atomic_store_explicit(&lock->made, MADE, memory_order_release);
    return ok;
}

bool host_lock_take(host_lock *lock, double seconds) {
    int error = pthread_mutex_trylock(&lock->mutex);
    if (error == EBUSY && seconds > 0) {
        struct timespec until;
        syscall(SYS_clock_gettime, CLOCK, &until); /* not that of a run of programs, whose time is its schedule's */
        const int64_t end_ns = until.tv_nsec + (int64_t)(seconds * 1e9);
        until.tv_sec += end_ns / 1000000000, until.tv_nsec = end_ns % 1000000000;
        error = LOCK_UNTIL(&lock->mutex, &until);
        if (error == ETIMEDOUT) error = pthread_mutex_trylock(&lock->mutex); /* this process may have been stopped */
    }
    /* A holder that was killed leaves a cache that its host's other processes can go on using: see cache.h. */
    if (error == EOWNERDEAD && !(error = pthread_mutex_consistent(&lock->mutex))) lock->taken = 0;
    if (error == 0) lock->taken++;
    return error == 0;
}

void host_lock_release(host_lock *lock) {
    uint32_t times = lock->taken;
    lock->taken = 0;
    while (times--) pthread_mutex_unlock(&lock->mutex);
}

void host_lock_drop(host_lock *lock) {
    if (host_lock_take(lock, 0)) host_lock_release(lock);
}
