/* Copies by devices, as cxl.h has them: each is a thread of its host for as long as it lasts, which takes its turn when the schedule
 * chooses it. A device snoops its host's cache: it loads as the host does, and its stores stay there or, with --dma-writes memory,
 * are on their way to the pool. */
#define _GNU_SOURCE
#include "device.h"

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
    const void *from; /* NULL: `byte` again and again */
    int byte;
    size_t nbytes;
    uint64_t queue;
    queue_place behind; /* a place of another queue */
    const void *pc; /* where the program asked for it */
    int thread, maker; /* thread + 1, which later copies use as well; 0: there is none yet */
    uint64_t event; /* 0: there is no copy here */
    bool begun, done; /* it begins when those before it are done */
    pthread_t handle;
    line_list posted; /* lines that its host's next fence has to await */
} device_copy;

static device_copy copies[COPIES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* with --free */
static _Atomic uint64_t last_event;

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

/* Whether a copy is still under way. */
static bool lasts(const program_self *me, uint64_t event) {
    const device_copy *c = me ? copy_of(event) : NULL;
    return c && !(c->begun && turn_state(c->thread - 1) == THREAD_ENDED);
}

static void await(const program_self *me, uint64_t event) {
    while (self && lasts(me, event)) {
        prog_yield(NULL);
        if (self && lasts(me, event)) cycle_round(me);
    }
}

/* --- queues ---------------------------------------------------------------------------------------------------------- */

static bool blocks(uint64_t queue) { return queue >= QUEUES_FROM && queue & QUEUE_BLOCKS; }

/* The copies in a place's own queue and in those that its queue waits for, as bits. */
static uint64_t ahead_of(queue_place at) {
    uint64_t found = 0;
    for (int k = 0; k < COPIES; k++) {
        const uint64_t queue = copies[k].queue;
        const bool waits = queue == at.queue || at.queue == QUEUE_ALL || (queue == QUEUE_DEFAULT && blocks(at.queue)) ||
                           (at.queue == QUEUE_DEFAULT && blocks(queue));
        if (copies[k].event && copies[k].event < at.number && queue && waits) found |= UINT64_C(1) << k;
    }
    return found;
}

static uint64_t ahead_of_copy(const device_copy *c) {
    return ahead_of((queue_place){c->queue, c->event}) | ahead_of(c->behind);
}

/* These copies, and all that have to end before one of them. */
static uint64_t with_those_before(uint64_t found) {
    for (uint64_t done = 0, next; (next = found & ~done);) {
        done |= next & -next;
        found |= ahead_of_copy(&copies[__builtin_ctzll(next)]);
    }
    return found;
}

static const device_copy *one_that_lasts(const program_self *me, uint64_t among) {
    for (; among; among &= among - 1) {
        const device_copy *c = &copies[__builtin_ctzll(among)];
        if (lasts(me, c->event)) return c;
    }
    return NULL;
}

bool device_is_before(int first, int then) {
    for (int k = 0; k < COPIES; k++) {
        if (!copies[k].event || copies[k].thread != then + 1) continue;
        for (uint64_t before = with_those_before(ahead_of_copy(&copies[k])); before; before &= before - 1)
            if (copies[__builtin_ctzll(before)].thread == first + 1) return true;
    }
    return false;
}

/* --- the device ------------------------------------------------------------------------------------------------------ */

/* Where `self` is NULL its process is ending. */
static void carry(device_copy *c) {
    if (!c->nbytes) return;
    uint8_t *bytes = malloc(c->nbytes);
    if (!bytes) abort();
    if (!c->from) memset(bytes, c->byte, c->nbytes);
    if (self && c->from) prog_load(c->from, c->nbytes, c->pc);
    if (self && c->from) real_memmove()(bytes, reachable(c->from), c->nbytes);
    if (self) prog_store(c->to, c->nbytes, c->pc);
    if (self) real_memmove()(reachable(c->to), bytes, c->nbytes);
    free(bytes);
    if (!self || !here.area->options.dma_to_memory || !prog_in_pool(c->to, c->nbytes)) return;
    prog_flush_range(c->to, c->nbytes, FLUSH_DROP, c->pc);
    if (!self) return;
    c->posted = self->flushed;
    self->flushed = (line_list){0};
}

REAL(int, pthread_create, pthread_t *, const pthread_attr_t *, void *(*)(void *), void *)
REAL(int, pthread_join, pthread_t, void **)

static void *begin(void *of);

static bool can_begin(const device_copy *c) {
    for (uint64_t before = ahead_of_copy(c); before; before &= before - 1)
        if (!copies[__builtin_ctzll(before)].done) return false;
    return true;
}

static void make_thread(device_copy *c) {
    if (real_pthread_create()(&c->handle, NULL, begin, c))
        program_misused("there is no thread for another copy by a device\n");
}

static void end(device_copy *c) {
    pthread_mutex_lock(&lock);
    c->done = true;
    for (int k = 0; k < COPIES; k++) {
        device_copy *next = &copies[k];
        if (!next->event || next->begun || !can_begin(next)) continue;
        next->begun = true;
        turn_begins(next->thread - 1);
        make_thread(next);
    }
    pthread_mutex_unlock(&lock);
}

static void *begin(void *of) {
    device_copy *c = of;
    self_begin(c->thread - 1, STEP_THREAD_START, c->maker);
    carry(c);
    if (self) end(c);
    self_end(STEP_THREAD_END);
    return NULL;
}

/* --- the program ----------------------------------------------------------------------------------------------------- */

/* Take a place for a copy, in a step of the thread that asks for it; NULL where there is none. */
static device_copy *new_copy(const program_self *me) {
    program_thread *threads = here.area->threads;
    device_copy *c = NULL;
    for (int k = 0; k < COPIES && !(c && c->thread); k++) /* rather one that has a thread */
        if (!copies[k].event && (!c || copies[k].thread)) c = &copies[k];
    if (c && !c->thread)
        c->thread = turn_number(here.host, threads[me->thread].command, threads[me->thread].process) + 1;
    if (!c || !c->thread) return NULL;
    threads[c->thread - 1].pid = getpid(); /* its process may end before it has begun */
    return c;
}

/* Ask for a copy, and return its event; 0: it was made at once, as no run goes on. */
static uint64_t ask(device_copy asked, const char *function) {
    program_self *me = taking_part();
    pool_range r;
    const bool into_pool = range_in_pool(asked.to, asked.nbytes, &r);
    if (!me || !step_begin(me)) {
        if (asked.from) real_memmove()(reachable(asked.to), reachable(asked.from), asked.nbytes);
        else if (asked.nbytes) memset(reachable(asked.to), asked.byte, asked.nbytes);
        return 0;
    }
    pthread_mutex_lock(&lock);
    device_copy *c = new_copy(me);
    if (c) {
        asked.event = ++last_event, asked.thread = c->thread, asked.maker = me->thread;
        *c = asked;
        c->begun = can_begin(c);
        if (c->begun) turn_begins(c->thread - 1);
    }
    const bool begins = c && c->begun;
    pthread_mutex_unlock(&lock);
    if (c) {
        here.area->device_copies += into_pool;
        step_other(me, STEP_DEVICE_COPY, c->thread - 1, into_pool ? &r : NULL, asked.pc);
    }
    step_end(me);
    if (!c) program_misused("%s: more than %d copies whose events nobody has seen\n", function, COPIES);
    if (begins) make_thread(c);
    return asked.event;
}

/* A copy has ended: its bytes are those that this host's processors see, and its host's fences await what it has posted. */
static void see(program_self *me, uint64_t event, const void *pc) {
    if (!step_begin(me)) return;
    device_copy *c = copy_of(event);
    if (c) {
        real_pthread_join()(c->handle, NULL);
        step_other(me, STEP_DEVICE_SEEN, c->thread - 1, NULL, pc);
        for (int64_t k = 0; k < c->posted.count; k++) list_add(&me->flushed, c->posted.items[k]);
        free(c->posted.items);
        *c = (device_copy){.thread = c->thread};
    }
    step_end(me);
}

PROGRAM_EXPORT void cxlemu_cxl_device_copy(void *to, const void *from, size_t nbytes, uint64_t *event) {
    if (taking_part() && copy_of(*event))
        program_misused("cxl_device_copy: nobody has seen this event's last copy (cxl_device_wait)\n");
    *event = 0;
    if (nbytes) *event = ask((device_copy){.to = to, .from = from, .nbytes = nbytes, .pc = HERE}, "cxl_device_copy");
}

static void ended(program_self *me, uint64_t *event, const void *pc) {
    if (self && copy_of(*event)) see(me, *event, pc);
    *event = 0;
}

PROGRAM_EXPORT int cxlemu_cxl_device_query(uint64_t *event) {
    program_self *me = taking_part();
    if (lasts(me, *event)) {
        prog_yield(NULL);
        return 0;
    }
    ended(me, event, HERE);
    return 1;
}

PROGRAM_EXPORT void cxlemu_cxl_device_wait(uint64_t *event) {
    program_self *me = taking_part();
    await(me, *event);
    ended(me, event, HERE);
}

/* --- queues, as programs use them -------------------------------------------------------------------------------------- */

queue_place queue_end(uint64_t queue) { return (queue_place){queue, ++last_event}; }

void queue_copy(uint64_t queue, queue_place behind, void *to, const void *from, int byte, size_t nbytes,
                const void *pc) {
    ask(
        (device_copy){
            .to = to, .from = from, .byte = byte, .nbytes = nbytes, .queue = queue, .behind = behind, .pc = pc},
        "a copy in a stream");
}

void queue_wait(queue_place at, const void *pc) {
    program_self *me = taking_part();
    for (uint64_t before; me && self && (before = with_those_before(ahead_of(at)));) {
        const uint64_t event = copies[__builtin_ctzll(before)].event;
        await(me, event);
        if (self) see(me, event, pc);
    }
}

bool queue_query(queue_place at, const void *pc) {
    const program_self *me = taking_part();
    if (me && one_that_lasts(me, with_those_before(ahead_of(at)))) {
        prog_yield(NULL);
        return false;
    }
    queue_wait(at, pc);
    return true;
}

void devices_await(void) {
    const program_self *me = last_event ? taking_part() : NULL;
    for (int k = 0; me && k < COPIES; k++) await(me, copies[k].event);
}
