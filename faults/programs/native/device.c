/* Copies by devices, as cxl.h has them: each is a thread of its host for as long as it lasts, which takes its turn when the schedule
 * chooses it. A device snoops its host's cache: it loads as the host does, and its stores stay there or, with --dma-writes memory,
 * are on their way to the pool. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "real.h"
#include "self.h"

enum { COPIES = 64 }; /* of a process at a time */
#define HERE __builtin_return_address(0)

typedef struct {
    void *to;
    const void *from;
    size_t nbytes;
    const void *pc; /* where the program asked for it */
    int thread, maker; /* thread + 1, which later copies use as well; 0: there is none yet */
    uint64_t event; /* 0: there is no copy here */
    pthread_t handle;
    line_list posted; /* lines that its host's next fence has to await */
} device_copy;

static device_copy copies[COPIES];
static uint64_t last_event;

REAL(void *, memmove, void *, const void *, size_t)

/* This thread, if the program runs under `cxlemu exec`. A child of fork has none of its parent's copies. */
static program_self *taking_part(void) {
    static pid_t owner;
    program_self *me = process_join() ? self_here() : NULL;
    if (me && owner != getpid()) owner = getpid(), memset(copies, 0, sizeof copies);
    return me;
}

static device_copy *copy_of(uint64_t event) {
    for (int k = 0; event && k < COPIES; k++)
        if (copies[k].event == event) return &copies[k];
    return NULL;
}

/* --- the device ------------------------------------------------------------------------------------------------------ */

/* Where `self` is NULL its process is ending. */
static void carry(device_copy *c) {
    uint8_t *bytes = malloc(c->nbytes);
    if (!bytes) abort();
    if (self) prog_load(c->from, c->nbytes, c->pc);
    if (self) real_memmove()(bytes, reachable(c->from), c->nbytes);
    if (self) prog_store(c->to, c->nbytes, c->pc);
    if (self) real_memmove()(reachable(c->to), bytes, c->nbytes);
    free(bytes);
    if (!self || !here.area->options.dma_to_memory || !prog_in_pool(c->to, c->nbytes)) return;
    prog_flush_range(c->to, c->nbytes, FLUSH_DROP, c->pc);
    if (!self) return;
    c->posted = self->flushed;
    self->flushed = (line_list){0};
}

static void *begin(void *of) {
    device_copy *c = of;
    self_begin(c->thread - 1, STEP_THREAD_START, c->maker);
    carry(c);
    self_end(STEP_THREAD_END);
    return NULL;
}

/* --- the program ----------------------------------------------------------------------------------------------------- */

REAL(int, pthread_create, pthread_t *, const pthread_attr_t *, void *(*)(void *), void *)
REAL(int, pthread_join, pthread_t, void **)

/* Take a place for a copy, in a step of the thread that asks for it; NULL where there is none. */
static device_copy *new_copy(const program_self *me) {
    program_thread *threads = here.area->threads;
    device_copy *c = NULL;
    for (int k = 0; k < COPIES && !(c && c->thread); k++) /* rather one that has a thread */
        if (!copies[k].event && (!c || copies[k].thread)) c = &copies[k];
    if (c && c->thread) turn_again(c->thread - 1);
    else if (c) c->thread = turn_new_thread(here.host, threads[me->thread].command, threads[me->thread].process) + 1;
    if (!c || !c->thread) return NULL;
    threads[c->thread - 1].pid = getpid(); /* its process may end before it has begun */
    return c;
}

PROGRAM_EXPORT void cxlemu_cxl_device_copy(void *to, const void *from, size_t nbytes, uint64_t *event) {
    program_self *me = taking_part();
    pool_range r;
    const bool into_pool = range_in_pool(to, nbytes, &r);
    if (copy_of(*event)) program_misused("cxl_device_copy: nobody has seen this event's last copy (cxl_device_wait)\n");
    *event = 0;
    if (!nbytes) return;
    if (!me || !step_begin(me)) {
        real_memmove()(reachable(to), reachable(from), nbytes);
        return;
    }
    device_copy *c = new_copy(me);
    if (c) {
        *event = c->event = ++last_event;
        c->to = to, c->from = from, c->nbytes = nbytes, c->pc = HERE, c->maker = me->thread;
        here.area->device_copies += into_pool;
        step_other(me, STEP_DEVICE_COPY, c->thread - 1, into_pool ? &r : NULL, HERE);
    }
    step_end(me);
    if (!c) program_misused("cxl_device_copy: more than %d copies whose events nobody has seen\n", COPIES);
    if (real_pthread_create()(&c->handle, NULL, begin, c))
        program_misused("cxl_device_copy: there is no thread for another copy\n");
}

/* The copy has ended: its bytes are those that this host's processors see, and its host's fences await what it has posted. */
static void see(program_self *me, device_copy *c, const void *pc) {
    const int thread = c->thread;
    real_pthread_join()(c->handle, NULL);
    if (!step_begin(me)) return;
    step_other(me, STEP_DEVICE_SEEN, thread - 1, NULL, pc);
    for (int64_t k = 0; k < c->posted.count; k++)
        list_add(&me->flushed, c->posted.items[k].pool, c->posted.items[k].line);
    free(c->posted.items);
    *c = (device_copy){.thread = thread};
    step_end(me);
}

/* Whether a copy is still under way. */
static bool lasts(const program_self *me, uint64_t event) {
    const device_copy *c = me ? copy_of(event) : NULL;
    return c && turn_state(c->thread - 1) != THREAD_ENDED;
}

static int has_ended(program_self *me, uint64_t *event, const void *pc) {
    device_copy *c = me ? copy_of(*event) : NULL;
    if (c) see(me, c, pc);
    *event = 0;
    return 1;
}

PROGRAM_EXPORT int cxlemu_cxl_device_query(uint64_t *event) {
    program_self *me = taking_part();
    if (!lasts(me, *event)) return has_ended(me, event, HERE);
    prog_yield();
    return 0;
}

static void await(const program_self *me, uint64_t event) {
    while (lasts(me, event)) {
        prog_yield();
        if (lasts(me, event)) cycle_round(me);
    }
}

PROGRAM_EXPORT void cxlemu_cxl_device_wait(uint64_t *event) {
    program_self *me = taking_part();
    await(me, *event);
    has_ended(me, event, HERE);
}

void devices_await(void) {
    const program_self *me = last_event ? taking_part() : NULL;
    for (int k = 0; me && k < COPIES; k++) await(me, copies[k].event);
}
