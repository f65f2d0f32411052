/* A heap holds every stream whose next instruction is due. The engine executes the earliest one, ties by rank and
 * stream, so requests for a resource come in the order of time. A stream that waits stands in the list of its doorbell,
 * gate or event. */
#include "virtual.h"

#include <stdlib.h>
#include <string.h>

enum state { ON, BLOCKED, WRONG };

/* --- the heap: 4-ary, of (time, stream) ----------------------------------------------------------------------------- */

static bool before(const due *a, const due *b) { return a->ns < b->ns || (a->ns == b->ns && a->id < b->id); }

static void sift_down(simulation *v, due moved) {
    int64_t at = 0;
    for (;;) {
        const int64_t first = 4 * at + 1, end = first + 4 < v->heap_length ? first + 4 : v->heap_length;
        int64_t least = first;
        if (first >= v->heap_length) break;
        for (int64_t k = first + 1; k < end; k++)
            if (before(&v->heap[k], &v->heap[least])) least = k;
        if (!before(&v->heap[least], &moved)) break;
        v->heap[at] = v->heap[least];
        at = least;
    }
    v->heap[at] = moved;
}

static void push(simulation *v, int64_t id, int64_t ns) {
    int64_t at = v->heap_length++;
    const due moved = {ns, id};
    for (; at > 0 && before(&moved, &v->heap[(at - 1) / 4]); at = (at - 1) / 4) v->heap[at] = v->heap[(at - 1) / 4];
    v->heap[at] = moved;
}

static void pop(simulation *v) {
    const due last = v->heap[--v->heap_length];
    if (v->heap_length) sift_down(v, last);
}

/* --- logs and statistics ------------------------------------------------------------------------------------------ */

/* Make room for one more row of a log that has `length` rows. Return the log; NULL without memory, which ends the
 * run. */
static void *one_more(simulation *v, void *rows, size_t size, int64_t length, int64_t *room) {
    if (length < *room) return rows;
    const int64_t more = *room ? 2 * *room : 4096;
    void *grown = realloc(rows, (size_t)more * size);
    if (grown) *room = more;
    else v->out_of_memory = true;
    return grown;
}

void simulation_log_reservation(void *watcher, const resource *r, int32_t rank, int64_t begin_ns, int64_t end_ns,
                                int64_t nbytes) {
    simulation *v = watcher;
    reserved *rows = one_more(v, v->log_reserved, sizeof *rows, v->reserved_length, &v->reserved_room);
    if (!rows) return;
    v->log_reserved = rows;
    rows[v->reserved_length++] = (reserved){begin_ns, end_ns, nbytes, (int32_t)(r - v->model.resources), rank};
}

/* Add to a rank's busy time what no earlier interval covers. Intervals come in the order of begin_ns. */
static void busy(rank_state *r, int64_t begin_ns, int64_t end_ns) {
    const int64_t from = later(begin_ns, r->covered_ns);
    if (end_ns > from) r->busy_ns += end_ns - from, r->covered_ns = end_ns;
}

static void finish(simulation *v, int64_t id, int64_t end_ns) {
    stream *s = &v->streams[id];
    const int op = s->op;
    const rank_state *r = &v->ranks[s->rank];
    v->ops[op].count++, v->ops[op].ns += end_ns - s->began, v->ops[op].queue_ns += s->progress.queue_ns;
    v->steps++;
    if (v->logs) {
        executed *rows = one_more(v, v->log, sizeof *rows, v->log_length, &v->log_room);
        if (rows) {
            v->log = rows;
            rows[v->log_length++] = (executed){
                s->began, end_ns, s->progress.queue_ns, s->rank, r->call, (int32_t)(id % MAX_STREAMS), (int32_t)s->at};
        }
    }
    s->at++, packed_next(&s->next), s->began = end_ns, next_instruction(&s->progress, end_ns);
    /* Thousands of streams take turns: by the time this one is due, its next record has come from memory. */
    __builtin_prefetch(s->next.entry), __builtin_prefetch((const char *)s->next.entry + LINE_BYTES);
}

