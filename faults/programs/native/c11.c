/* C11's threads: the C library calls its own pthread_create and waits for them, past those of threads.c. Its types are the same. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <threads.h>
#include <time.h>

#include "waits.h"

static int result_of(int error) {
    return error == 0 ? thrd_success : error == ETIMEDOUT ? thrd_timedout : error == ENOMEM ? thrd_nomem : thrd_error;
}

PROGRAM_EXPORT int thrd_create(thrd_t *handle, thrd_start_t function, void *argument) {
    return result_of(pthread_create(handle, NULL, (void *(*)(void *))(uintptr_t)function, argument));
}
PROGRAM_EXPORT int thrd_join(thrd_t handle, int *result) {
    void *value = NULL;
    const int error = thread_joined(handle, &value, HERE);
    if (!error && result) *result = (int)(intptr_t)value;
    return result_of(error);
}
PROGRAM_EXPORT int thrd_sleep(const struct timespec *how_long, struct timespec *rest) {
    return nanosleep(how_long, rest);
}
PROGRAM_EXPORT void thrd_yield(void) { sched_yield(); }

static pthread_mutex_t *mutex_of(mtx_t *lock) { return (pthread_mutex_t *)(void *)lock; }
PROGRAM_EXPORT int cnd_wait(cnd_t *condition, mtx_t *lock) {
    if (scheduled()) return result_of(condition_waited(mutex_of(lock), NULL, HERE));
    return result_of(pthread_cond_wait((pthread_cond_t *)(void *)condition, mutex_of(lock)));
}
PROGRAM_EXPORT int cnd_timedwait(cnd_t *restrict condition, mtx_t *restrict lock,
                                 const struct timespec *restrict until) {
    if (scheduled()) return result_of(condition_waited(mutex_of(lock), until, HERE));
    return result_of(pthread_cond_timedwait((pthread_cond_t *)(void *)condition, mutex_of(lock), until));
}
