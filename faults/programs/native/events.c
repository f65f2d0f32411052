/* Makes a step of every access of a program: takes the turn, lets nature move, changes the cache and tells the watcher. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "crash.h"
#include "self.h"

#define LOCK_S 60.0
enum { IDLE_BEFORE_NAPS = 1024, NAP_NS = 50000 };
enum { LINES_AT_ONCE = 16 }; /* that a thread flushes, with --free, before others may come in between */
enum { RUN_MOST = 4096 }; /* lines that the watcher hears of at once */
enum { PAYMENTS = 3 }; /* how often everything posted arrives before a run without progress is given up */

static program_area *area(void) { return here.area; }
static mover by_program(const program_self *me) { return (mover){here.host, (uint16_t)me->thread, BY_PROGRAM}; }

static void mix(uint64_t word) {
    uint64_t z = area()->hash ^ word * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    area()->hash = z ^ z >> 29;
}

static void digest_word(uint64_t *all, const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    *all = (*all ^ word) * UINT64_C(0xD6E8FEB86659FD93);
    *all ^= *all >> 31;
}

/* Half lines are digested in lanes, none of which waits for another one's product. */
static uint64_t digest(const uint8_t *bytes, int64_t nbytes) {
    enum { LANES = 4 };
    uint64_t lanes[LANES] = {(uint64_t)nbytes, 1, 2, 3}, word = 0;
    int64_t k = 0;
    for (; k + 8 * LANES <= nbytes; k += 8 * LANES)
        for (int lane = 0; lane < LANES; lane++) digest_word(&lanes[lane], bytes + k + 8 * lane);
    for (int lane = 1; k && lane < LANES; lane++) digest_word(&lanes[0], (const uint8_t *)&lanes[lane]);
    for (; k + 8 <= nbytes; k += 8) digest_word(&lanes[0], bytes + k);
    memcpy(&word, bytes + k, (size_t)(nbytes - k));
    return (lanes[0] ^ word) * UINT64_C(0x9E3779B97F4A7C15);
}

static void mix_step(const program_step *s, uint64_t bytes) {
    area()->doing[s->thread] = (thread_doing){s->offset, s->site, s->kind, s->pool};
    if (crash_now) crash_read(s);
    const uint64_t what = (uint64_t)s->kind << 56 | (uint64_t)s->what << 48 | (uint64_t)s->thread << 32;
    const uint64_t where = s->pool < PROGRAM_POOLS ? (uint64_t)s->offset * UINT64_C(0xA24BAED4963EE407) : 0;
    const uint64_t its = s->pool < PROGRAM_POOLS ? (uint64_t)s->nbytes ^ bytes : 0;
    mix((what | (uint64_t)s->pool << 24) ^ where ^ its * UINT64_C(0x9FB21C651E98DF25));
}

static pool_lines lines_of(const pool_range *r) {
    return (pool_lines){r->pool, r->offset / LINE_BYTES, (r->offset + r->nbytes + LINE_BYTES - 1) / LINE_BYTES};
}

/* --- steps ----------------------------------------------------------------------------------------------------------- */

static program_site site_here(program_self *me, const void *pc) {
    const program_site script = script_runs ? script_site() : 0;
    if (script) return script;
    const void *caller = me->depth ? me->callers[(me->depth - 1) % CALLERS] : NULL;
    const uintptr_t key = (uintptr_t)pc ^ (uintptr_t)caller >> 3;
    const uint32_t slot = (uint32_t)(key ^ key >> 10) % SITES_KNOWN;
    if (me->known[slot].pc != pc || me->known[slot].caller != caller) {
        me->known[slot].site = program_site_of(pc, caller);
        me->known[slot].pc = pc, me->known[slot].caller = caller;
    }
    return me->known[slot].site;
}