/* --- doorbells ------------------------------------------------------------------------------------------------------ */

static communicator *comm_of(simulation *v, const virtual_call *c) { return &v->comms[c->comm]; }

static int32_t published_of(const communicator *m) { return layout_published(&m->layout); }

static bell *bell_of(const communicator *m, int32_t doorbell, int64_t epoch) {
    return &m->published[epoch % m->layout.slots * published_of(m) + doorbell];
}

/* Whether a record names a round of its call, or of the lap before it: so epochs are small, whoever wrote the plan. */
static bool names_round(const communicator *m, const virtual_call *c, const record *i) {
    return i->value >= -m->layout.slots && i->value < c->rounds;
}

/* Return when a doorbell came to show an epoch or a later one; NEVER if that is not known yet. */
static int64_t shown_ns(const communicator *m, int32_t doorbell, int64_t epoch) {
    const int32_t rank = doorbell - published_of(m);
    if (epoch <= 0) return 0;
    if (rank >= 0) return m->done_shows[rank] >= epoch ? m->done[rank * m->epochs + epoch - 1] : NEVER;
    const bell *b = bell_of(m, doorbell, epoch);
    return b->epoch >= epoch ? b->ns : NEVER;
}

static int32_t *waiters_of(communicator *m, int32_t doorbell, int64_t epoch) {
    const int32_t rank = doorbell - published_of(m);
    return rank >= 0 ? &m->done_waiters[rank] : &bell_of(m, doorbell, epoch)->waiters;
}

static int32_t doorbell_card(const communicator *m, int32_t doorbell) {
    return m->card_of[layout_doorbell(&m->layout, doorbell, 0).card]; /* on the same card in every slot */
}

/* End a stream's wait for `count` doorbells, of which s->doorbell is the first: at time `shown` the last of them
 * showed. */
static void see(simulation *v, int64_t id, const communicator *m, int64_t shown, int32_t count) {
    const stream *s = &v->streams[id];
    finish(v, id,
           later(s->began, shown) + look_ns(&v->model, s->rank, doorbell_card(m, s->doorbell), s->waits_by, count));
}

static void resume(simulation *v, int32_t id, int64_t shown, int32_t count) {
    const stream *s = &v->streams[id];
    const communicator *m = comm_of(v, &v->calls[v->ranks[s->rank].call]);
    if (v->model.no_way_to >= 0) return; /* the run ends with an earlier stream that has no route */
    if (!reaches(&v->model, s->rank, doorbell_card(m, s->doorbell))) {
        v->stranded = id;
        return;
    }
    see(v, id, m, shown, count);
    v->woken[v->woken_length++] = id;
}

/* Go through a gate's doorbells as far as they are rung. When all are, let its waiters go on. */
static void look_on(simulation *v, int32_t number) {
    gate *g = &v->gates[number];
    const virtual_call *c = &v->calls[g->call];
    communicator *m = comm_of(v, c);
    const group *its = &c->groups[g->group];
    for (; g->next < its->count; g->next++) {
        const int32_t doorbell = its->first + g->next * its->stride;
        const int64_t shown = shown_ns(m, doorbell, g->epoch);
        if (shown == NEVER) {
            int32_t *list = waiters_of(m, doorbell, g->epoch);
            g->link = *list, *list = gate_waits(number);
            return;
        }
        g->ns = later(g->ns, shown);
    }
    g->open = true;
    for (int32_t waiting = g->waiters, next; waiting != NOBODY; waiting = next) {
        next = v->streams[waiting - 1].link;
        resume(v, waiting - 1, g->ns, its->count);
    }
    g->waiters = NOBODY;
}

/* Wake the waiters for an epoch, which their doorbell shows from `shown` on; keep waiters for later ones. */
static void wake(simulation *v, int32_t *list, int64_t epoch, int64_t shown) {
    int32_t waiting = *list, next;
    for (*list = NOBODY; waiting != NOBODY; waiting = next) {
        gate *g = waiting < 0 ? &v->gates[-waiting - 1] : NULL;
        stream *s = g ? NULL : &v->streams[waiting - 1];
        int32_t *link = g ? &g->link : &s->link;
        next = *link;
        if ((g ? g->epoch : s->wanted) > epoch) *link = *list, *list = waiting;
        else if (g) look_on(v, -waiting - 1);
        else resume(v, waiting - 1, shown, 1);
    }
}

