/* Records a run, as a watcher around the checker. */
#include "record.h"
#include "tears.h"
#include "turn.h"

#include <stdatomic.h>

#include "area.h"
#include "self.h"

run_record *record_now;
static const program_watcher *watched;

static void add(record_entry entry) {
    const uint32_t at = atomic_fetch_add((_Atomic uint32_t *)&record_now->count, 1);
    if (at < RECORD_MOST) record_now->entries[at] = entry;
}

static uint64_t line_digest(const uint8_t *line) { return step_digest(line, LINE_BYTES); }

/* Return what a thread knows, to which this step adds: the bytes that it loads. */
static uint64_t knows(const program_step *s, const uint8_t *loaded) {
    program_self *me = self;
    if (!me || me->thread != s->thread) return 0;
    me->knows_more |= me->outside_looks || s->kind == STEP_DEVICE_SEEN;
    const uint64_t before = me->knows, command = here.area->threads[me->thread].command;
    const uint64_t its[] = {before, command << 32 | (uint64_t)s->kind << 16 | s->what << 8 | s->pool,
                            (uint64_t)s->offset, (uint64_t)s->nbytes, loaded ? step_digest(loaded, s->nbytes) : 0};
    me->knows = step_digest((const uint8_t *)its, sizeof its);
    return me->knows_more ? 0 : before | 1;
}

static void add_step(const program_step *s, int what, const uint8_t *loaded) {
    const bool inside = s->pool < PROGRAM_POOLS;
    const int64_t first = s->offset / PROGRAM_LINE, last = (s->offset + s->nbytes - 1) / PROGRAM_LINE;
    add((record_entry){
        .number = (uint32_t)s->number,
        .line = inside ? (uint32_t)first : 0,
        .more = inside ? (uint32_t)(last - first + 1) : s->other,
        .thread = s->thread,
        .kind = s->kind,
        .what = (uint8_t)what,
        .host = s->host,
        .pool = s->pool,
        .cause = s->locked,
        .stage = (uint8_t)s->stage,
        .knows = knows(s, loaded),
        .bytes = inside && s->kind == STEP_LOAD ? line_digest(program_look(s->host, s->pool, first).cached) : 0,
    });
}

static void on_load(const program_step *step, const uint8_t *bytes) {
    add_step(step, 0, bytes);
    if (watched && watched->load) watched->load(step, bytes);
}

static void on_store(const program_step *step, const uint8_t *before, const uint8_t *after) {
    add_step(step, step->kind == STEP_STORE && store_tears(step->offset, step->nbytes),
             step->kind == STEP_RMW ? before : NULL);
    if (watched && watched->store) watched->store(step, before, after);
}

static void on_flush(const program_step *step, uint64_t dirty, bool was_present) {
    program_step its = *step;
    its.locked = was_present;
    add_step(&its, step->what, NULL);
    if (watched && watched->flush) watched->flush(step, dirty, was_present);
}

static void on_fence(const program_step *step) {
    add_step(step, step->what, NULL);
    if (watched && watched->fence) watched->fence(step);
}

static void on_other(const program_step *step) {
    add_step(step, step->what, NULL);
    if (watched && watched->other) watched->other(step);
}

static void on_move(const program_move *m) {
    const bool leaves = m->kind == MOVE_LAND || m->kind == MOVE_WRITE_BACK; /* told before it arrives */
    add((record_entry){
        .number = (uint32_t)m->number,
        .line = (uint32_t)m->line,
        .more = m->kind == MOVE_NT ? (uint32_t)m->store : 0,
        .thread = m->thread,
        .kind = (uint8_t)(RECORD_MOVE + m->kind),
        .host = m->host,
        .pool = m->pool,
        .cause = m->cause,
        .stage = (uint8_t)here.area->stage,
        .bytes = leaves ? line_digest(program_look(m->host, m->pool, m->line).pool) : 0,
    });
    if (watched && watched->move) watched->move(m);
}

static void on_begin(bool first) {
    if (watched && watched->begin) watched->begin(first);
}

static void on_end(void) {
    if (watched && watched->end) watched->end();
}

static void on_stuck(void) {
    if (watched && watched->stuck) watched->stuck();
}

static const program_watcher recorder = {
    .begin = on_begin,
    .load = on_load,
    .store = on_store,
    .flush = on_flush,
    .fence = on_fence,
    .other = on_other,
    .move = on_move,
    .end = on_end,
    .stuck = on_stuck,
};

const program_watcher *record_around(const program_watcher *inner) {
    watched = inner;
    return &recorder;
}

static void add_of_thread(int thread, enum record_kind kind, int what, int more) {
    if (!record_now) return;
    const program_area *a = here.area;
    add((record_entry){.number = (uint32_t)a->steps,
                       .more = (uint32_t)more,
                       .thread = (uint16_t)thread,
                       .kind = (uint8_t)kind,
                       .what = (uint8_t)what,
                       .host = a->threads[thread].host,
                       .pool = UINT8_MAX,
                       .stage = (uint8_t)a->stage});
}

