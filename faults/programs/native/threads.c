/* Threads, waits and time. A thread that waits for another one gives its turn away again and again, so that the
 * schedule chooses which thread goes on. Time is the run's own: it passes with the steps. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#include "asynchronous.h"
#include "real.h"
#include "waits.h"

/* --- threads --------------------------------------------------------------------------------------------------------- */

typedef struct {
    void *(*function)(void *);
    void *argument;
    int thread, maker;
} beginning;

enum { JOINABLE = 256 };
static struct {
    pthread_t handle;
    int thread;
} joinable[JOINABLE];
static int joinable_count;

static void *begin(void *of) {
    const beginning b = *(beginning *)of;
    free(of);
    self_begin(b.thread, STEP_THREAD_START, b.maker);
    return b.function(b.argument);
}

REAL(int, pthread_create, pthread_t *, const pthread_attr_t *, void *(*)(void *), void *)
PROGRAM_EXPORT int pthread_create(pthread_t *restrict handle, const pthread_attr_t *restrict attributes,
                                  void *(*function)(void *), void *restrict argument) {
    if (!self || self->inside) return real_pthread_create()(handle, attributes, function, argument);
    beginning *b = malloc(sizeof *b);
    if (!b) return EAGAIN;
    *b = (beginning){function, argument, -1, self->thread};
    b->thread = turn_new_thread(here.host, here.area->threads[self->thread].command,
                                here.area->threads[self->thread].process);
    const int thread = b->thread;
    if (thread < 0) too_many_threads();
    here.area->threads[thread].pid = getpid(); /* its process may end before it has begun */
    const int error = real_pthread_create()(handle, attributes, begin, b);
    if (error) {
        free(b);
        turn_without(thread, THREAD_ENDED);
    } else if (scheduled() && joinable_count < JOINABLE) {
        joinable[joinable_count].handle = *handle, joinable[joinable_count++].thread = thread;
    }
    return error;
}

/* Whoever was cancelled may leave its wait at once, and cannot be told. */
static bool cancels;
REAL(int, pthread_cancel, pthread_t)
PROGRAM_EXPORT int pthread_cancel(pthread_t handle) {
    const int error = real_pthread_cancel()(handle);
    cancels = true;
    for (int k = 0; self && k < here.area->thread_count; k++)
        if (here.area->threads[k].pid == getpid()) turn_looks(k);
    return error;
}

void wait_for(const thread_set *ends, const void *pc) {
    self->inside = true; /* a signal is kept until its step */
    if (!cancels) turn_awaits(self->thread, ends);
    if (self->late_count) turn_looks(self->thread);
    self->inside = false;
    wait_on(pc);
}

REAL(int, pthread_join, pthread_t, void **)
int thread_joined(pthread_t handle, void **result, const void *pc) {
    int known = -1;
    thread_set ends = {0};
    if (!scheduled()) return real_pthread_join()(handle, result);
    for (int k = 0; k < joinable_count; k++)
        if (pthread_equal(joinable[k].handle, handle)) known = k;
    /* A thread has ended for the others with its last step, although it still has instructions to run. */
    if (known >= 0) set_add(&ends, joinable[known].thread);
    while (known >= 0 && turn_state(joinable[known].thread) != THREAD_ENDED) wait_for(&ends, pc);
    const int error = real_pthread_join()(handle, result);
    if (error == 0 && known >= 0 && step_begin(self)) {
        step_other(self, STEP_THREAD_JOIN, joinable[known].thread, NULL, NULL);
        step_end(self);
        joinable[known] = joinable[--joinable_count];
    }
    return error;
}

PROGRAM_EXPORT int pthread_join(pthread_t handle, void **result) { return thread_joined(handle, result, HERE); }

/* --- waits within a process ------------------------------------------------------------------------------------------- */

/* The C library's stores to a lock in a pool took place at the program's call, which is told. Where pages are closed, they are
 * seen by themselves. */