static enum state ring(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    communicator *m = comm_of(v, c);
    if (!names_round(m, c, i)) return WRONG;
    const int64_t epoch = c->epoch + i->value;
    const int32_t published = published_of(m), doorbell = i->arg, rank = doorbell - published;
    if (doorbell < 0 || rank >= m->layout.ranks || epoch < 1 || epoch > m->epochs) return WRONG;
    const int32_t at = doorbell_card(m, doorbell);
    if (!reaches(&v->model, s->rank, at)) return WRONG;
    const int64_t end = rung_ns(&v->model, s->rank, at, i->op, s->began),
                  shown = shown_after_ns(&v->model, s->rank, at, i->op, s->began);
    busy(&v->ranks[s->rank], s->began, end);
    if (rank >= 0) {
        while (m->done_shows[rank] < epoch) m->done[rank * m->epochs + m->done_shows[rank]++] = shown;
    } else {
        bell *b = bell_of(m, doorbell, epoch);
        if (b->epoch >= epoch) return WRONG; /* a doorbell only grows */
        b->epoch = epoch, b->ns = shown;
    }
    finish(v, id, end);
    wake(v, waiters_of(m, doorbell, epoch), epoch, shown);
    return ON;
}

static enum state wait(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    communicator *m = comm_of(v, c);
    if (i->arg < 0 || i->arg - published_of(m) >= m->layout.ranks || !names_round(m, c, i) ||
        !reaches(&v->model, s->rank, doorbell_card(m, i->arg)))
        return WRONG;
    const int64_t epoch = c->epoch + i->value;
    const int64_t shown = shown_ns(m, i->arg, epoch);
    s->doorbell = i->arg, s->waits_by = i->op;
    if (shown == NEVER) {
        int32_t *list = waiters_of(m, i->arg, epoch);
        s->wanted = epoch, s->link = *list, *list = stream_waits(id);
        return BLOCKED;
    }
    see(v, id, m, shown, 1);
    return ON;
}

static enum state wait_all(simulation *v, int64_t id, virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    const communicator *m = comm_of(v, c);
    if (i->arg < 0 || i->arg >= c->group_count || !names_round(m, c, i)) return WRONG;
    const int64_t slots = m->layout.slots, epoch = c->epoch + i->value;
    if (epoch <= 0) { /* before the communicator's first round */
        finish(v, id, s->began);
        return ON;
    }
    const group *its = &c->groups[i->arg];
    const int64_t number = c->first_gate + i->arg * (c->rounds + slots) + i->value + slots;
    gate *g = &v->gates[number];
    s->doorbell = its->first, s->waits_by = i->op;
    if (!reaches(&v->model, s->rank, doorbell_card(m, its->first))) return WRONG;
    if (g->group < 0) {
        *g = (gate){.group = i->arg, .epoch = epoch, .waiters = NOBODY, .call = v->ranks[s->rank].call};
        look_on(v, (int32_t)number);
    }
    if (!g->open) {
        s->link = g->waiters, g->waiters = stream_waits(id);
        return BLOCKED;
    }
    see(v, id, m, g->ns, its->count);
    return ON;
}

/* --- events of a rank ----------------------------------------------------------------------------------------------- */

static enum state happen(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    rank_state *r = &v->ranks[s->rank];
    if (i->arg < 0 || i->arg >= c->events[r->member] || r->events[i->arg].ns != NEVER) return WRONG;
    event *e = &r->events[i->arg];
    e->ns = later(s->began, s->progress.computed_ns);
    finish(v, id, s->began);
    for (int32_t waiting = e->waiters, next; waiting != NOBODY; waiting = next) {
        stream *w = &v->streams[waiting - 1];
        next = w->link;
        finish(v, waiting - 1, later(w->began, e->ns));
        v->woken[v->woken_length++] = waiting - 1;
    }
    return ON;
}