program_step step_of(const program_self *me, int kind, const pool_range *range, const void *pc) {
    const program_thread *t = &area()->threads[me->thread];
    return (program_step){
        .number = area()->steps,
        .kind = (uint8_t)kind,
        .host = (uint8_t)here.host,
        .pool = range ? (uint8_t)range->pool : UINT8_MAX,
        .thread = (uint16_t)me->thread,
        .other = UINT16_MAX,
        .process = t->process,
        .stage = (uint16_t)area()->stage,
        .site = pc ? site_here((program_self *)me, pc) : 0,
        .offset = range ? range->offset : 0,
        .nbytes = range ? range->nbytes : 0,
    };
}

void process_die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static bool still_dirty(const host_image *image, const open_store *open) {
    const int64_t last = (open->offset + open->nbytes - 1) / LINE_BYTES;
    for (int64_t line = open->offset / LINE_BYTES; line <= last; line++)
        if (!(image->cache.state[line] & 2) && !is_coherent(open->pool, line)) return false;
    return true;
}

/* Bring lines back that left the cache between a store's announcement and the store, with the stored bytes. Nature moves in
 * between with --free, and on hosts with pages. */
static void keep_store(int thread, const open_store *open) {
    const mover by = {area()->threads[thread].host, (uint16_t)thread, BY_NATURE};
    uint8_t *stored = image_of(by.host, open->pool)->cache.data + open->offset, *kept = malloc((size_t)open->nbytes);
    int64_t broken;
    if (!kept) abort();
    memcpy(kept, stored, (size_t)open->nbytes);
    const pool_range range = {open->pool, open->offset, open->nbytes};
    image_touch(by, lines_of(&range), true, &broken);
    memcpy(stored, kept, (size_t)open->nbytes);
    free(kept);
}

void store_told(int thread) {
    open_store *open = &area()->opens[thread];
    if (open->nbytes == 0) return;
    const program_thread *t = &area()->threads[thread];
    host_image *image = image_of(t->host, open->pool);
    const uint8_t *before = image->twin + open->offset, *after = image->cache.data + open->offset;
    program_step step = {
        .number = open->number,
        .kind = open->kind,
        .locked = open->locked,
        .system = open->system,
        .host = t->host,
        .pool = open->pool,
        .thread = (uint16_t)thread,
        .other = UINT16_MAX,
        .process = t->process,
        .stage = (uint16_t)area()->stage,
        .site = open->site,
        .offset = open->offset,
        .nbytes = open->nbytes,
    };
    if (!still_dirty(image, open)) keep_store(thread, open);
    mix_step(&step, digest(after, open->nbytes));
    const bool news = memcmp(before, after, (size_t)open->nbytes) != 0;
    turn_progress(thread, news);
    if (news) rest_ends_for_host(thread);
    if (news || open->kind != STEP_RMW) turn_written(t->host); /* a lock that is taken in vain stores nothing new */
    if (program_watcher_now && program_watcher_now->store) program_watcher_now->store(&step, before, after);
    if (crash_now) crash_stored(&step, NULL);
    if (area()->invariant_count) holds_stored(&step);
    image_told(t->host, open->pool, open->offset, open->nbytes);
    open->nbytes = 0;
    nature_stored(thread, (pool_range){step.pool, step.offset, step.nbytes});
}

/* Whether a store that a thread has announced may still come: of a copy within a pool, compilers announce the store before the load. */
static bool store_to_come(int thread) {
    const open_store *open = &area()->opens[thread];
    if (!open->nbytes) return false;
    const host_image *image = image_of(area()->threads[thread].host, open->pool);
    return memcmp(image->twin + open->offset, image->cache.data + open->offset, (size_t)open->nbytes) == 0;
}

/* Break the hardware that the driver was asked to break, at the step that it was asked for. */
static void break_things(void) {
    program_area *a = area();
    const program_options *o = &a->options;
    if (o->link_host >= 0 && a->steps == o->link_step) area_break(LINK_ENTRY, o->link_host, 0);
    if (o->lost_pool >= 0 && a->steps == o->lost_step) area_break(CARD_ENTRY, o->lost_pool, 0);
    if (o->poison_pool >= 0 && a->steps == o->poison_step)
        area_break(LINE_ENTRY, o->poison_pool, o->poison_offset / LINE_BYTES);
}