static int at_lock(int result, void *lock, size_t nbytes, const void *pc) {
    if (prog_in_pool(lock, nbytes) && !pools_closed && !program_pages_now) prog_system_wrote(lock, nbytes, pc);
    return result;
}

#define WAITS(name, parameters, arguments, attempt, busy)                                                       \
    PROGRAM_EXPORT int name parameters {                                                                        \
        int error;                                                                                              \
        if (!scheduled()) return at_lock(real_##name() arguments, (void *)(uintptr_t)lock, sizeof *lock, HERE); \
        while ((error = attempt) == (busy)) prog_yield(HERE);                                                   \
        return at_lock(error, (void *)(uintptr_t)lock, sizeof *lock, HERE);                                     \
    }

#define TOLD(name, type)                                                                  \
    REAL(int, name, type *)                                                               \
    PROGRAM_EXPORT int name(type *lock) {                                                 \
        return at_lock(real_##name()(lock), (void *)(uintptr_t)lock, sizeof *lock, HERE); \
    }
#define TOLD_INIT(name, type, how)                                                             \
    REAL(int, name, type *, how)                                                               \
    PROGRAM_EXPORT int name(type *lock, how its) {                                             \
        return at_lock(real_##name()(lock, its), (void *)(uintptr_t)lock, sizeof *lock, HERE); \
    }
TOLD_INIT(pthread_mutex_init, pthread_mutex_t, const pthread_mutexattr_t *)
TOLD_INIT(pthread_rwlock_init, pthread_rwlock_t, const pthread_rwlockattr_t *)
TOLD_INIT(pthread_spin_init, pthread_spinlock_t, int)
TOLD(pthread_mutex_trylock, pthread_mutex_t)
TOLD(pthread_mutex_unlock, pthread_mutex_t)
TOLD(pthread_mutex_destroy, pthread_mutex_t)
TOLD(pthread_rwlock_tryrdlock, pthread_rwlock_t)
TOLD(pthread_rwlock_trywrlock, pthread_rwlock_t)
TOLD(pthread_rwlock_unlock, pthread_rwlock_t)
TOLD(pthread_spin_trylock, pthread_spinlock_t)
TOLD(pthread_spin_unlock, pthread_spinlock_t)
TOLD_INIT(mtx_init, mtx_t, int)
TOLD(mtx_trylock, mtx_t)
TOLD(mtx_unlock, mtx_t)
TOLD(sem_trywait, sem_t)
TOLD(sem_post, sem_t)
REAL(int, sem_init, sem_t *, int, unsigned)
PROGRAM_EXPORT int sem_init(sem_t *lock, int shared, unsigned value) {
    return at_lock(real_sem_init()(lock, shared, value), lock, sizeof *lock, HERE);
}

REAL(int, pthread_mutex_lock, pthread_mutex_t *)
REAL(int, mtx_lock, mtx_t *)
REAL(int, pthread_rwlock_rdlock, pthread_rwlock_t *)
REAL(int, pthread_rwlock_wrlock, pthread_rwlock_t *)
REAL(int, pthread_spin_lock, pthread_spinlock_t *)
WAITS(pthread_spin_lock, (pthread_spinlock_t * lock), (lock), real_pthread_spin_trylock()(lock), EBUSY)
WAITS(pthread_mutex_lock, (pthread_mutex_t * lock), (lock), real_pthread_mutex_trylock()(lock), EBUSY)
WAITS(mtx_lock, (mtx_t * lock), (lock), real_mtx_trylock()(lock), thrd_busy)
WAITS(pthread_rwlock_rdlock, (pthread_rwlock_t * lock), (lock), real_pthread_rwlock_tryrdlock()(lock), EBUSY)
WAITS(pthread_rwlock_wrlock, (pthread_rwlock_t * lock), (lock), real_pthread_rwlock_trywrlock()(lock), EBUSY)

REAL(int, sem_wait, sem_t *)
PROGRAM_EXPORT int sem_wait(sem_t *semaphore) {
    if (!scheduled()) return at_lock(real_sem_wait()(semaphore), semaphore, sizeof *semaphore, HERE);
    for (const int saved = errno; real_sem_trywait()(semaphore) != 0; wait_on(HERE), errno = saved)
        if (errno != EAGAIN) return -1;
    return at_lock(0, semaphore, sizeof *semaphore, HERE);
}

/* The C library keeps its barriers' counts to itself, so here are those that this process makes during a run. */
enum { BARRIERS = 64 };
static struct {
    const pthread_barrier_t *at;
    unsigned count, here, round;
} barriers[BARRIERS];

static int barrier_index(const pthread_barrier_t *at) {
    for (int k = 0; at && k < BARRIERS; k++)
        if (barriers[k].at == at) return k;
    return -1;
}

REAL(int, pthread_barrier_init, pthread_barrier_t *, const pthread_barrierattr_t *, unsigned)
PROGRAM_EXPORT int pthread_barrier_init(pthread_barrier_t *restrict at,
                                        const pthread_barrierattr_t *restrict attributes, unsigned count) {
    int shared = 0, k = barrier_index(at);
    const int error = at_lock(real_pthread_barrier_init()(at, attributes, count), at, sizeof *at, HERE);
    if (attributes) pthread_barrierattr_getpshared(attributes, &shared);
    if (error || shared || !process_joined() || here.area->options.free_running) return error;
    for (int other = 0; k < 0 && other < BARRIERS; other++)
        if (!barriers[other].at) k = other;
    if (k >= 0) barriers[k].at = at, barriers[k].count = count, barriers[k].here = 0;
    return 0;
}
REAL(int, pthread_barrier_destroy, pthread_barrier_t *)
PROGRAM_EXPORT int pthread_barrier_destroy(pthread_barrier_t *at) {
    const int k = barrier_index(at);
    if (k >= 0) barriers[k].at = NULL;
    return real_pthread_barrier_destroy()(at);
}
REAL(int, pthread_barrier_wait, pthread_barrier_t *)
PROGRAM_EXPORT int pthread_barrier_wait(pthread_barrier_t *at) {
    const int k = barrier_index(at);
    if (k < 0 || !self_here()) return at_lock(real_pthread_barrier_wait()(at), at, sizeof *at, HERE);
    const unsigned round = barriers[k].round;
    if (++barriers[k].here == barriers[k].count) {
        barriers[k].here = 0, barriers[k].round++;
        return PTHREAD_BARRIER_SERIAL_THREAD;
    }
    while (barriers[k].round == round) prog_yield(HERE);
    return 0;
}

#define EPOCH_S INT64_C(1767225600) /* when a run begins: the same in every run */

static struct timespec time_now(clockid_t clock) {
    const uint64_t now = clock_now();
    const int64_t from = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE ? EPOCH_S : 1000;
    return (struct timespec){from + (int64_t)(now / 1000000000), (long)(now % 1000000000)};
}

/* Whether a time has come, of whichever clock it is. */
static bool is_over(const struct timespec *until) {
    const struct timespec now = time_now(until->tv_sec >= EPOCH_S / 2 ? CLOCK_REALTIME : CLOCK_MONOTONIC);
    self->outside_looks++;
    return until->tv_sec < now.tv_sec || (until->tv_sec == now.tv_sec && until->tv_nsec <= now.tv_nsec);
}

/* Wait for a condition by giving the turn away once, until it comes back: others find the lock free. Signals wake no thread here: a
 * waiting program looks again whether its condition holds, as a wait may always end without a signal. */
int condition_waited(pthread_mutex_t *lock, const struct timespec *until, const void *pc) {
    if (until && is_over(until)) return ETIMEDOUT;
    at_lock(real_pthread_mutex_unlock()(lock), lock, sizeof *lock, pc);
    prog_yield(pc);
    step_turn(self);
    while (at_lock(real_pthread_mutex_trylock()(lock), lock, sizeof *lock, pc) == EBUSY) prog_yield(pc);
    pthread_testcancel();
    return 0;
}

/* Waits until a time of the run's own clock. */
#define UNTIL_OF(name, type, attempt, busy, over)                                               \
    REAL(int, name, type *, const struct timespec *)                                            \
    PROGRAM_EXPORT int name(type *restrict lock, const struct timespec *restrict until) {       \
        int error;                                                                              \
        if (!scheduled()) return at_lock(real_##name()(lock, until), lock, sizeof *lock, HERE); \
        while ((error = real_##attempt()(lock)) == (busy) && !is_over(until)) prog_yield(HERE); \
        return at_lock(error == (busy) ? (over) : error, lock, sizeof *lock, HERE);             \
    }
#define UNTIL(name, type, attempt) UNTIL_OF(name, type, attempt, EBUSY, ETIMEDOUT)
UNTIL_OF(mtx_timedlock, mtx_t, mtx_trylock, thrd_busy, thrd_timedout)
#define UNTIL_CLOCK(name, type, other)                                                                     \
    REAL(int, name, type *, clockid_t, const struct timespec *)                                            \
    PROGRAM_EXPORT int name(type *restrict lock, clockid_t clock, const struct timespec *restrict until) { \
        return scheduled() ? other(lock, until) : real_##name()(lock, clock, until);                       \
    }
UNTIL(pthread_mutex_timedlock, pthread_mutex_t, pthread_mutex_trylock)
UNTIL(pthread_rwlock_timedrdlock, pthread_rwlock_t, pthread_rwlock_tryrdlock)
UNTIL(pthread_rwlock_timedwrlock, pthread_rwlock_t, pthread_rwlock_trywrlock)
UNTIL_CLOCK(pthread_mutex_clocklock, pthread_mutex_t, pthread_mutex_timedlock)
UNTIL_CLOCK(pthread_rwlock_clockrdlock, pthread_rwlock_t, pthread_rwlock_timedrdlock)
UNTIL_CLOCK(pthread_rwlock_clockwrlock, pthread_rwlock_t, pthread_rwlock_timedwrlock)

/* A wait for a lock of this library: see hostlock.c. */
int program_lock_wait(pthread_mutex_t *lock, clockid_t clock, const struct timespec *until);
int program_lock_wait(pthread_mutex_t *lock, clockid_t clock, const struct timespec *until) {
    if (clock == CLOCK_REALTIME) return real_pthread_mutex_timedlock()(lock, until);
    return real_pthread_mutex_clocklock()(lock, clock, until);
}

REAL(int, sem_timedwait, sem_t *, const struct timespec *)
PROGRAM_EXPORT int sem_timedwait(sem_t *restrict semaphore, const struct timespec *restrict until) {
    if (!scheduled()) return real_sem_timedwait()(semaphore, until);
    for (const int saved = errno; real_sem_trywait()(semaphore) != 0; wait_on(HERE), errno = saved) {
        if (errno == EAGAIN && is_over(until)) errno = ETIMEDOUT;
        if (errno != EAGAIN) return -1;
    }
    return at_lock(0, semaphore, sizeof *semaphore, HERE);
}
UNTIL_CLOCK(sem_clockwait, sem_t, sem_timedwait)

/* Look up a condition's function by its version: there are two, and without a number the older one is found. */
static void *real_condition(const char *name) {
#if defined(__SANITIZE_THREAD__) /* the sanitizer's own has no version */
    return dlsym(RTLD_NEXT, name);
#else
    void *at = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    return at ? at : dlsym(RTLD_NEXT, name);
#endif
}

PROGRAM_EXPORT int pthread_cond_wait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict lock) {
    typedef int waits(pthread_cond_t *, pthread_mutex_t *);
    static waits *_Atomic real;
    if (scheduled()) return condition_waited(lock, NULL, HERE);
    if (!real) real = (waits *)(uintptr_t)real_condition("pthread_cond_wait");
    return real(condition, lock);
}

PROGRAM_EXPORT int pthread_cond_timedwait(pthread_cond_t *restrict condition, pthread_mutex_t *restrict lock,
                                          const struct timespec *restrict until) {
    typedef int waits(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
    static waits *_Atomic real;
    if (scheduled()) return condition_waited(lock, until, HERE);
    if (!real) real = (waits *)(uintptr_t)real_condition("pthread_cond_timedwait");
    return real(condition, lock, until);
}

REAL(int, pthread_cond_clockwait, pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *)
PROGRAM_EXPORT int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *lock, clockid_t clock,
                                          const struct timespec *until) {
    if (scheduled()) return condition_waited(lock, until, HERE);
    return real_pthread_cond_clockwait()(condition, lock, clock, until);
}

static uint64_t ns_of(const struct timespec *t) { return (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec; }

#if defined(__x86_64__)
/* Programs, and the C++ library for atomic waits, futures, latches and semaphores, wait for a word by a system call of their own. A wait
 * may always end early; one with a limit lasts until then, as its caller may count on that. In a search of every interleaving it sleeps,
 * which ends as unknown. In assembly, as syscall() has as many arguments as its number says: only those of a futex, of a mapping, of an
 * open, of a fork, and of what asynchronous.c follows, are looked at. */
long cxlemu_futex(long number, const uint32_t *word, long operation, long value, const struct timespec *limit,
                  long other, long third);
__asm__(".text\n.globl syscall\n.type syscall, @function\nsyscall:\n.cfi_startproc\n"
        "cmpq $202, %rdi\n je cxlemu_futex\n" /* SYS_futex */
        "cmpq $9, %rdi\n je cxlemu_maps\n" /* SYS_mmap */
        "cmpq $11, %rdi\n je cxlemu_maps\n cmpq $25, %rdi\n je cxlemu_maps\n" /* SYS_munmap, SYS_mremap */
        "cmpq $2, %rdi\n je cxlemu_opens\n cmpq $257, %rdi\n je cxlemu_opens\n" /* SYS_open, SYS_openat */
        "cmpq $437, %rdi\n je cxlemu_opens\n" /* SYS_openat2 */
        "leaq -56(%rdi), %rax\n cmpq $2, %rax\n jbe cxlemu_forks\n" /* SYS_clone, SYS_fork, SYS_vfork */
        "cmpq $435, %rdi\n je cxlemu_forks\n" /* SYS_clone3 */
        "cmpq $209, %rdi\n je cxlemu_asynchronous\n" /* SYS_io_submit */
        "leaq -425(%rdi), %rax\n cmpq $2, %rax\n jbe cxlemu_asynchronous\n" /* SYS_io_uring_setup, _enter, _register */
        ".globl cxlemu_system_call\n.hidden cxlemu_system_call\ncxlemu_system_call:\n"
        "movq %rdi, %rax\n movq %rsi, %rdi\n movq %rdx, %rsi\n movq %rcx, %rdx\n movq %r8, %r10\n movq %r9, %r8\n"
        "movq 8(%rsp), %r9\n syscall\n"
        "cmpq $-4095, %rax\n jae 1f\n ret\n1: movq %rax, %rdi\n jmp cxlemu_system_call_failed\n"
        ".cfi_endproc\n.size syscall, . - syscall\n");

__attribute__((used, visibility("hidden"))) long cxlemu_system_call_failed(long error) {
    errno = (int)-error;
    return -1;
}

static long word_awaited(const uint32_t *word, uint32_t value, const struct timespec *limit, bool relative,
                         const void *pc) {
    const uint64_t from = relative ? clock_now() : 0;
    while (__atomic_load_n(word, __ATOMIC_SEQ_CST) == value) {
        if (limit && (relative ? clock_now() - from >= ns_of(limit) : is_over(limit)))
            return cxlemu_system_call_failed(-ETIMEDOUT);
        prog_yield(pc);
        if (!limit) return 0;
    }
    return cxlemu_system_call_failed(-EAGAIN);
}

__attribute__((used, visibility("hidden"))) long cxlemu_futex(long number, const uint32_t *word, long operation,
                                                              long value, const struct timespec *limit, long other,
                                                              long third) {
    const int asked = scheduled() && !here.area->options.every ? (int)operation & FUTEX_CMD_MASK : -1;
    if (asked != FUTEX_WAIT && asked != FUTEX_WAIT_BITSET)
        return cxlemu_system_call(number, word, operation, value, limit, other, third);
    return word_awaited(word, (uint32_t)value, limit, asked == FUTEX_WAIT, HERE);
}
#endif

/* --- time ------------------------------------------------------------------------------------------------------------ */

REAL(int, sched_yield, void)
PROGRAM_EXPORT int sched_yield(void) {
    if (!scheduled()) return real_sched_yield()();
    prog_yield(HERE);
    return 0;
}

REAL(int, nanosleep, const struct timespec *, struct timespec *)
PROGRAM_EXPORT int nanosleep(const struct timespec *how_long, struct timespec *rest) {
    if (!scheduled()) return real_nanosleep()(how_long, rest);
    wait_ns(ns_of(how_long), HERE);
    return 0;
}

REAL(int, clock_nanosleep, clockid_t, int, const struct timespec *, struct timespec *)
PROGRAM_EXPORT int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *rest) {
    if (!scheduled()) return real_clock_nanosleep()(clock, flags, until, rest);
    const struct timespec now = time_now(clock);
    const uint64_t from = flags & TIMER_ABSTIME ? ns_of(&now) : 0, to = ns_of(until);
    wait_ns(to > from ? to - from : 0, HERE);
    return 0;
}

REAL(int, usleep, useconds_t)
PROGRAM_EXPORT int usleep(useconds_t us) {
    if (!scheduled()) return real_usleep()(us);
    wait_ns((uint64_t)us * 1000, HERE);
    return 0;
}

REAL(unsigned, sleep, unsigned)
PROGRAM_EXPORT unsigned sleep(unsigned seconds) {
    if (!scheduled()) return real_sleep()(seconds);
    wait_ns((uint64_t)seconds * 1000000000u, HERE);
    return 0;
}

REAL(int, clock_gettime, clockid_t, struct timespec *)

/* Timers run in the system's time: while there may be one, no state of this process comes twice. */
static bool has_timers;
REAL(int, timer_settime, timer_t, int, const struct itimerspec *, struct itimerspec *)
PROGRAM_EXPORT int timer_settime(timer_t timer, int flags, const struct itimerspec *restrict value,
                                 struct itimerspec *restrict before) {
    has_timers = true;
    return real_timer_settime()(timer, flags, value, before);
}
uint64_t timers_left(void) {
    struct itimerval its = {0};
    struct timespec now = {0};
    getitimer(ITIMER_REAL, &its);
    if (has_timers) real_clock_gettime()(CLOCK_MONOTONIC, &now);
    return ns_of(&now) + (uint64_t)its.it_value.tv_sec * 1000000 + (uint64_t)its.it_value.tv_usec;
}

/* Let a look at the clock take time as well, so that a loop that waits for it ends. */
static void look_at_clock(void) { here.area->clock_ns += 100; }

PROGRAM_EXPORT int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!scheduled() || clock == CLOCK_PROCESS_CPUTIME_ID || clock == CLOCK_THREAD_CPUTIME_ID)
        return real_clock_gettime()(clock, now);
    look_at_clock();
    *now = time_now(clock);
    return 0;
}

REAL(int, gettimeofday, struct timeval *, void *)
PROGRAM_EXPORT int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    if (!scheduled()) return real_gettimeofday()(now, zone);
    look_at_clock();
    const struct timespec t = time_now(CLOCK_REALTIME);
    *now = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
    return 0;
}

REAL(time_t, time, time_t *)
PROGRAM_EXPORT time_t time(time_t *now) {
    if (!scheduled()) return real_time()(now);
    look_at_clock();
    const time_t t = time_now(CLOCK_REALTIME).tv_sec;
    if (now) *now = t;
    return t;
}
