/* The processes that take part in a run, as they have opened a pool, and their threads. */
#define _GNU_SOURCE
#include "pages.h"
#include "self.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

_Thread_local program_self *self __attribute__((tls_model("initial-exec")));

static bool joined;
static int joined_pid, exit_status;

bool process_joined(void) { return joined; }

/* --- processes ------------------------------------------------------------------------------------------------------- */

static int number_in(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : -1;
}

static int new_process(void) {
    host_lock_take(&here.area->turns, 60);
    const int process = ++here.area->process_count;
    host_lock_release(&here.area->turns);
    return process;
}

/* Return the thread that the driver has made for the command, if no other process has taken it, or the one that this process
 * had before it called exec; -1 where there is neither. */
static int thread_of_command(void) {
    program_area *a = here.area;
    const int thread = number_in("CXLEMU_PROGRAM_THREAD");
    for (int k = 0; k < a->thread_count; k++)
        if (a->threads[k].pid == getpid() && turn_state(k) == THREAD_OUTSIDE) return k;
    if (thread < 0 || thread >= a->thread_count) return -1;
    int32_t nobody = 0;
    return __atomic_compare_exchange_n(&a->threads[thread].pid, &nobody, getpid(), false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST)
               ? thread
               : -1;
}

void process_ends_with(int status) { exit_status = status; }

static int maker_of_commands(void) { return process_server() ? process_server() : here.area->driver; }

/* Return whether this process is a command's own. What it leaves behind becomes a child of the same process as well, but in a group of
 * the command's or in a session of its own. */
static bool is_command(void) {
    return getppid() == maker_of_commands() && getpid() == getpgrp() && getsid(0) == getsid(here.area->driver);
}

static void note_status(int status, void *unused) {
    (void)unused;
    process_ends_with(status);
}

bool process_join(void) {
    static int tried; /* the process that has tried: a child of fork has its parent's variables */
    const char *folder = getenv("CXLEMU_PROGRAM_RUN");
    if (joined || !folder || tried == getpid()) return joined;
    if (number_in("CXLEMU_PROGRAM_SERVER") >= 0) _exit(2); /* before main: what it opens, its forks would share */
    tried = getpid();
    const int saved = errno, host = number_in("CXLEMU_PROGRAM_HOST");
    if (!here.area && (host < 0 || host >= PROGRAM_HOSTS || !area_attach(folder, host))) {
        fprintf(stderr, "cxlemu: the run in %s is gone or of another version\n", folder);
        _exit(2);
    }
    joined = true, joined_pid = getpid();
    if (getppid() == maker_of_commands()) prctl(PR_SET_PDEATHSIG, SIGKILL);
    on_exit(note_status, NULL);
    room_watch();
    watcher_choose();
    code_follow();
    self_begin(thread_of_command(), STEP_PROCESS_START, -1);
    errno = saved;
    return true;
}

/* --- threads --------------------------------------------------------------------------------------------------------- */

void too_many_threads(void) {
    fprintf(stderr, "cxlemu: more than %d threads take part in the run\n", PROGRAM_THREADS);
    _exit(2);
}

static pthread_key_t at_end;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
enum { ROUNDS = PTHREAD_DESTRUCTOR_ITERATIONS - 1 }; /* in the last one a sanitizer gives up what it has for a thread */
static intptr_t rounds[ROUNDS + 1]; /* which of them: the key's value */

/* A thread has ended when the destructors of its variables have run, which may still access a pool. */
static void thread_ends(void *round) {
    const intptr_t *next = (intptr_t *)round + 1;
    if (next - rounds < ROUNDS) pthread_setspecific(at_end, next);
    else self_end(STEP_THREAD_END);
}

static void make_key(void) { pthread_key_create(&at_end, thread_ends); }

/* Zeros in pages that are made where they are first used, which is in few of them. */
static program_self *make_self(void) {
    const long at = syscall(SYS_mmap, NULL, sizeof(program_self), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                            -1, 0L);
    return at == -1 ? NULL : (program_self *)at;
}

void self_begin(int thread, int start_kind, int other) {
    program_area *a = here.area;
    const int process = start_kind == STEP_PROCESS_START ? new_process() : a->threads[other].process;
    if (thread < 0) thread = turn_new_thread(here.host, number_in("CXLEMU_PROGRAM_COMMAND"), process);
    program_self *me = self ? self : make_self();
    if (thread < 0 || !me) too_many_threads();
    program_thread *t = &a->threads[thread];
    t->pid = getpid(), t->tid = (int)syscall(SYS_gettid), t->process = (uint16_t)process;
    t->main = start_kind == STEP_PROCESS_START;
    pin_begin(thread, other);
    me->thread = thread;
    self = me;
    pthread_once(&key_once, make_key);
    pthread_setspecific(at_end, rounds);
    cycle_thread(me, true);
    if (!step_begin(me)) return;
    if (t->main && program_watcher_now && program_watcher_now->begin) program_watcher_now->begin(process == 1);
    step_other(me, start_kind, other, NULL, NULL);
    step_end(me);
}

program_self *self_here(void) {
    if (self || !joined || joined_pid != getpid()) return self;
    for (int k = 0; k < here.area->thread_count; k++) /* a thread from before its process opened the pool */
        if (here.area->threads[k].pid == getpid()) {
            self_begin(-1, STEP_THREAD_START, k);
            break;
        }
    return self;
}

void self_forget(void) {
    mappings_after_fork(), pages_after_fork();
    if (!self) return;
    self->flushed.count = self->lingering.count = self->nt_count = 0;
    self->inside = self->nt_shared = false;
    joined_pid = getpid();
}

void self_end(int end_kind) {
    program_self *me = self;
    if (me && end_kind == STEP_PROCESS_END) devices_await();
    if (!me || !step_begin(me)) return;
    for (int pool = 0; pool < here.area->options.pools;
         pool++) /* a thread's non-temporal stores arrive at some time, fence or not */
        posted_land(me, (mover){here.host, (uint16_t)me->thread, BY_NATURE}, (pool_lines){pool, 0, INT64_MAX});
    if (end_kind == STEP_PROCESS_END) silent_stores_everywhere(me);
    step_other(me, end_kind, -1, NULL, NULL);
    const int thread = me->thread, process = here.area->threads[thread].process;
    if (end_kind == STEP_PROCESS_END)
        for (int k = 0; k < here.area->thread_count; k++) {
            if (k == thread || here.area->threads[k].process != process) continue;
            if (turn_state(k) == THREAD_ENDED) continue;
            store_told(k);
            turn_without(k, THREAD_ENDED);
        }
    /* A command that fails ends the run here, so that it ends at the same step each time. */
    if (end_kind == STEP_PROCESS_END && exit_status && is_command()) turn_stop(COMMAND_FAILED, thread);
    step_end(me);
    self = NULL;
    cycle_thread(me, false);
    posted_free(me);
    syscall(SYS_munmap, me, sizeof *me);
    turn_without(thread, THREAD_ENDED);
}
