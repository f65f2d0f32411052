/* Steps: one begins when its thread has the turn and all that comes before it has happened; it is counted and hashed. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "crash.h"
#include "record.h"
#include "self.h"
#include "tears.h"

#define LOCK_S 60.0
enum { IDLE_BEFORE_NAPS = 1024, NAP_NS = 50000 };
enum { PAYMENTS = 3 }; /* how often everything posted arrives before a run without progress is given up */

static program_area *area(void) { return here.area; }

static uint64_t mixed(uint64_t hash, uint64_t word) {
    uint64_t z = hash ^ word * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    return z ^ z >> 29;
}

static void digest_word(uint64_t *all, const uint8_t *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    *all = (*all ^ word) * UINT64_C(0xD6E8FEB86659FD93);
    *all ^= *all >> 31;
}

/* Digest two words: both halves of their product, each with a number beside it that no program stores. */
static void digest_pair(uint64_t *all, const uint8_t *bytes) {
    __extension__ typedef unsigned __int128 product_of_words;
    uint64_t words[2];
    memcpy(words, bytes, sizeof words);
    const product_of_words product = (product_of_words)(*all ^ words[0]) * (words[1] ^ UINT64_C(0xE7037ED1A0B428DB));
    *all = (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Lines are digested in lanes, none of which waits for another one's product. */
uint64_t step_digest(const uint8_t *bytes, int64_t nbytes) {
    enum { LANES = 4 };
    uint64_t lanes[LANES] = {(uint64_t)nbytes ^ UINT64_C(0xA0761D6478BD642F), UINT64_C(0x8EBC6AF09C88C6E3),
                             UINT64_C(0x589965CC75374CC3), UINT64_C(0x1D8E4E27C47D124F)};
    uint64_t word = 0;
    int64_t k = 0;
    for (; k + 16 * LANES <= nbytes; k += 16 * LANES)
        for (int lane = 0; lane < LANES; lane++) digest_pair(&lanes[lane], bytes + k + 16 * lane);
    for (int lane = 1; k && lane < LANES; lane++) digest_word(&lanes[0], (const uint8_t *)&lanes[lane]);
    for (; k + 8 <= nbytes; k += 8) digest_word(&lanes[0], bytes + k);
    if (k < nbytes) memcpy(&word, bytes + k, (size_t)(nbytes - k));
    return (lanes[0] ^ word) * UINT64_C(0x9E3779B97F4A7C15);
}

static inline uint64_t step_word(const program_step *s, int64_t offset, uint64_t bytes) {
    const uint64_t what = (uint64_t)s->kind << 56 | (uint64_t)s->what << 48 | (uint64_t)s->thread << 32;
    const uint64_t where = s->pool < PROGRAM_POOLS ? (uint64_t)offset * UINT64_C(0xA24BAED4963EE407) : 0;
    const uint64_t its = s->pool < PROGRAM_POOLS ? (uint64_t)s->nbytes ^ bytes : 0;
    return (what | (uint64_t)s->pool << 24) ^ where ^ its * UINT64_C(0x9FB21C651E98DF25);
}

void step_mix(const program_step *s, uint64_t bytes) {
    area()->doing[s->thread] = (thread_doing){s->offset, s->site, s->kind, s->pool};
    if (crash_now) crash_read(s);
    if (area()->tear_count && s->kind == STEP_LOAD) tears_loaded(s);
    area()->hash = mixed(area()->hash, step_word(s, s->offset, bytes));
}

void step_mix_flushes(const program_step *s, int64_t lines, uint64_t dirty) {
    uint64_t hash = area()->hash;
    for (int64_t k = 0; k < lines; k++) hash = mixed(hash, step_word(s, s->offset + k * LINE_BYTES, dirty >> k & 1));
    area()->hash = hash;
    area()->doing[s->thread] = (thread_doing){s->offset + (lines - 1) * LINE_BYTES, s->site, s->kind, s->pool};
}

/* Return where an access's function was called: if that is C++'s library's, where the program called the library. */
static const void *caller_of(const program_self *me, const void *pc) {
    const void *caller = NULL;
    uint32_t depth = me->depth;
    do caller = depth ? me->callers[--depth % CALLERS] : NULL;
    while (caller && me->depth - depth < CALLERS && library_has(pc) && library_has(caller));
    return caller;
}

program_site step_site(program_self *me, const void *pc) {
    const program_site script = script_runs ? script_site() : 0;
    if (script) return script;
    const void *caller = caller_of(me, pc);
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
        .site = pc ? step_site((program_self *)me, pc) : 0,
        .offset = range ? range->offset : 0,
        .nbytes = range ? range->nbytes : 0,
    };
}

/* What another thread of this process is about is done first: its host's crash, or whose turn comes next. */
void process_die(void) {
    host_lock_take(&area()->turns, LOCK_S);
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
 * between with --free, on hosts with pages, and in a search where the store leaves the bytes as they are. */
static void keep_store(int thread, const open_store *open) {
    const mover by = {area()->threads[thread].host, (uint16_t)thread, BY_PROGRAM};
    uint8_t *stored = image_of(by.host, open->pool)->cache.data + open->offset, *kept = malloc((size_t)open->nbytes);
    int64_t broken;
    if (!kept) abort();
    memcpy(kept, stored, (size_t)open->nbytes);
    const pool_range range = {open->pool, open->offset, open->nbytes};
    image_touch(by, range_lines(&range), true, &broken);
    memcpy(stored, kept, (size_t)open->nbytes);
    free(kept);
}

/* Report a thread's store, which then is over or may change further bytes: where it was reported before, those alone count. */
static void tell_store(int thread, bool over) {
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
    const bool news = !are_same(before, after, (size_t)open->nbytes);
    if (open->early && !news) {
        if (over) open->nbytes = 0;
        return;
    }
    step_mix(&step, step_digest(after, open->nbytes));
    turn_progress(thread, news);
    if (news) rest_ends_for_host(thread);
    /* A lock that is taken in vain stores nothing new. */
    if (news || (open->kind != STEP_RMW && !open->onto_dirty)) turn_written(t->host);
    if (open->beside && !news && program_watcher_now && program_watcher_now->load)
        program_watcher_now->load(&step, after); /* perhaps the other one's store is the last: it sees that */
    if (program_watcher_now && program_watcher_now->store) program_watcher_now->store(&step, before, after);
    if (crash_now) crash_stored(&step, NULL);
    if (area()->invariant_count) holds_stored(&step);
    const bool tears = step.nbytes > 8 && nature_tears(&step);
    image_told(t->host, open->pool, open->offset, open->nbytes);
    open->early = true;
    const pool_range range = {step.pool, step.offset, step.nbytes};
    if (program_coherent_anywhere) coherent_stored(thread, &range);
    if (over) open->nbytes = 0;
    nature_stored(&step, tears);
}

void store_told(int thread) { tell_store(thread, true); }

/* Whether a store that a thread has announced may still come: of a copy within a pool, compilers announce the store before the load. */
static bool store_to_come(int thread) {
    const open_store *open = &area()->opens[thread];
    if (!open->nbytes) return false;
    const host_image *image = image_of(area()->threads[thread].host, open->pool);
    return memcmp(image->twin + open->offset, image->cache.data + open->offset, (size_t)open->nbytes) == 0;
}

void store_told_early(int thread, bool all) {
    if (all || area()->opens[thread].beside || !store_to_come(thread)) tell_store(thread, false);
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
    past_forget(host);
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

static int64_t pay(mover by) {
    int64_t count = 0;
    for (int pool = 0; pool < here.area->options.pools; pool++) {
        card_cache *c = &image_of(by.host, pool)->cache;
        for (int64_t k = 0; k < here.area->extent[pool]; k++) {
            if (!c->pending[k] && !(c->state[k] & FLUSHED)) continue;
            count += image_complete(by, (pool_lines){pool, k, k + 1}, false);
        }
    }
    return count;
}

/* Let everything posted arrive, and flushed lines leave the caches, as nature must at some time. Returns how many lines
 * moved. */
static int64_t pay_all(void) {
    int64_t count = past_pay();
    for (int host = 0; host < here.area->options.hosts; host++) count += pay((mover){host, 0, BY_NATURE});
    return count;
}

/* Where nothing changes, let everything posted arrive: a write-back takes long, but not for ever. */
static void let_arrive(void) {
    program_area *a = area();
    const uint64_t part = a->options.idle_budget / (PAYMENTS + 1) + 1;
    if (a->idle < part * (a->owed + 1)) return;
    if (a->owed++ < PAYMENTS) {
        if (pay_all()) a->idle = 0, turn_all_written();
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
        const bool all_stay = a->cycles[me->thread].stays, repeats = all_stay && record_repeats();
        if (!repeats && pay_all()) {
            turn_all_written();
            if (!all_stay) return;
        }
        if (program_watcher_now && program_watcher_now->stuck) program_watcher_now->stuck();
        turn_stop(repeats || record_repeats() ? REPEATS : NO_PROGRESS, -1);
        process_die();
    }
}

/* Whether a step flushes the line behind that of the step before, which was the same thread's: nature moves before and behind such rows.
 * Amid one no other host could tell, as an early eviction is an arrival, and an early fetch one before the row. */
static bool flushes_on(const program_self *me, uint64_t at) {
    return at / LINE_BYTES == me->flush_next / LINE_BYTES && area()->steps == me->flush_step;
}

void step_counts(program_self *me, uint64_t at) {
    program_area *a = area();
    a->steps++;
    tears_forget(me->thread);
    if (a->idle == 0) a->owed = 0;
    else let_arrive();
    const bool still = a->options.every || a->steps - a->written >= a->options.idle_budget;
    if (still && !a->options.free_running) look_for_hang(me, at);
    if (a->pages_hosts || !flushes_on(me, at)) nature_between(me);
    break_things();
    if (crash_now) crash_point_here(me->thread);
    if (a->options.crash_host >= 0 && a->steps == a->options.crash_step) {
        host_crashes(a->options.crash_host, me->thread);
        if (host_lock_take(&a->turns, LOCK_S)) turn_crash(a->options.crash_host), host_lock_release(&a->turns);
        if (a->options.crash_host == here.host) turn_without(me->thread, THREAD_CRASHED), process_die();
    }
}

uint64_t step_place(int kind, const pool_range *r) {
    return (uint64_t)kind << 56 | (r ? (uint64_t)r->pool << 48 | (uint64_t)r->offset : 0);
}

bool step_begins(program_self *me, int kind, int what, const pool_range *r) {
    if (!me || me->inside) return false;
    program_area *a = area();
    const uint64_t at = step_place(kind, r);
    const bool later = kind == STEP_LOAD && store_to_come(me->thread);
    me->inside = true;
    if (a->options.free_running) {
        if (turn_state(me->thread) == THREAD_CRASHED) process_die();
        if (!host_lock_take(&a->lock, LOCK_S)) process_die();
        if (program_coherent_anywhere) coherent_hears(me->thread, at);
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
    step_mix(&step, 0);
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
        const bool over = rest_is_over(idle);
        host_lock_release(&area()->lock);
        if (over) rest_wake();
        rest_if_idle(idle);
        if (program_coherent_anywhere) coherent_rested(me->thread);
    } else turn_leave(me->thread);
    me->inside = false;
    if (__builtin_expect(me->late_count != 0, 0)) signals_late(me);
}

void step_other(program_self *me, int kind, int other, const pool_range *range, const void *pc) {
    program_step step = step_of(me, kind, range, pc);
    step.other = (uint16_t)other;
    step_mix(&step, 0);
    const bool progress = kind != STEP_YIELD && kind != STEP_MSYNC;
    turn_progress(me->thread, progress);
    if (progress) turn_written(here.host);
    if (program_watcher_now && program_watcher_now->other) program_watcher_now->other(&step);
}

void step_turn(program_self *me) {
    if (step_begins(me, STEP_YIELD, 0, NULL)) step_end(me);
}

void prog_sleep(uint64_t ns, const void *pc) {
    program_self *me = self_here();
    if (!step_begin(me)) return;
    step_other(me, STEP_YIELD, UINT16_MAX, NULL, pc);
    turn_give_up(me->thread, ns ? area()->clock_ns + ns : 0);
    const bool idle = area()->idle > IDLE_BEFORE_NAPS; /* perhaps the threads wait for a process outside of the run */
    step_end(me);
    if (idle) nap();
    if (ns) step_turn(me); /* when it has slept */
}

void prog_yield(const void *pc) { prog_sleep(0, pc); }
