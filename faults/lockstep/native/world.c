#define _POSIX_C_SOURCE 200809L
#include "world.h"
#include "cache.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BETWEEN_LOOKS = 256 }; /* moves of an execution, from one look at the clock to the next */
static const double LOCK_S = 10; /* nobody else has these locks */

/* --- what there is ------------------------------------------------------------------------------------------------- */

/* Take a part of the storage, in whole lines; while there is none, only count. */
static void *take(uint8_t *storage, size_t *at, size_t nbytes) {
    uint8_t *const here = storage ? storage + *at : NULL;
    *at += (nbytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    return here;
}

/* Lay everything out in the storage: what every run finds empty, then the locks, then bytes that nothing looks at while lines are
 * absent. */
static void lay_out(world *w, uint8_t *storage) {
    const size_t card = (size_t)w->card_bytes, lines = card / LINE_BYTES;
    const int32_t cards = w->layout.cards;
    size_t at = 0;
    uint64_t *const damage = take(storage, &at, DAMAGE_BYTES);
    for (int32_t k = 0; k < cards; k++) {
        uint8_t *const pool = take(storage, &at, card);
        if (storage) w->cards[k] = pool;
    }
    for (int32_t host = 0; host < w->hosts; host++)
        for (int32_t k = 0; k < cards; k++) {
            uint8_t *const state = take(storage, &at, lines), *const pending = take(storage, &at, lines);
            for (int32_t rank = 0; storage && rank < w->ranks; rank++)
                if (w->host_of[rank] == host)
                    w->memory[rank].cards[k] = (card_cache){
                        .pool = w->cards[k], .state = state, .pending = pending, .damage = damage, .card = k};
        }
    w->emptied_bytes = at;
    for (int32_t host = 0; host < w->hosts; host++) {
        host_lock *const lock = take(storage, &at, HOST_LOCK_BYTES);
        for (int32_t rank = 0; storage && rank < w->ranks; rank++)
            if (w->host_of[rank] == host) w->memory[rank].lock = lock;
    }
    for (int32_t host = 0; host < w->hosts; host++)
        for (int32_t k = 0; k < cards; k++) {
            uint8_t *const data = take(storage, &at, card), *const posted = take(storage, &at, card);
            for (int32_t rank = 0; storage && rank < w->ranks; rank++)
                if (w->host_of[rank] == host)
                    w->memory[rank].cards[k].data = data, w->memory[rank].cards[k].posted = posted;
        }
    w->storage_bytes = at;
}

bool world_make(world *w, const int32_t *host_of) {
    const size_t ranks = (size_t)w->ranks, codes = ranks * MAX_STREAMS;
    w->card_bytes = w->base + (w->layout.extent_bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    w->host_of = malloc(ranks * sizeof *w->host_of);
    w->cards = calloc((size_t)w->layout.cards, sizeof *w->cards);
    w->memory = calloc(ranks, sizeof *w->memory);
    w->now = calloc(ranks, sizeof *w->now), w->turn = calloc(ranks, sizeof *w->turn);
    w->line_up = calloc(ranks, sizeof *w->line_up), w->choice = calloc(codes, sizeof *w->choice);
    w->chosen = calloc(codes, sizeof *w->chosen), w->stuck = calloc(codes, sizeof *w->stuck);
    w->why = calloc(codes, sizeof *w->why), w->events = calloc(ranks, sizeof *w->events);
    if (!w->host_of || !w->cards || !w->memory || !w->now || !w->turn || !w->line_up || !w->choice || !w->chosen ||
        !w->stuck || !w->why || !w->events)
        return false;
    memcpy(w->host_of, host_of, ranks * sizeof *host_of);
    lay_out(w, NULL);
    void *storage = NULL;
    if (posix_memalign(&storage, LINE_BYTES, w->storage_bytes)) return false;
    w->storage = storage;
    lay_out(w, storage);
    for (int32_t rank = 0; rank < w->ranks; rank++) {
        shadow *const its = &w->memory[rank];
        its->card_count = w->layout.cards, its->card_bytes = w->card_bytes, its->lock_s = LOCK_S;
        memset(its->lock, 0, HOST_LOCK_BYTES);
    }
    for (int32_t rank = 0; rank < w->ranks; rank++)
        if (!host_lock_make(w->memory[rank].lock)) return false;
    return true;
}

void world_free(world *w) {
    for (int32_t rank = 0; w->memory && rank < w->ranks; rank++) shadow_discard(&w->memory[rank]);
    for (int32_t rank = 0; w->now && rank < w->ranks; rank++) free(w->now[rank].scratch);
    for (int32_t rank = 0; w->events && rank < w->ranks; rank++) free(w->events[rank]);
    free(w->host_of), free(w->cards), free(w->memory), free(w->now), free(w->turn), free(w->line_up), free(w->choice);
    free(w->chosen), free(w->stuck), free(w->why), free(w->events), free(w->moves), free(w->first), free(w->last);
    free(w->storage);
}

/* --- a run --------------------------------------------------------------------------------------------------------- */

typedef struct {
    world *w;
    const call *calls;
    int32_t count;
    uint8_t *const *buffers;
    const asked *ask;
} run;

/* Make room for what a run keeps. Return false when there is no memory. */
static bool prepare(const run *r) {
    world *const w = r->w;
    int64_t events = 0;
    for (int32_t k = 0; k < r->count; k++)
        for (int32_t rank = 0; rank < w->ranks; rank++)
            if (r->calls[k].plan->part[rank].event_count > events) events = r->calls[k].plan->part[rank].event_count;
    if (events > w->events_room || !w->events[0]) {
        for (int32_t rank = 0; rank < w->ranks; rank++) {
            free(w->events[rank]);
            if (!(w->events[rank] = malloc((size_t)events + 1))) return false;
        }
        w->events_room = events;
    }
    if (r->count > w->calls_room) {
        const size_t room = (size_t)r->count * (size_t)w->ranks * sizeof *w->first;
        free(w->first), free(w->last);
        w->first = malloc(room), w->last = malloc(room), w->calls_room = r->count;
        if (!w->first || !w->last) return w->calls_room = 0, false;
    }
    for (int64_t k = 0; k < (int64_t)r->count * w->ranks; k++) w->first[k] = w->last[k] = -1;
    memset(w->storage, 0, w->emptied_bytes);
    for (int32_t rank = 0; rank < w->ranks; rank++) {
        shadow_discard(&w->memory[rank]);
        w->turn[rank] = -1;
    }
    const size_t codes = (size_t)w->ranks * MAX_STREAMS;
    memset(w->stuck, 0, codes * sizeof *w->stuck);
    memset(w->chosen, 0xFF, codes * sizeof *w->chosen); /* -1: never */
    w->in_line = w->choices = 0, w->move_count = 0;
    return true;
}

static bool moved(world *w, int32_t move) {
    if (w->move_count == w->move_room) {
        const int64_t more = w->move_room ? 2 * w->move_room : 1024;
        int32_t *const grown = realloc(w->moves, (size_t)more * sizeof *grown);
        if (!grown) return false;
        w->moves = grown, w->move_room = more;
    }
    w->moves[w->move_count++] = move;
    return true;
}

static bool pending(const program *p, int32_t stream) { return p->position[stream] < p->lengths[stream]; }

static bool has_ended(const program *p) {
    for (int32_t s = 0; s < p->stream_count; s++)
        if (pending(p, s)) return false;
    return true;
}

static void begin(const run *r, int32_t rank) {
    world *const w = r->w;
    const int32_t number = w->turn[rank];
    program *const p = &w->now[rank];
    uint8_t *const scratch = p->scratch;
    const int64_t scratch_bytes = p->scratch_bytes;
    *p = r->calls[number].plan->part[rank];
    p->cards = w->cards, p->through = &w->memory[rank], p->events = w->events[rank];
    p->scratch = scratch, p->scratch_bytes = scratch_bytes;
    memcpy(p->buffers, r->buffers + ((int64_t)number * w->ranks + rank) * MAX_BUFFERS, sizeof p->buffers);
    program_begin(p, r->calls[number].epoch, r->calls[number].tag);
}

static void leave_line(world *w, int32_t rank) {
    int32_t kept = 0;
    for (int32_t k = 0; k < w->in_line; k++)
        if (w->line_up[k] != rank) w->line_up[kept++] = w->line_up[k];
    w->in_line = kept;
}

/* Go on to the rank's next call that has anything to do. Return false where whoever was asked wants the run to end. */
static bool go_on(const run *r, int32_t rank) {
    world *const w = r->w;
    while (w->turn[rank] < 0 || has_ended(&w->now[rank])) {
        if (w->turn[rank] >= 0) {
            leave_line(w, rank);
            if (!r->ask->ended(r->ask->of, w->turn[rank], rank)) return false;
        }
        if (++w->turn[rank] == r->count) return true;
        w->line_up[w->in_line++] = rank;
        begin(r, rank);
    }
    return true;
}

static void find_choices(world *w) {
    w->choices = 0;
    for (int32_t k = 0; k < w->in_line; k++) {
        const program *const p = &w->now[w->line_up[k]];
        for (int32_t s = 0; s < p->stream_count; s++)
            if (pending(p, s)) w->choice[w->choices++] = world_code(w->line_up[k], s);
    }
}

/* Return the step that comes next; -1 where all are stuck. */
static int32_t next_step(const world *w, const order *by) {
    int32_t best = -1;
    for (int32_t k = 0; k < w->choices; k++) {
        const int32_t code = w->choice[k];
        if (w->stuck[code]) continue;
        if (best < 0 || by->priority[code] < by->priority[best] ||
            (by->priority[code] == by->priority[best] && w->chosen[code] < w->chosen[best]))
            best = code;
    }
    return best;
}

/* Let nature do one thing. A move that changes nothing is not noted, and none on a line of doorbells is. Return false when there is
 * no memory. */
static bool suffer(world *w, const order *by, int64_t number) {
    const blow *const b = &by->blows[number];
    const adversary_move move = {(enum action)b->action, {b->card, b->line, b->line + 1}, {1}};
    int64_t lines = 0;
    for (int32_t rank = 0; rank < w->ranks; rank++) {
        if (w->host_of[rank] != b->host) continue;
        int64_t *const count = &w->memory[rank].moved[b->action];
        *count = 0;
        if (!shadow_suffer(&w->memory[rank], &move)) return false;
        lines += *count;
    }
    if (!lines || b->line * LINE_BYTES - w->base < w->layout.data_offset) return true;
    return moved(w, (int32_t)-number - 1);
}

static double thread_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool releases(const record *r) { return r->op == SIGNAL || r->op == SIGNAL_DATA || r->op == RECORD; }

/* Execute the step's instruction. Return DONE, IDLE where it is stuck, or how the run ends. */
static int execute(const run *r, int32_t code) {
    world *const w = r->w;
    const int32_t rank = code / MAX_STREAMS, stream = code % MAX_STREAMS;
    program *const p = &w->now[rank];
    const int64_t at = p->position[stream];
    const enum status status = program_execute(p, stream, &w->why[code]);
    if (status != KERNEL) return (int)status;
    if (!r->ask->kernel(r->ask->of, w->turn[rank], rank, stream, at)) return RAISED;
    program_skip(p, stream);
    return DONE;
}

static bool note_step(world *w, int32_t code, int64_t clock, bool first) {
    const int32_t rank = code / MAX_STREAMS;
    const int64_t row = (int64_t)w->turn[rank] * w->ranks + rank;
    if (first) w->first[row] = clock;
    w->last[row] = clock;
    return moved(w, code);
}

static bool has_begun(const program *p) {
    for (int32_t s = 0; s < p->stream_count; s++)
        if (p->position[s]) return true;
    return false;
}

int world_run(world *w, const call *calls, int32_t count, uint8_t *const *buffers, const order *by, double end_s,
              const asked *ask) {
    const run r = {w, calls, count, buffers, ask};
    if (!prepare(&r)) return OUT_OF_MEMORY;
    for (int32_t rank = 0; rank < w->ranks; rank++)
        if (!go_on(&r, rank)) return RAISED;
    find_choices(w);
    int64_t clock = 0, ticks = 0, blows_left = 0;
    for (uint64_t turns = 0; w->in_line;) {
        const int32_t code = next_step(w, by);
        if (code < 0) return STUCK;
        for (;; blows_left--) {
            if (turns++ % BETWEEN_LOOKS == 0) {
                if (thread_s() > end_s) return SPENT;
                if (!ask->look(ask->of)) return RAISED;
            }
            if (!blows_left) break;
            if (!suffer(w, by, blows_left - 1)) return OUT_OF_MEMORY;
        }
        blows_left = by->blow_count;
        w->chosen[code] = ticks++;
        const int32_t rank = code / MAX_STREAMS, stream = code % MAX_STREAMS;
        program *const p = &w->now[rank];
        const bool first = !has_begun(p);
        const record *const next = &p->records[stream][p->position[stream]];
        const int status = execute(&r, code);
        if (status == IDLE) {
            w->stuck[code] = true;
            continue;
        }
        if (status != DONE) {
            w->choice[0] = code; /* where it happened, which is the last move */
            return moved(w, code) ? status : OUT_OF_MEMORY;
        }
        if (!note_step(w, code, clock++, first)) return OUT_OF_MEMORY;
        if (releases(next)) memset(w->stuck, 0, (size_t)w->ranks * MAX_STREAMS * sizeof *w->stuck);
        if (pending(p, stream)) continue;
        if (!go_on(&r, rank)) return RAISED;
        find_choices(w);
    }
    return DONE;
}