void host_crashes(int host, int thread) {
    program_area *a = area();
    a->crashed |= 1u << host;
    if (crash_now) crash_begins(host);
    image_crash(host, &a->random);
    const program_step step = {
        .number = a->steps,
        .kind = STEP_HOST_CRASH,
        .host = (uint8_t)host,
        .pool = UINT8_MAX,
        .thread = (uint16_t)thread,
        .other = UINT16_MAX,
        .process = a->threads[thread].process,
        .stage = (uint16_t)a->stage,
    };
    if (program_watcher_now && program_watcher_now->other) program_watcher_now->other(&step);
    for (int k = 0; k < a->thread_count; k++)
        if (a->threads[k].host == host && turn_state(k) != THREAD_ENDED) a->opens[k].nbytes = 0;
}

/* Where nothing changes, let everything posted arrive: a write-back takes long, but not for ever. */
static void let_arrive(void) {
    program_area *a = area();
    const uint64_t part = a->options.idle_budget / (PAYMENTS + 1) + 1;
    if (a->idle < part * (a->owed + 1)) return;
    if (a->owed++ < PAYMENTS) {
        if (image_pay()) a->idle = 0, turn_all_written();
    } else if (a->options.free_running) {
        a->idle = a->owed = 0; /* the system chooses which threads go on, and the deadline ends a run that does not */
    }
}

static void nap(void) { syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = NAP_NS}, NULL); }

/* End a run in which no thread can ever get on. */
static void look_for_hang(program_self *me, uint64_t at) {
    program_area *a = area();
    bool outside = false;
    for (int k = 0; k < a->thread_count; k++) outside |= turn_state(k) == THREAD_OUTSIDE;
    if (outside) nap(); /* the others wait for it: it shall have the processors */
    else if (cycle_closes(me, at)) {
        if (image_pay()) {
            turn_all_written();
            return;
        }
        if (program_watcher_now && program_watcher_now->stuck) program_watcher_now->stuck();
        turn_stop(NO_PROGRESS, -1);
        process_die();
    }
}

/* Count a step whose turn has come, and do what comes before it. */
static void step_counts(program_self *me, uint64_t at) {
    program_area *a = area();
    a->steps++;
    if (a->idle == 0) a->owed = 0;
    else let_arrive();
    const bool still = a->options.every || a->steps - a->written >= a->options.idle_budget;
    if (still && !a->options.free_running) look_for_hang(me, at);
    nature_between(me);
    break_things();
    if (crash_now) crash_point_here(me->thread);
    if (a->options.crash_host >= 0 && a->steps == a->options.crash_step) {
        host_crashes(a->options.crash_host, me->thread);
        for (int k = 0; k < a->thread_count; k++)
            if (a->threads[k].host == a->options.crash_host && turn_state(k) != THREAD_ENDED)
                turn_without(k, THREAD_CRASHED);
        if (a->options.crash_host == here.host) process_die();
    }
}

/* Where a step is taken, as cycle.c compares it. */
static uint64_t place_of(int kind, const pool_range *r) {
    return (uint64_t)kind << 56 | (r ? (uint64_t)r->pool << 48 | (uint64_t)r->offset : 0);
}

