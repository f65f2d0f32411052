/* Keeps the handlers that a program sets for SIGTRAP and SIGSEGV, and calls them for signals that are not ours. The program
 * cannot block these two. Its other handlers run between steps. */
#define _GNU_SOURCE
#include "signals.h"

#include "real.h"
#include "self.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

REAL(int, sigaction, int, const struct sigaction *, struct sigaction *)
REAL(int, sigprocmask, int, const sigset_t *, sigset_t *)
REAL(int, pthread_sigmask, int, const sigset_t *, sigset_t *)

static sigset_t ours; /* SIGTRAP; and SIGSEGV, where nobody announces accesses */
static struct sigaction of_program[NSIG];

static bool is_ours(int number) { return sigismember(&ours, number) == 1; }
static struct sigaction *kept(int number) { return &of_program[number]; }

void signals_take(int number, const struct sigaction *action) {
    real_sigaction()(number, action, kept(number));
    sigaddset(&ours, number);
    real_pthread_sigmask()(SIG_UNBLOCK, &ours, NULL);
    if (number == SIGTRAP && kept(number)->sa_handler != SIG_DFL)
        fprintf(stderr, "cxlemu: the program handles SIGTRAP itself: it gets those that are no flush or fence\n");
}

void signals_pass_on(int number, siginfo_t *info, void *context) {
    const struct sigaction *action = kept(number);
    if (action->sa_flags & SA_SIGINFO) {
        action->sa_sigaction(number, info, context);
    } else if (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN) {
        action->sa_handler(number);
    } else if (action->sa_handler == SIG_DFL || info->si_code > 0) { /* a fault cannot be ignored */
        const struct sigaction standard = {.sa_handler = SIG_DFL};
        real_sigaction()(number, &standard, NULL);
        syscall(SYS_tgkill, getpid(), (pid_t)syscall(SYS_gettid), number); /* arrives when the handler has ended */
    }
}

_Static_assert(sizeof(siginfo_t) == SIGNAL_BYTES, "a signal is kept as a whole");

/* --- between steps ------------------------------------------------------------------------------------------------------ */

/* Accesses in the middle of a step are no steps: keep the signal until its end. */
static void on_signal(int number, siginfo_t *info, void *context) {
    if (!self || !self->inside) signals_pass_on(number, info, context);
    else if (self->late_count < LATE_SIGNALS)
        memcpy(self->late[self->late_count++], info, sizeof *info), turn_looks(self->thread);
}

void signals_late(program_self *me) {
    while (me->late_count) {
        siginfo_t first;
        memcpy(&first, me->late[0], sizeof first);
        memmove(me->late[0], me->late[1], (size_t)--me->late_count * SIGNAL_BYTES);
        syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)syscall(SYS_gettid), first.si_signo, &first);
    }
}

static bool waits(int number, const struct sigaction *action) {
    static const int at_once[] = {SIGSEGV, SIGTRAP, SIGBUS, SIGFPE, SIGILL, SIGSYS, SIGABRT};
    for (size_t k = 0; k < sizeof at_once / sizeof *at_once; k++)
        if (number == at_once[k]) return false;
    return number > 0 && number < NSIG && action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN &&
           !(action->sa_flags & (int)SA_RESETHAND);
}

/* --- in place of the C library's ---------------------------------------------------------------------------------------- */

static void leave_out(sigset_t *set) {
    if (is_ours(SIGTRAP)) sigdelset(set, SIGTRAP);
    if (is_ours(SIGSEGV)) sigdelset(set, SIGSEGV);
}

PROGRAM_EXPORT int sigaction(int number, const struct sigaction *restrict action, struct sigaction *restrict before) {
    struct sigaction changed;
    if (is_ours(number)) {
        if (number == SIGTRAP && action && action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN)
            fprintf(stderr, "cxlemu: the program handles SIGTRAP itself: it gets those that are no flush or fence\n");
        if (before) *before = *kept(number);
        if (action) *kept(number) = *action;
        return 0;
    }
    const struct sigaction old = number > 0 && number < NSIG ? *kept(number) : (struct sigaction){0};
    if (action) {
        changed = *action;
        leave_out(&changed.sa_mask);
        if (waits(number, action))
            *kept(number) = *action, changed.sa_sigaction = on_signal, changed.sa_flags |= SA_SIGINFO;
    }
    const int error = real_sigaction()(number, action ? &changed : NULL, before);
    if (!error && before && before->sa_sigaction == on_signal) *before = old;
    return error;
}

PROGRAM_EXPORT sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction action = {.sa_flags = SA_RESTART}, before;
    action.sa_handler = handler;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, number);
    return sigaction(number, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}

PROGRAM_EXPORT int pthread_sigmask(int how, const sigset_t *restrict set, sigset_t *restrict before) {
    sigset_t changed;
    if (!set || how == SIG_UNBLOCK) return real_pthread_sigmask()(how, set, before);
    changed = *set;
    leave_out(&changed);
    return real_pthread_sigmask()(how, &changed, before);
}

PROGRAM_EXPORT int sigprocmask(int how, const sigset_t *restrict set, sigset_t *restrict before) {
    sigset_t changed;
    if (!set || how == SIG_UNBLOCK) return real_sigprocmask()(how, set, before);
    changed = *set;
    leave_out(&changed);
    return real_sigprocmask()(how, &changed, before);
}

/* --- timers whose end calls a function ---------------------------------------------------------------------------------- */

/* The C library calls it in a thread of its own that blocks all signals; an access to a pool may need ours. */
typedef struct {
    void (*notify)(union sigval);
    union sigval value;
} notification;

static void notified(union sigval of) {
    const notification *its = of.sival_ptr;
    real_pthread_sigmask()(SIG_UNBLOCK, &ours, NULL);
    its->notify(its->value);
}

typedef int creates(clockid_t, struct sigevent *, timer_t *);
static creates *_Atomic real_timer_create;

__attribute__((constructor(101))) static void look_up_timer_create(void) {
    void *at = dlvsym(RTLD_NEXT, "timer_create", "GLIBC_2.3.3"); /* the older one has other timers */
    real_timer_create = (creates *)(uintptr_t)(at ? at : dlsym(RTLD_NEXT, "timer_create"));
}

PROGRAM_EXPORT int timer_create(clockid_t clock, struct sigevent *restrict event, timer_t *restrict timer) {
    if (!event || event->sigev_notify != SIGEV_THREAD) return real_timer_create(clock, event, timer);
    notification *its = malloc(sizeof *its); /* it stays: nothing says when the last call has ended */
    if (!its) return -1;
    *its = (notification){event->sigev_notify_function, event->sigev_value};
    struct sigevent changed = *event;
    changed.sigev_notify_function = notified, changed.sigev_value.sival_ptr = its;
    return real_timer_create(clock, &changed, timer);
}
