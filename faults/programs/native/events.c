/* Makes a step of every access, flush and fence of a program: changes the cache, and tells the watcher. */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "crash.h"
#include "pages.h"
#include "self.h"
#include "tears.h"

enum { LINES_AT_ONCE = 16 }; /* that a thread flushes one by one, with --free, before others may come in between */

static program_area *area(void) { return here.area; }
static mover by_program(const program_self *me) { return (mover){here.host, (uint16_t)me->thread, BY_PROGRAM}; }

/* --- accesses -------------------------------------------------------------------------------------------------------- */

static void bus_error(program_self *me, const pool_range *r, const void *at, int64_t line) {
    siginfo_t info = {.si_signo = SIGBUS, .si_code = BUS_MCEERR_AR};
    info.si_addr = (uint8_t *)(uintptr_t)at + (line * LINE_BYTES > r->offset ? line * LINE_BYTES - r->offset : 0);
    turn_progress(me->thread, true), turn_written(here.host);
    step_end(me);
    me->failed++;
    syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)syscall(SYS_gettid), SIGBUS, &info);
}

enum use { LOADED, CHANGED, OVERWRITTEN };

/* The lines of a range are here; false after a SIGBUS. */
static bool touch(program_self *me, const pool_range *r, const void *at, enum use use) {
    const pool_lines lines = range_lines(r);
    int64_t broken = 0;
    if (area()->options.nature) nature_touched(me, lines, false);
    if (posts_past(me) && posted_land(me, by_program(me), lines) && use == LOADED) area()->past_early++;
    silent_stores(me, lines);
    if ((use == OVERWRITTEN ? image_overwrite(by_program(me), r, &broken)
                            : image_touch(by_program(me), lines, use != LOADED, &broken)) == DONE)
        return true;
    bus_error(me, r, at, broken);
    return false;
}

/* Whether a thread finds at a place what it has not found there before. */
static bool is_news(program_self *me, const pool_range *r, uint64_t bytes) {
    const uint64_t key = (uint64_t)r->offset * UINT64_C(0x9E3779B97F4A7C15) >> 32;
    const uint32_t slot = (uint32_t)(key ^ (uint64_t)r->nbytes ^ (uint64_t)r->pool << 8) % SEEN;
    const bool same = me->seen[slot].bytes == bytes && me->seen[slot].offset == r->offset &&
                      me->seen[slot].nbytes == r->nbytes && me->seen[slot].pool == r->pool;
    me->seen[slot].bytes = bytes, me->seen[slot].pool = r->pool;
    me->seen[slot].offset = r->offset, me->seen[slot].nbytes = r->nbytes;
    return !same;
}

/* The same of an invalidate of a line. A thread that finds a line as it was at its last invalidate is waiting for it; a
 * message of many lines is progress. */
static bool drops_news(program_self *me, int pool, int64_t line) {
    const pool_range dropped = {pool, line * LINE_BYTES, -LINE_BYTES}; /* no load has this size */
    return is_news(me, &dropped, step_digest(image_of(here.host, pool)->cache.data + line * LINE_BYTES, LINE_BYTES));
}

static void loaded(program_self *me, const pool_range *r, const void *pc, bool locked, bool system) {
    host_image *image = image_of(here.host, r->pool);
    const uint8_t *bytes = image->cache.data + r->offset;
    const pool_lines lines = range_lines(r);
    program_step step = step_of(me, STEP_LOAD, r, pc);
    me->ordered = locked;
    step.locked = locked, step.system = system;
    const uint64_t content = step_digest(bytes, r->nbytes);
    step_mix(&step, content);
    turn_progress(me->thread, is_news(me, r, content));
    if (program_watcher_now && program_watcher_now->load) program_watcher_now->load(&step, bytes);
    if (program_coherent_anywhere) coherent_loads(&step, image->twin);
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
    if (pools_closed && !system) pages_demand(at, nbytes, false);
    if (!range_in_pool(at, nbytes, &r) || !step_begins(me, STEP_LOAD, 0, &r)) return;
    if (!touch(me, &r, at, LOADED)) return;
    loaded(me, &r, pc, false, system);
    step_end(me);
}