static bool step_begins(program_self *me, int kind, int what, const pool_range *r) {
    if (!me || me->inside) return false;
    program_area *a = area();
    const uint64_t at = place_of(kind, r);
    const bool later = kind == STEP_LOAD && store_to_come(me->thread);
    me->inside = true;
    if (a->options.free_running) {
        if (turn_state(me->thread) == THREAD_CRASHED) process_die();
        if (!host_lock_take(&a->lock, LOCK_S)) process_die();
        if (!later) store_told(me->thread);
    } else {
        const bool kept = turn_enter(me->thread);
        if (kept && !later) store_told(me->thread);
        if (a->options.every) cycle_fold(me, at);
        const bool over = turn_state(me->thread) == THREAD_INSIDE && a->burst == 0;
        if (!turn_take(me->thread, over && step_is_quiet(me, kind, what, r))) {
            if (turn_state(me->thread) != THREAD_ENDED) process_die();
            me->inside = false, self = NULL; /* its process is ending: its last accesses are no steps */
            return false;
        }
        if (!kept && !later) store_told(me->thread);
    }
    step_counts(me, at);
    return true;
}

bool step_begin(program_self *me) { return step_begins(me, 0, 0, NULL); }

bool step_of_operation(program_self *me, int part) {
    if (!step_begins(me, STEP_OPERATION, part, NULL)) return false;
    program_step step = step_of(me, STEP_OPERATION, NULL, NULL);
    step.what = (uint8_t)part;
    mix_step(&step, 0);
    turn_progress(me->thread, false);
    if (program_watcher_now && program_watcher_now->other) program_watcher_now->other(&step);
    return true;
}

void step_end(program_self *me) {
    if (area()->held_count) holds_examine();
    /* A program that announces no loads has few steps: nature also moves after them, before another thread's step. */
    if (area()->pages_hosts >> here.host & 1) nature_between(me);
    if (area()->options.free_running) {
        const uint64_t idle = area()->threads[me->thread].idle_steps; /* while the lock is held */
        const bool over = rest_is_over();
        host_lock_release(&area()->lock);
        if (over) rest_wake();
        rest_if_idle(idle);
    } else turn_leave(me->thread);
    me->inside = false;
    if (__builtin_expect(me->late_count != 0, 0)) signals_late(me);
}

void step_other(program_self *me, int kind, int other, const pool_range *range, const void *pc) {
    program_step step = step_of(me, kind, range, pc);
    step.other = (uint16_t)other;
    mix_step(&step, 0);
    const bool progress = kind != STEP_YIELD && kind != STEP_MSYNC;
    turn_progress(me->thread, progress);
    if (progress) turn_written(here.host);
    if (program_watcher_now && program_watcher_now->other) program_watcher_now->other(&step);
}

/* --- accesses -------------------------------------------------------------------------------------------------------- */

static void bus_error(program_self *me, const pool_range *r, const void *at, int64_t line) {
    siginfo_t info = {.si_signo = SIGBUS, .si_code = BUS_MCEERR_AR};
    info.si_addr = (uint8_t *)(uintptr_t)at + (line * LINE_BYTES > r->offset ? line * LINE_BYTES - r->offset : 0);
    turn_progress(me->thread, true), turn_written(here.host);
    step_end(me);
    me->failed++;
    syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)syscall(SYS_gettid), SIGBUS, &info);
}

/* The lines of a range are here; false after a SIGBUS. */
static bool touch(program_self *me, const pool_range *r, const void *at, bool dirty) {
    const pool_lines lines = lines_of(r);
    int64_t broken = 0;
    if (area()->options.nature)
        adversary_touched(&area()->natures[me->thread], (window){r->pool, lines.first, lines.last});
    area()->natures[me->thread].card_lines = image_of(here.host, r->pool)->lines;
    if (me->nt_count) posted_land(me, by_program(me), lines);
    silent_stores(me, lines);
    if (image_touch(by_program(me), lines, dirty, &broken) == DONE) return true;
    bus_error(me, r, at, broken);
    return false;
}

static void note_seen(program_self *me, const pool_range *r, uint64_t bytes) {
    const uint64_t key = (uint64_t)r->offset * UINT64_C(0x9E3779B97F4A7C15) >> 32;
    const uint32_t slot = (uint32_t)(key ^ (uint64_t)r->nbytes ^ (uint64_t)r->pool << 8) % SEEN;
    const bool same = me->seen[slot].bytes == bytes && me->seen[slot].offset == r->offset &&
                      me->seen[slot].nbytes == r->nbytes && me->seen[slot].pool == r->pool;
    me->seen[slot].bytes = bytes, me->seen[slot].pool = r->pool;
    me->seen[slot].offset = r->offset, me->seen[slot].nbytes = r->nbytes;
    turn_progress(me->thread, !same);
}

