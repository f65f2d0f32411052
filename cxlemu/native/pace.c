#define _GNU_SOURCE
#include "pace.h"

#include <stdint.h>
#include <time.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

enum { LOCK_S = 10 }; /* a holder needs a microsecond: after seconds it is stopped, not slow */

static int64_t round_to(int64_t bytes, int64_t whole) { return (bytes + whole - 1) / whole * whole; }

int64_t pace_clocks_bytes(int64_t resource_count, int64_t card_count, int64_t card_bytes) {
    return CLOCKS_HEAD_BYTES + round_to(resource_count * (int64_t)sizeof(resource), CLOCKS_HEAD_BYTES) +
           card_count * (card_bytes / LINE_BYTES) * (int64_t)sizeof(rung);
}

int64_t pace_now(const pacer *p) {
    if (p->test_ns) return *p->test_ns;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)((double)(t.tv_sec * 1000000000LL + t.tv_nsec) / p->time_scale);
}

void pace_begin(program *p) {
    pacer *its = p->pacing->pacer;
#if defined(__linux__)
    prctl(PR_SET_TIMERSLACK, 1); /* in ns, for this thread: its naps end on time */
#endif
    const int64_t begin = pace_now(its) + its->model.costs->call_ns; /* the previous call ended before now */
    for (int32_t s = 0; s < MAX_STREAMS; s++) p->pacing->streams[s] = (progress){.now = begin};
    its->ended_ns = begin;
}

void pace_end(program *p) {
    pacer *its = p->pacing->pacer;
    for (int32_t s = 0; s < p->stream_count; s++) its->ended_ns = later(its->ended_ns, p->pacing->streams[s].now);
}

void pace_order(const program *p, int32_t order[MAX_STREAMS]) {
    const progress *streams = p->pacing->streams;
    for (int32_t s = 0; s < p->stream_count; s++) {
        int32_t at = s;
        for (; at > 0 && streams[order[at - 1]].now > streams[s].now; at--) order[at] = order[at - 1];
        order[at] = s;
    }
}

bool pace_due(const program *p, int32_t s, obstacle *found) {
    progress *stream = &p->pacing->streams[s];
    const record *next = p->position[s] < p->lengths[s] ? &p->records[s][p->position[s]] : NULL;
    if (stream->now < stream->computed_ns && cost_needs_result(next)) stream->now = stream->computed_ns;
    const int64_t due = stream->now;
    if (due <= pace_now(p->pacing->pacer)) return true;
    *found = (obstacle){.stream = s, .doorbell = MODELLED_TIME, .at = p->position[s], .wanted = due};
    return false;
}

/* --- doorbells ------------------------------------------------------------------------------------------------------- */

static rung *rung_at(const program *p, place at) {
    const pacer *its = p->pacing->pacer;
    return &its->rung[at.card * its->card_lines + at.offset / LINE_BYTES];
}

/* Return how many rings of a rank's done doorbell are remembered. Each ring takes two notes, which stand beside the
 * rank's published doorbells of all slots. A rank that reads nothing rings once per call, and is at most 2 * slots
 * calls ahead of a rank that has yet to wait for it. */
static int64_t notes_of(const program *p) {
    return later((int64_t)p->layout.slots * p->layout.doorbells_per_rank / 2, 1);
}

enum field { EPOCH, SHOWN_NS };

/* Return where a field of the ring of that number is noted. Where there is room for one note alone, both fields share
 * it, and it keeps the time, which is stored last. */
static _Atomic int64_t *note_at(const program *p, int32_t rank, int64_t number, enum field field) {
    const int64_t last = (int64_t)p->layout.slots * p->layout.doorbells_per_rank - 1,
                  wanted = number % notes_of(p) * 2 + field;
    const int64_t at = wanted < last ? wanted : last;
    const int32_t doorbell = rank * p->layout.doorbells_per_rank + (int32_t)(at / p->layout.slots);
    return &rung_at(p, doorbell_place(p, doorbell, at % p->layout.slots))->note;
}

static int64_t noted(const program *p, int32_t rank, int64_t number, enum field field) {
    return atomic_load_explicit(note_at(p, rank, number, field), memory_order_relaxed);
}

/* Return when a rank's done doorbell came to show this epoch or a later one; 0 where no noted ring shows it. */
static int64_t done_ns(const program *p, int32_t doorbell, int32_t rank, int64_t epoch) {
    const int64_t rings = atomic_load_explicit(&rung_at(p, doorbell_place(p, doorbell, epoch))->ns,
                                               memory_order_relaxed);
    const int64_t oldest = later(rings - notes_of(p), 0);
    int64_t shown = 0;
    for (int64_t k = rings, its = INT64_MAX, next; k-- > oldest && (next = noted(p, rank, k, EPOCH)) >= epoch;
         its = next) {
        if (next >= its) break; /* rung in another communicator, which had the same lines */
        shown = noted(p, rank, k, SHOWN_NS);
    }
    return shown;
}

