/* Processes: a program's children take part in the run, and their parents wait for them in turns. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "real.h"
#include "waits.h"

enum { CHILDREN = 64 };
static pid_t children[CHILDREN]; /* made by fork, and taking part in the run */
static int child_count;

/* Return a child that has made its last step, and still runs its last instructions; 0 where there is none. */
static pid_t ended_child(pid_t wanted) {
    for (int k = 0; k < child_count; k++)
        if ((wanted <= 0 || children[k] == wanted) && !turn_takes_part(children[k])) return children[k];
    return 0;
}

/* Return whether there is such a child, and its threads; or those of any child. */
static bool is_child(pid_t wanted, thread_set *threads) {
    bool any = false;
    for (int k = 0; k < child_count; k++) {
        if (wanted > 0 && children[k] != wanted) continue;
        any = true;
        for (int thread = 0; thread < here.area->thread_count; thread++)
            if (here.area->threads[thread].pid == children[k]) set_add(threads, thread);
    }
    return any;
}

REAL(pid_t, waitpid, pid_t, int *, int)
/* Wait as the system does; a child that has ended is none any more. */
static pid_t child_awaited(pid_t child, int *status, int options) {
    int how = 0;
    const pid_t found = real_waitpid()(child, &how, options);
    for (int k = 0; found > 0 && !WIFSTOPPED(how) && !WIFCONTINUED(how) && k < child_count; k++)
        if (children[k] == found) children[k--] = children[--child_count];
    if (found > 0 && status) *status = how;
    return found;
}

static pid_t child_ended(pid_t child, int *status, int options, const void *pc) {
    pid_t found;
    if (self) self->outside_looks += (options & WNOHANG) != 0;
    if (!scheduled() || options & WNOHANG) return child_awaited(child, status, options);
    for (thread_set ends = {0}; is_child(child, &ends) && !(options & (WUNTRACED | WCONTINUED)); wait_for(&ends, pc))
        if ((found = ended_child(child))) return child_awaited(found, status, options);
    for (; (found = child_awaited(child, status, options | WNOHANG)) == 0; wait_on(pc)) self->outside_looks++;
    return found;
}
PROGRAM_EXPORT pid_t waitpid(pid_t child, int *status, int options) {
    return child_ended(child, status, options, HERE);
}
PROGRAM_EXPORT pid_t wait(int *status) { return child_ended(-1, status, 0, HERE); }

REAL(pid_t, fork, void)
PROGRAM_EXPORT pid_t fork(void) {
    if (!self || self->inside) return real_fork()();
    const int maker = self->thread;
    const int thread = turn_new_thread(here.host, here.area->threads[maker].command, 0);
    const pid_t child = real_fork()();
    if (child == 0 && thread >= 0) {
        child_count = 0;
        self_forget();
        self_begin(thread, STEP_PROCESS_START, maker);
    } else if (child < 0 && thread >= 0) {
        turn_without(thread, THREAD_ENDED);
    } else if (thread >= 0 && child_count < CHILDREN) {
        here.area->threads[thread].pid = child, children[child_count++] = child;
    }
    return child;
}

/* A child of vfork would share our variables with its parent. */
PROGRAM_EXPORT pid_t vfork(void) { return fork(); }
/* The C library's would not come here. */
PROGRAM_EXPORT pid_t _Fork(void) { return fork(); }
PROGRAM_EXPORT int daemon(int stays, int keeps_files) {
    const pid_t child = fork();
    if (child != 0) return child < 0 ? -1 : (_exit(0), 0);
    if (setsid() < 0 || (!stays && chdir("/") != 0)) return -1;
    const int none = keeps_files ? -1 : open("/dev/null", O_RDWR);
    for (int file = 0; none >= 0 && file <= STDERR_FILENO; file++) dup2(none, file);
    if (none > STDERR_FILENO) close(none);
    return 0;
}

REAL(int, openpty, int *, int *, char *, const struct termios *, const struct winsize *)
REAL(int, login_tty, int)
PROGRAM_EXPORT pid_t forkpty(int *parents, char *name, const struct termios *how, const struct winsize *size) {
    int childs;
    if (real_openpty()(parents, &childs, name, how, size) != 0) return -1;
    const pid_t child = fork();
    if (child == 0 && real_login_tty()(childs) != 0) _exit(1);
    close(child == 0 ? *parents : childs);
    if (child < 0) close(*parents);
    return child;
}

/* End a program that asks for a child which would not take part, such as one with memory or process numbers of its own. */
static void only_forks(const char *call, unsigned long long flags, unsigned long long followed) {
    if (flags == followed) return;
    fprintf(stderr, "cxlemu: %s with the flags 0x%llx is not followed; fork and pthread_create are\n", call, flags);
    _exit(2);
}

REAL(int, unshare, int)
PROGRAM_EXPORT int unshare(int flags) {
    if (self && flags & CLONE_NEWPID) only_forks("unshare", (unsigned)flags, 0);
    return real_unshare()(flags);
}

REAL(int, clone, int (*)(void *), void *, int, void *, ...)
PROGRAM_EXPORT int clone(int (*function)(void *), void *stack, int flags, void *given, ...) {
    va_list rest;
    va_start(rest, given);
    pid_t *parents = va_arg(rest, pid_t *);
    void *variables = va_arg(rest, void *);
    pid_t *childs = va_arg(rest, pid_t *);
    va_end(rest);
    if (!self || self->inside) return real_clone()(function, stack, flags, given, parents, variables, childs);
    if (flags != (CLONE_VM | CLONE_VFORK | SIGCHLD)) only_forks("clone", (unsigned)flags, SIGCHLD);
    const pid_t child = fork();
    if (child == 0) _exit(function(given));
    return child;
}

#if defined(__x86_64__)
/* The same as system calls: see syscall() in threads.c. */
long cxlemu_system_call(long number, ...);
long cxlemu_forks(long number, long flags, long stack, long parents, long childs, long variables);
__attribute__((used, visibility("hidden"))) long cxlemu_forks(long number, long flags, long stack, long parents,
                                                              long childs, long variables) {
    const struct clone_args *its = number == SYS_clone3 ? (const struct clone_args *)flags : NULL; /* and their size */
    if ((its || number == SYS_clone) && (!self || self->inside))
        return cxlemu_system_call(number, flags, stack, parents, childs, variables, 0L);
    if (its) only_forks("clone3", its->flags | its->exit_signal, SIGCHLD);
    if (number == SYS_clone) only_forks("clone", (unsigned long)flags, SIGCHLD);
    return fork();
}
#endif

__attribute__((destructor)) static void process_ends(void) { self_end(STEP_PROCESS_END); }

PROGRAM_EXPORT _Noreturn void _exit(int status) {
    process_ends_with(status);
    self_end(STEP_PROCESS_END);
    syscall(SYS_exit_group, status);
    for (;;) pause();
}
PROGRAM_EXPORT _Noreturn void _Exit(int status) { _exit(status); }