/* Note an invalidate of a line. A thread that finds a line as it was at its last invalidate is waiting for it; a
 * message of many lines is progress. */
static void note_dropped(program_self *me, int pool, int64_t line) {
    const pool_range dropped = {pool, line * LINE_BYTES, -LINE_BYTES}; /* no load has this size */
    note_seen(me, &dropped, digest(image_of(here.host, pool)->cache.data + line * LINE_BYTES, LINE_BYTES));
}

static void loaded(program_self *me, const pool_range *r, const void *pc, bool locked, bool system) {
    host_image *image = image_of(here.host, r->pool);
    const uint8_t *bytes = image->cache.data + r->offset;
    const pool_lines lines = lines_of(r);
    program_step step = step_of(me, STEP_LOAD, r, pc);
    me->ordered = locked;
    step.locked = locked, step.system = system;
    const uint64_t content = digest(bytes, r->nbytes);
    mix_step(&step, content);
    note_seen(me, r, content);
    if (program_watcher_now && program_watcher_now->load) program_watcher_now->load(&step, bytes);
    for (int64_t k = lines.first; k < lines.last; k++) {
        if (!(image->cache.state[k] & LINGERS)) continue;
        image_drop_lingering(by_program(me), (pool_lines){r->pool, k, lines.last}, true);
        break;
    }
}

static void load(const void *at, size_t nbytes, const void *pc, bool system) {
    pool_range r;
    program_self *me = self_here();
    if (system && program_pages_now) program_pages_now->touch(at, nbytes);
    if (!range_in_pool(at, nbytes, &r) || !step_begins(me, STEP_LOAD, 0, &r)) return;
    if (!touch(me, &r, at, false)) return;
    loaded(me, &r, pc, false, system);
    step_end(me);
}

static void announce(program_self *me, const pool_range *r, const void *pc, int kind, bool system) {
    area()->opens[me->thread] = (open_store){
        .offset = r->offset,
        .nbytes = r->nbytes,
        .number = area()->steps,
        .site = site_here(me, pc),
        .pool = (uint8_t)r->pool,
        .kind = (uint8_t)kind,
        .locked = kind == STEP_RMW,
        .system = system,
    };
}

static void store(void *at, size_t nbytes, const void *pc, bool system) {
    pool_range r;
    program_self *me = self_here();
    if (system && program_pages_now) program_pages_now->touch(at, nbytes);
    if (!range_in_pool(at, nbytes, &r) || !step_begins(me, STEP_STORE, 0, &r)) return;
    if (!touch(me, &r, at, true)) return;
    announce(me, &r, pc, STEP_STORE, system);
    step_end(me);
}

PROGRAM_EXPORT void prog_load(const void *at, size_t nbytes, const void *pc) { load(at, nbytes, pc, false); }
PROGRAM_EXPORT void prog_store(void *at, size_t nbytes, const void *pc) { store(at, nbytes, pc, false); }
void prog_system_reads(const void *at, size_t nbytes, const void *pc) { load(at, nbytes, pc, true); }
void prog_system_writes(void *at, size_t nbytes, const void *pc) { store(at, nbytes, pc, true); }

PROGRAM_EXPORT void prog_nt_store(void *at, const void *bytes, size_t nbytes, const void *pc) {
    pool_range r;
    program_self *me = self_here();
    if (!range_in_pool(at, nbytes, &r) || !step_begin(me)) {
        memcpy(reachable(at), bytes, nbytes);
        return;
    }
    program_step step = step_of(me, STEP_NT_STORE, &r, pc);
    mix_step(&step, digest(bytes, r.nbytes));
    turn_progress(me->thread, true), turn_written(here.host);
    if (program_watcher_now && program_watcher_now->store) program_watcher_now->store(&step, NULL, bytes);
    if (crash_now) crash_stored(&step, bytes);
    posted_add(me, r, bytes, step.number);
    nature_posted(me, r.pool, r.offset / LINE_BYTES, true);
    step_end(me);
}