void prog_load_rest(const void *at, size_t nbytes, const divided_load *load, const void *pc) {
    pool_range r;
    program_self *me = self_here();
    if (!range_in_pool(at, nbytes, &r) || !step_begins(me, STEP_LOAD, 0, &r)) return;
    if (!(image_of(here.host, r.pool)->cache.state[load->line] & DIRTY))
        image_nature((mover){here.host, (uint16_t)me->thread, BY_NATURE}, EVICT, r.pool, load->line);
    if (!touch(me, &r, at, LOADED)) return;
    loaded(me, &r, pc, false, false);
    const program_step step = step_of(me, STEP_LOAD, &r, pc);
    tears_load(load, &step);
    step_end(me);
}

/* Whether lines are dirty. In a search, each store is an event. */
static bool are_dirty(const pool_range *r) {
    const pool_lines lines = range_lines(r);
    bool all = !area()->options.every;
    for (int64_t k = lines.first; all && k < lines.last; k++)
        all = image_of(here.host, r->pool)->cache.state[k] & DIRTY;
    return all;
}

static void announce(program_self *me, const pool_range *r, const void *pc, int kind, bool system) {
    area()->opens[me->thread] = (open_store){
        .offset = r->offset,
        .nbytes = r->nbytes,
        .number = area()->steps,
        .site = step_site(me, pc),
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
    if (pools_closed && !system) pages_demand(at, nbytes, true);
    if (!range_in_pool(at, nbytes, &r) || !step_begins(me, STEP_STORE, 0, &r)) return;
    const bool dirty = are_dirty(&r);
    if (!touch(me, &r, at, system ? CHANGED : OVERWRITTEN)) return; /* the system may store less than it was asked to */
    announce(me, &r, pc, STEP_STORE, system);
    area()->opens[me->thread].onto_dirty = dirty;
    step_end(me);
}

PROGRAM_EXPORT void prog_load(const void *at, size_t nbytes, const void *pc) { load(at, nbytes, pc, false); }
PROGRAM_EXPORT void prog_store(void *at, size_t nbytes, const void *pc) { store(at, nbytes, pc, false); }
void prog_system_reads(const void *at, size_t nbytes, const void *pc) { load(at, nbytes, pc, true); }
void prog_system_writes(void *at, size_t nbytes, const void *pc) { store(at, nbytes, pc, true); }

void prog_system_wrote(void *at, size_t nbytes, const void *pc) {
    pool_range r;
    program_self *me = self_here();
    if (!range_in_pool(at, nbytes, &r) || !step_begins(me, STEP_STORE, 0, &r)) return;
    me->system_wrote = pc;
    silent_stores(me, range_lines(&r));
    me->system_wrote = NULL;
    step_end(me);
}

/* What is stored past the cache is kept elsewhere at first: a page that the program has closed is to fault at once. */
static void demand(uint8_t *at, size_t nbytes) {
    if (pools_closed) pages_demand(at, nbytes, true);
    else
        for (int end = 0; end < 2; end++) __atomic_fetch_or(end ? at + nbytes - 1 : at, 0, __ATOMIC_RELAXED);
}

PROGRAM_EXPORT void prog_nt_store(void *at, const void *bytes, size_t nbytes, const void *pc) {
    pool_range r;
    program_self *me = self_here();
    if (!outside_pools(at)) demand(at, nbytes);
    if (!range_in_pool(at, nbytes, &r) || !step_begin(me)) {
        memcpy(reachable(at), bytes, nbytes);
        return;
    }
    program_step step = step_of(me, STEP_NT_STORE, &r, pc);
    area()->flushed = true;
    step_mix(&step, step_digest(bytes, r.nbytes));
    turn_progress(me->thread, true), turn_written(here.host);
    if (program_watcher_now && program_watcher_now->store) program_watcher_now->store(&step, NULL, bytes);
    const pool_lines lines = range_lines(&r);
    /* What is dirty leaves first, as if it was written back. */
    for (int64_t line = lines.first; line < lines.last; line++) {
        if (is_coherent(r.pool, line))
            here.area->coherent_met |= UINT64_C(1) << coherent_range(r.pool, line * PROGRAM_LINE);
        if (image_of(here.host, r.pool)->cache.state[line] & DIRTY) image_flush(by_program(me), r.pool, line, true);
    }
    if (crash_now) crash_stored(&step, bytes);
    posted_add(me, r, bytes, step.number);
    nature_stored_past(me, r.pool, r.offset / LINE_BYTES);
    step_end(me);
}

static void flush_outside(program_self *me, const void *at, enum flush_kind kind, const void *pc) {
    program_step step = step_of(me, STEP_FLUSH, NULL, pc);
    step.what = (uint8_t)kind, step.offset = (int64_t)(intptr_t)at;
    step_mix(&step, false);
    turn_progress(me->thread, false);
    if (program_watcher_now && program_watcher_now->flush) program_watcher_now->flush(&step, false, false);
}

/* Whether a flush comes right behind its thread's flush of the line before. */
static bool flushes_on(const program_step *step) {
    const thread_doing last = area()->doing[step->thread];
    return last.kind == STEP_FLUSH && last.pool == step->pool && last.offset == step->offset - LINE_BYTES;
}

/* Lines were flushed, each by a step, and this one has been the last. */
static void flushed(program_self *me, pool_lines lines, posted_row row) {
    const pool_range next = {lines.pool, lines.last * LINE_BYTES, 0};
    me->flush_next = step_place(STEP_FLUSH, &next), me->flush_step = area()->steps + 1;
    nature_flushed(me, lines, row);
}

static void flush_line(program_self *me, const program_step *step) {
    const int pool = step->pool;
    const int64_t line = step->offset / LINE_BYTES;
    const pool_lines its = {pool, line, line + 1};
    const host_image *image = image_of(here.host, pool);
    const bool on = flushes_on(step);
    image_find_stores(by_program(me), pool, line);
    if (image_unannounced(here.host, pool, line)) silent_stores(me, its);
    const bool dirty = image->cache.state[line] & DIRTY, present = image->cache.state[line] & PRESENT;
    if (area()->options.nature) nature_touched(me, its, on);
    step_mix(step, dirty);
    if (dirty) turn_written(here.host);
    if (present || !on) turn_progress(me->thread, dirty || (present && drops_news(me, pool, line)));
    if (program_watcher_now && program_watcher_now->flush) program_watcher_now->flush(step, dirty, present);
    image_flush(by_program(me), pool, line, step->what == FLUSH_KEEP);
    const bool landed = step->what == FLUSH_DROP_ORDERED;
    if (landed) image_complete(by_program(me), its, true);
    list_add(landed ? &me->lingering : &me->flushed, its);
    flushed(me, its, nature_posts(me, its, on));
}

/* Go on to the next step of the same call, where its turn goes on: nobody can come in between. With --free, for a while. */
static bool step_goes_on(program_self *me, enum flush_kind kind, const pool_range *r) {
    const program_options *o = &area()->options;
    if (o->every || area()->pages_hosts) return false;
    if (!o->free_running && !turn_goes_on(me->thread, 1, step_is_quiet(me, STEP_FLUSH, kind, r))) return false;
    if (o->free_running && (r->offset / LINE_BYTES % LINES_AT_ONCE == 0 || turn_state(me->thread) == THREAD_CRASHED))
        return false;
    step_counts(me, step_place(STEP_FLUSH, r));
    return true;
}

/* Whether hardware breaks, or a host crashes, at a step. */
static bool things_break(void) {
    const program_options *o = &area()->options;
    return o->crash_host >= 0 || o->link_host >= 0 || o->lost_pool >= 0 || o->poison_pool >= 0;
}

/* Flush the line of a step that has begun, and those behind it, all at once, where nothing can come in between: each is a step as
 * before, and quiet, as nothing is pending. All of them are progress or, amid such a row, absent. Returns the first line that is left. */
static int64_t flush_row(program_self *me, program_step step, pool_lines lines) {
    program_area *a = area();
    const bool in_turns = !a->options.free_running, on = flushes_on(&step);
    row_states its;
    if ((a->options.nature && a->pages_hosts) || a->idle || step.what == FLUSH_DROP_ORDERED || things_break())
        return lines.first;
    const int64_t most = in_turns ? 1 + (int64_t)turn_left(me->thread, true) : ROW_LINES;
    if (lines.last - lines.first > most) lines.last = lines.first + most;
    for (int64_t line = lines.first; in_pages(here.host) && line < lines.last; line++)
        image_find_stores(by_program(me), lines.pool, line);
    lines.last = image_row(here.host, lines, &its);
    if (lines.first == lines.last || !(on || its.present & 1)) return lines.first;
    uint64_t clean = its.present & ~its.dirty;
    if (clean & 1 && !drops_news(me, lines.pool, lines.first)) return lines.first;
    posted_row row = nature_posts(me, lines, on);
    for (lines.last = row.last, clean &= row_bits(lines) & ~UINT64_C(1); clean; clean &= clean - 1) {
        const int64_t line = lines.first + __builtin_ctzll(clean);
        if (!drops_news(me, lines.pool, line)) lines.last = line, row.stays = false, clean = 0;
    }
    const int64_t count = lines.last - lines.first;
    its.dirty &= row_bits(lines), its.present &= row_bits(lines);
    if (in_turns) turn_goes_on(me->thread, count - 1, true);
    if (a->options.nature) nature_touched(me, lines, on);
    step_mix_flushes(&step, count, its.dirty);
    step.nbytes = count * LINE_BYTES;
    const int64_t last = its.dirty ? ROW_LINES - 1 - __builtin_clzll(its.dirty) : 0;
    a->steps += (uint64_t)last;
    if (its.dirty) turn_written(here.host);
    if (its.present) turn_progress(me->thread, true);
    a->steps += (uint64_t)(count - 1 - last), a->owed = 0;
    if (program_watcher_now && program_watcher_now->flush)
        program_watcher_now->flush(&step, its.dirty, its.present & 1);
    image_flush_row(by_program(me), lines, its.dirty, step.what == FLUSH_KEEP);
    list_add(&me->flushed, lines);
    row.lands &= its.dirty; /* nothing of the others is posted */
    flushed(me, lines, row);
    return lines.last;
}

/* Flush the lines of a range, from the step that has begun on; false where this thread's part in the run ends meanwhile. */
static bool flush_lines(program_self *me, pool_range r, enum flush_kind kind, const void *pc) {
    program_step step = step_of(me, STEP_FLUSH, &r, pc);
    area()->flushed = true;
    step.what = kind == FLUSH_DROP && me->ordered ? FLUSH_DROP_BEHIND : (uint8_t)kind;
    step.nbytes = LINE_BYTES;
    for (pool_lines left = range_lines(&r);;) {
        const int64_t line = left.first;
        step.number = area()->steps, step.offset = line * LINE_BYTES;
        if (left.last - line > 1) left.first = flush_row(me, step, left);
        if (left.first == line) flush_line(me, &step), left.first++;
        if (left.first >= left.last) return true;
        r.offset = left.first * LINE_BYTES;
        if (step_goes_on(me, kind, &r)) continue;
        step_end(me);
        if (!step_begins(me, STEP_FLUSH, kind, &r)) return false;
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
    step_mix(&step, 0);
    if (program_watcher_now && program_watcher_now->fence) program_watcher_now->fence(&step);
    return posted_fence(me, by_program(me), kind);
}

PROGRAM_EXPORT void prog_fence(enum fence_kind kind, const void *pc) {
    program_self *me = self_here();
    if (me && kind == FENCE_LOCKED && !me->flushed.count && !posts_past(me) && !me->lingering.count) {
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
    if (!touch(me, &r, at, CHANGED)) return;
    announce(me, &r, pc, STEP_RMW, false);
    const program_step step = step_of(me, STEP_RMW, &r, pc);
    if (program_coherent_anywhere) coherent_loads(&step, image_of(here.host, r.pool)->twin);
    step_end(me);
}

PROGRAM_EXPORT void prog_rmw_begin(void *at, size_t nbytes, const void *pc) {
    pool_range r;
    program_self *me = self_here();
    if (!range_in_pool(at, nbytes, &r) || !step_begin(me)) return;
    fenced(me, FENCE_LOCKED, pc);
    if (touch(me, &r, at, LOADED) && program_coherent_anywhere) coherent_stores(me->thread, &r);
}

PROGRAM_EXPORT void prog_rmw_end(void *at, size_t nbytes, bool wrote, const void *pc) {
    pool_range r;
    program_self *me = self_here();
    if (!me || !me->inside || !range_in_pool(at, nbytes, &r)) return;
    if (wrote) {
        const pool_lines lines = range_lines(&r);
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
    step_mix(&step, 0);
    area()->expected += kind == STEP_EXPECT_STALE;
    if (program_watcher_now && program_watcher_now->other) program_watcher_now->other(&step);
    step_end(me);
}

void prog_msync(const void *at, size_t nbytes, const void *pc) { tell_range(STEP_MSYNC, at, nbytes, pc); }

PROGRAM_EXPORT void prog_expect_stale(const void *at, size_t nbytes, const void *pc) {
    tell_range(STEP_EXPECT_STALE, at, nbytes, pc);
}

bool prog_page_begin(void) { return step_begin(self_here()); }

void prog_page_end(void) { step_end(self); }

bool prog_in_pool(const void *at, size_t nbytes) {
    pool_range r;
    return range_in_pool(at, nbytes, &r);
}

int program_thread_here(void) { return self ? self->thread : -1; }
int program_host_here(void) { return here.area ? here.host : -1; }
