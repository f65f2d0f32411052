/* Processes: a program's children take part in the run, and their parents wait for them in turns. */
#define _GNU_SOURCE
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "real.h"
#include "waits.h"

enum { CHILDREN = 64 };
static pid_t children[CHILDREN]; /* made by fork, and taking part in the run */
static int child_count;

static bool takes_part(pid_t child) {
    for (int k = 0; k < here.area->thread_count; k++)
        if (here.area->threads[k].pid == child && turn_state(k) != THREAD_ENDED) return true;
    return false;
}

/* Return a child that has made its last step, and still runs its last instructions; 0 where there is none. */
static pid_t ended_child(pid_t wanted) {
    for (int k = 0; k < child_count; k++)
        if ((wanted <= 0 || children[k] == wanted) && !takes_part(children[k])) return children[k];
    return 0;
}

static bool is_child(pid_t wanted) {
    for (int k = 0; k < child_count; k++)
        if (wanted <= 0 || children[k] == wanted) return true;
    return false;
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

PROGRAM_EXPORT pid_t waitpid(pid_t child, int *status, int options) {
    pid_t found;
    if (self) self->outside_looks += (options & WNOHANG) != 0;
    if (!scheduled() || options & WNOHANG) return child_awaited(child, status, options);
    while (is_child(child) && !(options & (WUNTRACED | WCONTINUED))) {
        if ((found = ended_child(child))) return child_awaited(found, status, options);
        wait_on();
    }
    for (; (found = child_awaited(child, status, options | WNOHANG)) == 0; wait_on()) self->outside_looks++;
    return found;
}
PROGRAM_EXPORT pid_t wait(int *status) { return waitpid(-1, status, 0); }

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

__attribute__((destructor)) static void process_ends(void) { self_end(STEP_PROCESS_END); }

PROGRAM_EXPORT _Noreturn void _exit(int status) {
    process_ends_with(status);
    self_end(STEP_PROCESS_END);
    syscall(SYS_exit_group, status);
    for (;;) pause();
}
PROGRAM_EXPORT _Noreturn void _Exit(int status) { _exit(status); }

/* exec: the next program may open the pool again, or never, so the others do not wait for it. */
static void replaced(void) {
    if (!self || self->inside) return;
    program_self *me = self;
    devices_await();
    if (!step_begin(me)) return;
    step_other(me, STEP_PROCESS_END, -1, NULL, NULL);
    step_end(me);
    turn_without(me->thread, THREAD_OUTSIDE);
}

REAL(int, execve, const char *, char *const[], char *const[])
PROGRAM_EXPORT int execve(const char *path, char *const arguments[], char *const environment[]) {
    replaced();
    return real_execve()(path, arguments, environment);
}
PROGRAM_EXPORT int execv(const char *path, char *const arguments[]) { return execve(path, arguments, environ); }
REAL(int, execvp, const char *, char *const[])
PROGRAM_EXPORT int execvp(const char *file, char *const arguments[]) {
    replaced();
    return real_execvp()(file, arguments);
}