static void flush_outside(program_self *me, const void *at, enum flush_kind kind, const void *pc) {
    program_step step = step_of(me, STEP_FLUSH, NULL, pc);
    step.what = (uint8_t)kind, step.offset = (int64_t)(intptr_t)at;
    mix_step(&step, false);
    turn_progress(me->thread, false);
    if (program_watcher_now && program_watcher_now->flush) program_watcher_now->flush(&step, false, false);
}

static void flush_line(program_self *me, const program_step *step) {
    const int pool = step->pool;
    const int64_t line = step->offset / LINE_BYTES;
    const host_image *image = image_of(here.host, pool);
    adversary *nature = &area()->natures[me->thread];
    image_find_stores(by_program(me), pool, line);
    if (image_unannounced(here.host, pool, line)) silent_stores(me, (pool_lines){pool, line, line + 1});
    const bool dirty = image->cache.state[line] & DIRTY, present = image->cache.state[line] & PRESENT;
    nature->card_lines = image->lines;
    if (area()->options.nature) adversary_touched(nature, (window){pool, line, line + 1});
    mix_step(step, dirty);
    if (dirty) turn_written(here.host);
    if (present && !dirty) note_dropped(me, pool, line);
    else turn_progress(me->thread, dirty);
    if (program_watcher_now && program_watcher_now->flush) program_watcher_now->flush(step, dirty, present);
    image_flush(by_program(me), pool, line, step->what == FLUSH_KEEP);
    const bool landed = step->what == FLUSH_DROP_ORDERED;
    const pool_lines its = {pool, line, line + 1};
    if (landed) image_complete(by_program(me), its, true);
    list_add(landed ? &me->lingering : &me->flushed, its);
    nature_posted(me, pool, line, false);
}

/* Go on to the next step of the same call, where its turn goes on: nobody can come in between. With --free, for a while. */
static bool step_goes_on(program_self *me, const pool_range *r) {
    const program_options *o = &area()->options;
    if (o->every || area()->pages_hosts) return false;
    if (!o->free_running && !turn_goes_on(me->thread, 1)) return false;
    if (o->free_running && (r->offset / LINE_BYTES % LINES_AT_ONCE == 0 || turn_state(me->thread) == THREAD_CRASHED))
        return false;
    step_counts(me, place_of(STEP_FLUSH, r));
    return true;
}

/* Whether hardware breaks, or a host crashes, at a step. */
static bool things_break(void) {
    const program_options *o = &area()->options;
    return o->crash_host >= 0 || o->link_host >= 0 || o->lost_pool >= 0 || o->poison_pool >= 0;
}

/* Flush those lines that come next and are dirty all at once, where nothing can come in between; each is a step as before. Returns the
 * first one that is left. */