static void ring(program *p, int32_t s, const record *r) {
    const pacer *its = p->pacing->pacer;
    progress *stream = &p->pacing->streams[s];
    const int64_t epoch = p->epoch + r->value;
    const int32_t rank = r->arg - published_count(p);
    const place at = doorbell_place(p, r->arg, epoch);
    const int64_t shown = shown_after_ns(&its->model, its->rank, its->card_of[at.card], r->op, stream->now);
    if (rank < 0) atomic_store_explicit(&rung_at(p, at)->ns, shown, memory_order_relaxed);
    else {
        _Atomic int64_t *rings = &rung_at(p, at)->ns;
        const int64_t number = atomic_load_explicit(rings, memory_order_relaxed);
        atomic_store_explicit(note_at(p, rank, number, EPOCH), epoch, memory_order_relaxed);
        atomic_store_explicit(note_at(p, rank, number, SHOWN_NS), shown, memory_order_relaxed);
        atomic_store_explicit(rings, number + 1, memory_order_release);
    }
    atomic_thread_fence(memory_order_release); /* the note is there before the doorbell shows it */
    stream->now = rung_ns(&its->model, its->rank, its->card_of[at.card], r->op, stream->now);
}

static int64_t shown_ns(const program *p, int32_t doorbell, int64_t epoch) {
    const int32_t rank = doorbell - published_count(p);
    if (epoch <= 0) return 0; /* before the communicator's first round */
    if (rank >= 0) return done_ns(p, doorbell, rank, epoch);
    return atomic_load_explicit(&rung_at(p, doorbell_place(p, doorbell, epoch))->ns, memory_order_relaxed);
}

void pace_observe(program *p, int32_t s, const record *r) {
    const pacer *its = p->pacing->pacer;
    progress *stream = &p->pacing->streams[s];
    if (r->op == AWAIT) {
        stream->now = later(stream->now, p->pacing->event_ns[r->arg]);
        return;
    }
    const int64_t epoch = p->epoch + r->value;
    const group one = {.first = r->arg, .count = 1}, *g = r->op == WAIT_ALL ? &p->groups[r->arg] : &one;
    if (r->op == WAIT_ALL && epoch <= 0) return;
    atomic_thread_fence(memory_order_acquire);
    for (int32_t k = 0; k < g->count; k++)
        stream->now = later(stream->now, shown_ns(p, g->first + k * g->stride, epoch));
    const int32_t card = its->card_of[doorbell_place(p, g->first, epoch).card];
    stream->now += look_ns(&its->model, its->rank, card, r->op, g->count);
}

/* --- all other instructions --------------------------------------------------------------------------------------- */

enum status pace_charge(program *p, int32_t s, const record *r, bool *more) {
    pacer *its = p->pacing->pacer;
    progress *stream = &p->pacing->streams[s];
    *more = false;
    if (r->op == SIGNAL || r->op == SIGNAL_DATA) ring(p, s, r);
    else if (r->op == RECORD) p->pacing->event_ns[r->arg] = later(stream->now, stream->computed_ns);
    else {
        if (!host_lock_take(&its->shared->lock, LOCK_S)) return CLOCKS_TIMEOUT;
        *more = cost_instruction_part(&its->model, its->rank, p->pacing->regions, r, &its->landed_ns, stream) == MORE;
        host_lock_release(&its->shared->lock);
    }
    if (!*more) next_instruction(stream, stream->now);
    return DONE;
}

void pace_skip(program *p, int32_t s) {
    const pacing *its = p->pacing;
    progress *stream = &p->pacing->streams[s];
    const record *r = &p->records[s][p->position[s]];
    int64_t first, last;
    if (r->op != COMPUTE || !its->kernels || r->arg < 0 || r->arg >= its->kernel_count) {
        next_instruction(stream, later(stream->now, pace_now(its->pacer)));
        return;
    }
    const int64_t end = cost_compute_tiles(&its->kernels[r->arg], its->pacer->free_ns,
                                           its->pacer->model.multiprocessors, stream->now, &first, &last);
    stream->computed_ns = later(stream->computed_ns, end);
    next_instruction(stream, last);
}

int64_t pace_rest_ns(const program *p, const obstacle *found, int count, bool *only) {
    const pacer *its = p->pacing->pacer;
    int64_t due = INT64_MAX;
    *only = true;
    for (int k = 0; k < count; k++) {
        if (found[k].doorbell != MODELLED_TIME) *only = false;
        else if (found[k].wanted < due) due = found[k].wanted;
    }
    return due == INT64_MAX ? due : (int64_t)((double)(due - pace_now(its)) * its->time_scale) + 1;
}
