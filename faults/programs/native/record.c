/* Records a run, as a watcher around the checker. */
#include "record.h"

#include <stdatomic.h>

#include "area.h"

run_record *record_now;
static const program_watcher *watched;

static void add(record_entry entry) {
    const uint32_t at = atomic_fetch_add((_Atomic uint32_t *)&record_now->count, 1);
    if (at < RECORD_MOST) record_now->entries[at] = entry;
}

static void add_step(const program_step *s, int what) {
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
    });
}

static void on_load(const program_step *step, const uint8_t *bytes) {
    add_step(step, 0);
    if (watched && watched->load) watched->load(step, bytes);
}

static void on_store(const program_step *step, const uint8_t *before, const uint8_t *after) {
    add_step(step, 0);
    if (watched && watched->store) watched->store(step, before, after);
}

static void on_flush(const program_step *step, bool was_dirty, bool was_present) {
    add_step(step, step->what);
    if (watched && watched->flush) watched->flush(step, was_dirty, was_present);
}

static void on_fence(const program_step *step) {
    add_step(step, step->what);
    if (watched && watched->fence) watched->fence(step);
}

static void on_other(const program_step *step) {
    add_step(step, step->what);
    if (watched && watched->other) watched->other(step);
}

static void on_move(const program_move *m) {
    add((record_entry){
        .number = (uint32_t)m->number,
        .line = (uint32_t)m->line,
        .thread = m->thread,
        .kind = (uint8_t)(RECORD_MOVE + m->kind),
        .host = m->host,
        .pool = m->pool,
        .cause = m->cause,
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

void record_born(int thread, int maker) {
    if (!record_now) return;
    const program_area *a = here.area;
    add((record_entry){.number = (uint32_t)a->steps,
                       .more = (uint32_t)maker,
                       .thread = (uint16_t)thread,
                       .kind = RECORD_BORN,
                       .host = a->threads[thread].host,
                       .pool = UINT8_MAX,
                       .stage = (uint8_t)a->stage});
}

void record_cycle(int thread, uint64_t since) {
    const program_area *a = here.area;
    add((record_entry){.number = (uint32_t)a->steps,
                       .more = (uint32_t)since,
                       .thread = (uint16_t)thread,
                       .kind = RECORD_CYCLE,
                       .host = a->threads[thread].host,
                       .pool = UINT8_MAX});
}