static int64_t flush_run(program_self *me, program_step step, pool_lines rest) {
    program_area *a = area();
    const bool in_turns = !a->options.free_running;
    if (a->options.nature || a->idle || step.what == FLUSH_DROP_ORDERED || things_break()) return rest.first;
    const int64_t block = -rest.first & (LINES_AT_ONCE - 1), burst = a->burst < RUN_MOST ? (int64_t)a->burst : RUN_MOST;
    if (rest.last - rest.first > (in_turns ? burst : block)) rest.last = rest.first + (in_turns ? burst : block);
    for (int64_t line = rest.first; line < rest.last; line++) image_find_stores(by_program(me), rest.pool, line);
    rest.last = image_run(here.host, rest, PRESENT | DIRTY, 0);
    if (in_turns) rest.last = rest.first + turn_goes_on(me->thread, rest.last - rest.first);
    if (rest.first == rest.last) return rest.first;
    step.number = a->steps + 1;
    for (step.offset = rest.first * LINE_BYTES; step.offset < rest.last * LINE_BYTES; step.offset += LINE_BYTES)
        mix_step(&step, true);
    step.offset = rest.first * LINE_BYTES, step.nbytes = (rest.last - rest.first) * LINE_BYTES;
    a->steps += (uint64_t)(rest.last - rest.first), a->owed = 0;
    turn_written(here.host);
    turn_progress(me->thread, true);
    if (program_watcher_now && program_watcher_now->flush) program_watcher_now->flush(&step, true, true);
    image_flush_run(by_program(me), rest, step.what == FLUSH_KEEP);
    list_add(&me->flushed, rest);
    return rest.last;
}

/* Flush the lines of a range, from the step that has begun on; false where this thread's part in the run ends meanwhile. */
static bool flush_lines(program_self *me, pool_range r, enum flush_kind kind, const void *pc) {
    program_step step = step_of(me, STEP_FLUSH, &r, pc);
    step.what = kind == FLUSH_DROP && me->ordered ? FLUSH_DROP_BEHIND : (uint8_t)kind;
    step.offset = r.offset / LINE_BYTES * LINE_BYTES, step.nbytes = LINE_BYTES;
    for (const int64_t end = r.offset + r.nbytes;;) {
        flush_line(me, &step);
        const int64_t next = step.offset / LINE_BYTES + 1, last = (end + LINE_BYTES - 1) / LINE_BYTES;
        r.offset = flush_run(me, step, (pool_lines){r.pool, next, last}) * LINE_BYTES;
        if (r.offset >= end) return true;
        if (!step_goes_on(me, &r)) {
            step_end(me);
            if (!step_begins(me, STEP_FLUSH, kind, &r)) return false;
        }
        step.number = area()->steps, step.offset = r.offset;
    }
}

PROGRAM_EXPORT void prog_flush(const void *at, enum flush_kind kind, const void *pc) {
    pool_range r;
    program_self *me = self_here();
    const bool inside = range_in_pool(at, 1, &r);
    if (!step_begins(me, STEP_FLUSH, kind, inside ? &r : NULL)) return;
    if (!inside) flush_outside(me, at, kind, pc);
    else if (!flush_lines(me, r, kind, pc)) return;
    step_end(me);
}