static enum state await(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    rank_state *r = &v->ranks[s->rank];
    if (i->arg < 0 || i->arg >= c->events[r->member]) return WRONG;
    event *e = &r->events[i->arg];
    if (e->ns == NEVER) {
        s->link = e->waiters, e->waiters = stream_waits(id), s->doorbell = -1;
        return BLOCKED;
    }
    finish(v, id, later(s->began, e->ns));
    return ON;
}

/* --- bytes ---------------------------------------------------------------------------------------------------------- */

/* Execute the next part of an instruction that moves, orders or combines bytes. */
static enum state go_on(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    rank_state *r = &v->ranks[s->rank];
    const int64_t begin = s->progress.now;
    const enum part part = cost_instruction_part(&v->model, s->rank, c->regions, i, &r->landed_ns, &s->progress);
    if (part == INVALID_RECORD) return WRONG;
    busy(r, begin, s->progress.now);
    if (part == LAST) finish(v, id, s->progress.now);
    return ON;
}

/* Execute a COMPUTE. Its stream goes on when the last tile has begun. */
static enum state compute(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    rank_state *r = &v->ranks[s->rank];
    if (i->arg < 0 || i->arg >= c->kernel_count) return WRONG;
    const kernel_cost *cost = &c->kernels[i->arg];
    const int32_t multiprocessors = v->model.multiprocessors;
    int64_t first, last;
    const int64_t end = cost_compute_tiles(cost, &v->free_ns[(int64_t)s->rank * multiprocessors], multiprocessors,
                                           s->began, &first, &last);
    r->tiles_ns += cost->tiles * cost->tile_ns;
    busy(r, s->began, end);
    s->began = first;
    finish(v, id, end);
    s->progress.now = s->began = last;
    s->progress.computed_ns = later(s->progress.computed_ns, end);
    if (r->tiles_ns > LONGEST_NS) s->progress.now = LONGEST_NS + 1; /* too long, and its sum stays what it is */
    return ON;
}

static enum state execute(simulation *v, int64_t id, virtual_call *c, const record *i) {
    switch (i->op) {
    case SIGNAL:
    case SIGNAL_DATA: return ring(v, id, c, i);
    case WAIT:
    case WAIT_DATA: return wait(v, id, c, i);
    case WAIT_ALL: return wait_all(v, id, c, i);
    case COMPUTE: return compute(v, id, c, i);
    case RECORD: return happen(v, id, c, i);
    case AWAIT: return await(v, id, c, i);
    default: return go_on(v, id, c, i);
    }
}

/* --- calls, one after another on every rank ------------------------------------------------------------------------- */

/* Begin a call on one rank; its state says how many streams that gives. Return false without memory. */
static bool begin_call(simulation *v, int32_t rank, int32_t call, int32_t member, int64_t now) {
    rank_state *r = &v->ranks[rank];
    virtual_call *c = &v->calls[call];
    r->call = call, r->member = member, r->live = 0;
    c->begin_ns[member] = now;
    if (c->events[member] > r->event_room) {
        event *more = realloc(r->events, (size_t)c->events[member] * sizeof *more);
        if (!more) return false;
        r->events = more, r->event_room = c->events[member];
    }
    for (int32_t k = 0; k < c->events[member]; k++) r->events[k] = (event){NEVER, NOBODY};
    r->busy_ns = 0, r->covered_ns = now += v->model.costs->call_ns;
    for (int k = 0; k < MAX_STREAMS; k++) {
        const program_stream *p = &c->streams[member * MAX_STREAMS + k];
        if (!p->length) continue;
        const int64_t id = (int64_t)rank * MAX_STREAMS + k;
        v->streams[id] = (stream){.next = packed_begin(p->records),
                                  .length = p->length,
                                  .began = now,
                                  .progress = {.now = now},
                                  .rank = rank};
        push(v, id, now);
        r->live++;
    }
    c->inside += r->live > 0;
    if (!r->live) c->end_ns[member] = now;
    return true;
}