void record_born(int thread, int maker) { add_of_thread(thread, RECORD_BORN, 0, maker); }
void record_awaits(int thread, enum awaits what) { add_of_thread(thread, RECORD_AWAITS, what, 0); }

static uint32_t first_behind(uint64_t step) {
    uint32_t at = record_now->count < RECORD_MOST ? record_now->count : RECORD_MOST;
    while (at > 0 && record_now->entries[at - 1].number > step) at--;
    return at;
}

static bool touches(const record_entry *e, int pool, int64_t line) {
    const int64_t count = e->kind < RECORD_MOVE ? e->more : 1;
    return e->pool == pool && line >= e->line && line < e->line + count;
}

static bool fetches(const record_entry *e) {
    return e->kind == RECORD_MOVE + MOVE_FETCH || e->kind == RECORD_MOVE + MOVE_FETCH_POSTED;
}

static bool arrives(const record_entry *e) {
    const int move = e->kind - RECORD_MOVE;
    const bool stores = e->kind == STEP_STORE || e->kind == STEP_RMW;
    return move == MOVE_LAND || move == MOVE_WRITE_BACK || move == MOVE_NT || (stores && is_coherent(e->pool, e->line));
}

/* Say of a line that a thread has loaded, from some entry of the record on, whether something has arrived there. */
static enum cycle look_at_line(int pool, int64_t line, uint32_t from, uint32_t to) {
    enum cycle found = CYCLE_WAITS;
    for (const record_entry *e = record_now->entries + from; e < record_now->entries + to; e++) {
        if (!touches(e, pool, line)) continue;
        if (arrives(e)) found = CYCLE_WOKEN;
        const bool looks = e->kind == RECORD_MOVE + MOVE_FETCH || (e->kind == STEP_LOAD && is_coherent(pool, line));
        if (looks && e->host == here.host && found == CYCLE_WOKEN) return CYCLE_LOOKS;
    }
    return found;
}

static enum cycle look_at_cycle(int thread, uint32_t from) {
    const uint32_t to = first_behind(UINT64_MAX);
    enum cycle found = CYCLE_WAITS;
    for (const record_entry *e = record_now->entries + from; e < record_now->entries + to; e++) {
        const bool loads = e->kind == STEP_LOAD || e->kind == STEP_RMW;
        for (int64_t k = 0; loads && e->thread == thread && e->pool < PROGRAM_POOLS && k < e->more; k++) {
            const enum cycle its = look_at_line(e->pool, e->line + k, from, to);
            if (its == CYCLE_LOOKS) return CYCLE_LOOKS;
            if (its == CYCLE_WOKEN) found = CYCLE_WOKEN;
        }
    }
    return found;
}

static void add_cycle(int thread, uint64_t since, uint64_t looks_since, enum cycle what) {
    const program_area *a = here.area;
    add((record_entry){.number = (uint32_t)a->steps,
                       .line = (uint32_t)looks_since,
                       .more = (uint32_t)since,
                       .thread = (uint16_t)thread,
                       .kind = RECORD_CYCLE,
                       .what = (uint8_t)what,
                       .host = a->threads[thread].host,
                       .pool = UINT8_MAX});
}

enum cycle record_cycle(int thread, uint64_t since) {
    const program_area *a = here.area;
    const uint32_t to = first_behind(UINT64_MAX);
    uint32_t from = first_behind(since);
    while (from < to && record_now->entries[from].host != here.host) from++; /* others before its round */
    const uint64_t looks_since = from < to ? record_now->entries[from].number - 1 : since; /* naps are not recorded */
    enum cycle found = look_at_cycle(thread, from);
    const bool asked = !a->free_from || looks_since + 1 < a->free_from;
    if ((asked || found != CYCLE_WAITS) && turn_alone(thread) && !a->options.coherent[0].end) found = CYCLE_STAYS;
    if (found != CYCLE_LOOKS) add_cycle(thread, since, looks_since, found);
    return found;
}

/* Whether something has arrived on a line since a thread has looked there from some entry of the record on. */
static bool could_look_again(const record_entry *look, const record_entry *end) {
    for (const record_entry *e = look + 1; e < end; e++)
        if (arrives(e) && touches(e, look->pool, look->line)) return true;
    return false;
}

bool record_repeats(void) {
    const program_area *a = here.area;
    if (!record_now) return false;
    const record_entry *end = record_now->entries + first_behind(UINT64_MAX);
    const bool broken = a->crashed || damage_armed(a->damage); /* whoever looks again may see something else */
    for (int k = 0; k < a->thread_count; k++) {
        if (!a->cycles[k].stays || turn_state(k) == THREAD_CRASHED) continue;
        for (const record_entry *e = record_now->entries + first_behind(a->cycles[k].stays - 1); e < end; e++)
            if (fetches(e) && e->host == a->threads[k].host && (broken || could_look_again(e, end))) {
                add_cycle(k, a->steps, a->steps, CYCLE_REPEATS);
                return true;
            }
    }
    return false;
}