void prog_flush_range(const void *at, size_t nbytes, enum flush_kind kind, const void *pc) {
    const uintptr_t end = (uintptr_t)at + nbytes;
    pool_range r;
    for (uintptr_t line = (uintptr_t)at / LINE_BYTES * LINE_BYTES, next; line < end; line = next) {
        program_self *me = self_here();
        next = line + LINE_BYTES;
        if (!range_in_pool((const void *)line, end - line, &r)) {
            prog_flush((const void *)line, kind, pc);
            continue;
        }
        if (!step_begins(me, STEP_FLUSH, kind, &r) || !flush_lines(me, r, kind, pc)) return;
        step_end(me);
        next = line + (uintptr_t)(r.nbytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    }
}

static bool fenced(program_self *me, enum fence_kind kind, const void *pc) {
    program_step step = step_of(me, STEP_FENCE, NULL, pc);
    step.what = kind;
    mix_step(&step, 0);
    if (program_watcher_now && program_watcher_now->fence) program_watcher_now->fence(&step);
    return posted_fence(me, by_program(me), kind);
}

PROGRAM_EXPORT void prog_fence(enum fence_kind kind, const void *pc) {
    program_self *me = self_here();
    if (me && kind == FENCE_LOCKED && !me->flushed.count && !me->nt_count && !me->lingering.count) {
        me->ordered = true;
        return;
    }
    if (!step_begins(me, STEP_FENCE, kind, NULL)) return;
    const bool landed = fenced(me, kind, pc);
    turn_progress(me->thread, landed);
    if (landed) turn_written(here.host);
    step_end(me);
}

void prog_locked(void *at, size_t nbytes, const void *pc) {
    pool_range r;
    program_self *me = self_here();
    if (!range_in_pool(at, nbytes, &r)) {
        prog_fence(FENCE_LOCKED, pc);
        return;
    }
    if (!step_begin(me)) return;
    fenced(me, FENCE_LOCKED, pc);
    if (!touch(me, &r, at, true)) return;
    announce(me, &r, pc, STEP_RMW, false);
    step_end(me);
}

PROGRAM_EXPORT void prog_rmw_begin(void *at, size_t nbytes, const void *pc) {
    pool_range r;
    program_self *me = self_here();
    if (!range_in_pool(at, nbytes, &r) || !step_begin(me)) return;
    fenced(me, FENCE_LOCKED, pc);
    touch(me, &r, at, false);
}

PROGRAM_EXPORT void prog_rmw_end(void *at, size_t nbytes, bool wrote, const void *pc) {
    pool_range r;
    program_self *me = self_here();
    if (!me || !me->inside || !range_in_pool(at, nbytes, &r)) return;
    if (wrote) {
        const pool_lines lines = lines_of(&r);
        if (!is_coherent(r.pool, lines.first))
            cache_touch(&image_of(here.host, r.pool)->cache, lines.first, lines.last, true);
        announce(me, &r, pc, STEP_RMW, false);
        store_told(me->thread);
    } else {
        loaded(me, &r, pc, true, false);
    }
    step_end(me);
}

bool prog_announced(bool stores, const void *at, size_t nbytes) {
    pool_range r;
    const program_self *me = self_here();
    if (!me || !range_in_pool(at, nbytes, &r)) return false;
    const open_store *open = &area()->opens[me->thread];
    thread_doing *last = &area()->doing[me->thread];
    if (stores) return open->nbytes >= r.nbytes && open->pool == r.pool && open->offset == r.offset;
    const bool same = last->kind == STEP_LOAD && last->pool == r.pool && last->offset == r.offset;
    if (same) last->kind = 0; /* once: a loop of such loads makes steps */
    return same;
}

static void tell_range(int kind, const void *at, size_t nbytes, const void *pc) {
    pool_range r;
    program_self *me = self_here();
    if (!range_in_pool(at, nbytes, &r) || !step_begin(me)) return;
    program_step step = step_of(me, kind, &r, pc);
    mix_step(&step, 0);
    if (program_watcher_now && program_watcher_now->other) program_watcher_now->other(&step);
    step_end(me);
}

void prog_msync(const void *at, size_t nbytes, const void *pc) { tell_range(STEP_MSYNC, at, nbytes, pc); }

PROGRAM_EXPORT void prog_expect_stale(const void *at, size_t nbytes, const void *pc) {
    tell_range(STEP_EXPECT_STALE, at, nbytes, pc);
}

void prog_sleep(uint64_t ns) {
    program_self *me = self_here();
    if (!step_begin(me)) return;
    step_other(me, STEP_YIELD, UINT16_MAX, NULL, NULL);
    turn_give_up(me->thread, ns ? area()->clock_ns + ns : 0);
    const bool idle = area()->idle > IDLE_BEFORE_NAPS; /* perhaps the threads wait for a process outside of the run */
    step_end(me);
    if (idle) nap();
    if (ns && step_begin(me)) step_end(me); /* until its turn comes, when it has slept */
}

void prog_yield(void) { prog_sleep(0); }

bool prog_page_begin(void) { return step_begin(self_here()); }

void prog_page_end(void) { step_end(self); }

bool prog_in_pool(const void *at, size_t nbytes) {
    pool_range r;
    return range_in_pool(at, nbytes, &r);
}

int program_thread_here(void) { return self ? self->thread : -1; }
int program_host_here(void) { return here.area ? here.host : -1; }