static bool begin_turn(simulation *v, int32_t rank, int64_t now) {
    rank_state *r = &v->ranks[rank];
    while (v->first_turn && v->first_turn[rank] + r->turn < v->first_turn[rank + 1]) {
        const int32_t *turn = &v->turns[2 * (v->first_turn[rank] + r->turn)];
        if (!begin_call(v, rank, turn[0], turn[1], now)) return false;
        if (r->live) return true;
        now = v->calls[turn[0]].end_ns[turn[1]];
        r->turn++;
    }
    return true;
}

static bool end_stream(simulation *v, int32_t rank, int64_t now) {
    rank_state *r = &v->ranks[rank];
    virtual_call *c = &v->calls[r->call];
    c->end_ns[r->member] = later(c->end_ns[r->member], now);
    if (--r->live) return true;
    const int64_t end = c->end_ns[r->member];
    r->exposed_ns += end - c->begin_ns[r->member] - v->model.costs->call_ns - r->busy_ns;
    if (!--c->inside) v->ended = r->call;
    r->turn++;
    return begin_turn(v, rank, end);
}

enum outcome simulation_begin(simulation *v, int64_t call, const int32_t *ranks, int64_t now) {
    virtual_call *c = &v->calls[call];
    communicator *m = comm_of(v, c);
    for (int32_t k = 0; k < c->members; k++)
        if (ranks[k] < 0 || ranks[k] >= v->model.rank_count || v->ranks[ranks[k]].live) return BAD_RECORD;
    memset(m->published, 0, (size_t)(published_of(m) * m->layout.slots) * sizeof *m->published);
    memset(m->done_shows, 0, (size_t)m->layout.ranks * sizeof *m->done_shows);
    for (int64_t k = 0; k < c->group_count * (c->rounds + m->layout.slots); k++) v->gates[c->first_gate + k].group = -1;
    for (int32_t k = 0; k < c->members; k++)
        if (!begin_call(v, ranks[k], (int32_t)call, k, now)) return NO_MEMORY;
    return OVER;
}

enum outcome simulation_run(simulation *v, int64_t *where) {
    *where = -1;
    for (int32_t rank = 0; rank < v->model.rank_count; rank++)
        if (!begin_turn(v, rank, 0)) return NO_MEMORY;
    return simulation_advance(v, NEVER, where);
}

enum outcome simulation_advance(simulation *v, int64_t until, int64_t *where) {
    *where = -1, v->stranded = -1, v->ended = -1;
    while (v->heap_length) {
        const int64_t id = v->heap[0].id;
        if (v->heap[0].ns >= until || (v->ended >= 0 && !v->first_turn)) return PAUSED;
        stream *s = &v->streams[id];
        *where = id;
        change_ways(&v->model, v->heap[0].ns);
        record i;
        if (s->at < s->length) i = packed_record(&s->next), s->op = i.op;
        if (s->progress.now < s->progress.computed_ns && cost_needs_result(s->at < s->length ? &i : NULL)) {
            s->progress.now = s->began = s->progress.computed_ns;
            sift_down(v, (due){s->progress.now, id});
            continue;
        }
        if (s->at == s->length) {
            pop(v);
            if (!end_stream(v, s->rank, s->progress.now)) return NO_MEMORY;
            continue;
        }
        const enum state state = execute(v, id, &v->calls[v->ranks[s->rank].call], &i);
        if (v->model.no_way_to >= 0) {
            if (v->stranded >= 0) *where = v->stranded;
            return NO_WAY;
        }
        if (state == WRONG) return BAD_RECORD;
        if (state == BLOCKED) pop(v);
        else sift_down(v, (due){s->progress.now, id});
        if (s->progress.now > LONGEST_NS) return TOO_LONG;
        if (v->out_of_memory) return NO_MEMORY;
        while (v->woken_length) {
            const int32_t woken = v->woken[--v->woken_length];
            push(v, woken, v->streams[woken].progress.now);
        }
    }
    for (int32_t rank = 0; rank < v->model.rank_count; rank++)
        if (v->ranks[rank].live) return DEADLOCK;
    return OVER;
}
