/* Every stream whose next instruction is due lies in a heap; the earliest one is executed, ties by rank and stream. So
 * requests for a resource come in the order of time. A stream that waits lies in the list of what it waits for. */
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

/* --- what is seen --------------------------------------------------------------------------------------------------- */

/* From when a rank did something; it is called in the order of begin_ns. */
static void busy(rank_state *r, int64_t begin_ns, int64_t end_ns) {
    const int64_t from = later(begin_ns, r->covered_ns);
    if (end_ns > from) r->busy_ns += end_ns - from, r->covered_ns = end_ns;
}

static void finish(simulation *v, int64_t id, int64_t end_ns) {
    stream *s = &v->streams[id];
    const int op = s->records[s->at].op;
    const rank_state *r = &v->ranks[s->rank];
    v->ops[op].count++, v->ops[op].ns += end_ns - s->began, v->ops[op].queue_ns += s->queue_ns;
    v->steps++;
    if (v->logs) {
        executed *rows = one_more(v, v->log, sizeof *rows, v->log_length, &v->log_room);
        if (rows) {
            v->log = rows;
            rows[v->log_length++] = (executed){s->began, end_ns, s->queue_ns, s->rank, r->call, (int32_t)(id % MAX_STREAMS),
                                               (int32_t)s->at};
        }
    }
    s->at++, s->phase = 0, s->queue_ns = 0, s->now = s->began = end_ns;
    /* Thousands of streams take turns: by the time this one is due, what it does next has come from memory. */
    __builtin_prefetch(&s->records[s->at]), __builtin_prefetch((const char *)&s->records[s->at] + LINE_BYTES);
}

/* --- doorbells ------------------------------------------------------------------------------------------------------ */

static communicator *comm_of(simulation *v, const virtual_call *c) { return &v->comms[c->comm]; }

static int32_t published_of(const communicator *m) { return m->ranks * m->doorbells_per_rank; }

static bell *bell_of(const communicator *m, int32_t doorbell, int64_t epoch) {
    return &m->published[epoch % m->slots * published_of(m) + doorbell];
}

/* When a doorbell came to show an epoch or a later one; NEVER if that is not known yet. */
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
    const int32_t published = published_of(m);
    if (doorbell >= published) return m->card_of[(doorbell - published) % m->pool_cards];
    const bool own = doorbell % m->doorbells_per_rank >= m->doorbells_per_rank - m->own_doorbells;
    return m->card_of[own ? m->pool_cards + doorbell / m->doorbells_per_rank : doorbell % m->pool_cards];
}

/* How long a look at a doorbell takes, beside those at the rest of its group. */
static int64_t look_ns(const simulation *v, const stream *s, const communicator *m, int32_t doorbell) {
    const int32_t at = doorbell_card(m, doorbell);
    const costs *cost = costs_at(v, at);
    return cost->observe_ns + cost->coherence_ns + round_trip_ns(v, s->rank, at, false);
}

static void resume(simulation *v, int32_t id, int64_t shown, int64_t extra_ns) {
    stream *s = &v->streams[id];
    const virtual_call *c = &v->calls[v->ranks[s->rank].call];
    finish(v, id, later(s->began, shown) + look_ns(v, s, comm_of(v, c), s->doorbell) + extra_ns);
    v->woken[v->woken_length++] = id;
}

static int64_t scan_ns(const simulation *v, const communicator *m, const group *g) {
    return costs_at(v, doorbell_card(m, g->first))->scan_ns * (g->count - 1);
}

/* Look at the gate's doorbells as far as they are rung; when all are, its waiters go on. */
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
        resume(v, waiting - 1, g->ns, scan_ns(v, m, its));
    }
    g->waiters = NOBODY;
}

/* A doorbell shows an epoch from `shown` on: wake who waits for that, keep the others. */
static void wake(simulation *v, int32_t *list, int64_t epoch, int64_t shown) {
    int32_t waiting = *list, next;
    for (*list = NOBODY; waiting != NOBODY; waiting = next) {
        gate *g = waiting < 0 ? &v->gates[-waiting - 1] : NULL;
        stream *s = g ? NULL : &v->streams[waiting - 1];
        int32_t *link = g ? &g->link : &s->link;
        next = *link;
        if ((g ? g->epoch : s->wanted) > epoch) *link = *list, *list = waiting;
        else if (g) look_on(v, -waiting - 1);
        else resume(v, waiting - 1, shown, 0);
    }
}

static enum state ring(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    communicator *m = comm_of(v, c);
    const int64_t epoch = c->epoch + i->value;
    const int32_t published = published_of(m), doorbell = i->arg, rank = doorbell - published;
    if (doorbell < 0 || rank >= m->ranks || epoch < 1 || epoch > m->epochs) return WRONG;
    const int32_t at = doorbell_card(m, doorbell);
    const route *way = route_to(v, s->rank, at);
    if (!way) return WRONG;
    const int64_t end = s->now + costs_at(v, at)->ring_ns + costs_at(v, at)->coherence_ns, shown = end + way->latency_ns;
    busy(&v->ranks[s->rank], s->now, end);
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
    const int64_t epoch = c->epoch + i->value;
    if (i->arg < 0 || i->arg - published_of(m) >= m->ranks || !route_to(v, s->rank, doorbell_card(m, i->arg))) return WRONG;
    const int64_t shown = shown_ns(m, i->arg, epoch);
    s->doorbell = i->arg;
    if (shown == NEVER) {
        int32_t *list = waiters_of(m, i->arg, epoch);
        s->wanted = epoch, s->link = *list, *list = stream_waits(id);
        return BLOCKED;
    }
    finish(v, id, later(s->now, shown) + look_ns(v, s, m, i->arg));
    return ON;
}

static enum state wait_all(simulation *v, int64_t id, virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    const communicator *m = comm_of(v, c);
    const int64_t slots = m->slots, epoch = c->epoch + i->value;
    if (i->arg < 0 || i->arg >= c->group_count || i->value < -slots || i->value >= c->rounds) return WRONG;
    if (epoch <= 0) { /* before the communicator's first round */
        finish(v, id, s->now);
        return ON;
    }
    const group *its = &c->groups[i->arg];
    const int64_t number = c->first_gate + i->arg * (c->rounds + slots) + i->value + slots;
    gate *g = &v->gates[number];
    s->doorbell = its->first;
    if (!route_to(v, s->rank, doorbell_card(m, its->first))) return WRONG;
    if (g->group < 0) {
        *g = (gate){.group = i->arg, .epoch = epoch, .waiters = NOBODY, .call = v->ranks[s->rank].call};
        look_on(v, (int32_t)number);
    }
    if (!g->open) {
        s->link = g->waiters, g->waiters = stream_waits(id);
        return BLOCKED;
    }
    finish(v, id, later(s->now, g->ns) + look_ns(v, s, m, s->doorbell) + scan_ns(v, m, its));
    return ON;
}

/* --- events of a rank ----------------------------------------------------------------------------------------------- */

static enum state happen(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    rank_state *r = &v->ranks[s->rank];
    if (i->arg < 0 || i->arg >= c->events[r->member] || r->events[i->arg].ns != NEVER) return WRONG;
    event *e = &r->events[i->arg];
    e->ns = later(s->now, s->computed_ns);
    finish(v, id, s->now);
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
    finish(v, id, later(s->now, e->ns));
    return ON;
}

/* --- bytes ---------------------------------------------------------------------------------------------------------- */

static int64_t lines_of(const record *i) { return (i->nbytes + LINE_BYTES - 1) / LINE_BYTES; }

/* Of the memory that a region begins in. */
static const costs *costs_of(const simulation *v, const virtual_call *c, const operand *o) {
    if (o->kind != REGION || o->id >= c->region_count) return v->costs;
    return costs_at(v, v->comms[c->comm].card_of[c->regions[o->id].first_card]);
}

/* One copy from or to the pool, after what it takes to start it. -1 for a region that is not there. */
static int64_t copy(simulation *v, stream *s, const virtual_call *c, const operand *o, int64_t nbytes, bool to_pool) {
    int64_t alone_ns = 0, way_ns = 0;
    const costs *cost = costs_of(v, c, o);
    const int64_t begin = s->now + cost->copy_ns + cost->coherence_ns;
    const int64_t end = transfer(v, s->rank, c, o, nbytes, to_pool, begin, &alone_ns, &way_ns);
    if (end < 0) return -1;
    s->queue_ns += end - begin - alone_ns;
    rank_state *r = &v->ranks[s->rank];
    if (to_pool && cost->coherent) s->stored_coherent = true;
    else if (to_pool) s->stored = true, r->landed_ns = later(r->landed_ns, end + way_ns);
    return to_pool ? end : end + way_ns;
}

static enum state write(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    if (i->dst.id >= c->region_count) return WRONG;
    int64_t end = s->now;
    if (!c->regions[i->dst.id].heap) end = copy(v, s, c, &i->dst, i->nbytes, true); /* an array in the heap is there already */
    if (end < 0) return WRONG;
    busy(&v->ranks[s->rank], s->now, end);
    finish(v, id, end);
    return ON;
}

enum { COMPUTED = 4 };

/* READ and REDUCE, operand after operand, each a request of its own; then what is computed, and a copy to dst2. */
static enum state gather(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    const operand *sources[] = {&i->a, &i->b, &i->c};
    int64_t end = s->now;
    while (s->phase < 3 && sources[s->phase]->kind != REGION) s->phase++;
    if (s->phase != 3) {
        const bool out = s->phase == COMPUTED;
        end = copy(v, s, c, out ? &i->dst2 : sources[s->phase++], i->nbytes, out);
        if (end < 0) return WRONG;
        while (s->phase < 3 && sources[s->phase]->kind != REGION) s->phase++;
    }
    bool over = s->phase >= 3;
    if (s->phase == 3) {
        if (i->op == REDUCE) end += bytes_ns(i->nbytes * (2 + (i->c.kind != NOTHING)), v->costs->reduce_rate);
        if (i->dst2.kind == REGION) s->phase = COMPUTED, over = false;
    }
    busy(&v->ranks[s->rank], s->now, end);
    if (over) finish(v, id, end);
    else s->now = end;
    return ON;
}

/* When a FENCE is over. One for nothing but stores to coherent memory takes no time. */
static int64_t fenced_ns(const simulation *v, stream *s) {
    const bool waits = s->stored || !s->stored_coherent;
    s->stored = s->stored_coherent = false;
    return waits ? later(s->now, v->ranks[s->rank].landed_ns) + v->costs->fence_ns : s->now;
}

/* What takes a time that is known at once. */
static enum state local(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    const costs *cost = costs_of(v, c, &i->a);
    int64_t end = s->now;
    if (i->nbytes < 0 || i->nbytes > LARGEST_BYTES) return WRONG;
    if (i->op == FLUSH && !cost->coherent) end += lines_of(i) * cost->flush_line_ns;
    if (i->op == INVALIDATE && !cost->coherent) end += lines_of(i) * cost->invalidate_line_ns;
    if (i->op == FENCE) end = fenced_ns(v, s);
    if (i->op == COPY) end += bytes_ns(i->nbytes, v->costs->local_copy_rate);
    if (i->op == REDUCE_LOCAL) end += bytes_ns(i->nbytes * (2 + (i->c.kind != NOTHING)), v->costs->reduce_rate);
    busy(&v->ranks[s->rank], s->now, end);
    finish(v, id, end);
    return ON;
}

/* --- what is computed ----------------------------------------------------------------------------------------------- */

/* Each tile goes to the multiprocessor that is free first. The stream goes on when the last tile has begun. */
static enum state compute(simulation *v, int64_t id, const virtual_call *c, const record *i) {
    stream *s = &v->streams[id];
    if (i->arg < 0 || i->arg >= c->kernel_count) return WRONG;
    const kernel_cost *cost = &c->kernels[i->arg];
    int64_t *its = &v->free_ns[(int64_t)s->rank * v->multiprocessors], first = NEVER, last = s->now, end = s->now;
    for (int64_t tile = 0; tile < cost->tiles; tile++) {
        int32_t next = 0;
        for (int32_t k = 1; k < v->multiprocessors; k++)
            if (its[k] < its[next]) next = k;
        last = later(s->now, its[next]);
        if (tile == 0) first = last;
        end = its[next] = last + cost->tile_ns;
    }
    rank_state *r = &v->ranks[s->rank];
    r->tiles_ns += cost->tiles * cost->tile_ns;
    busy(r, s->now, end);
    s->began = first;
    finish(v, id, end);
    s->now = s->began = last;
    s->computed_ns = later(s->computed_ns, end);
    return ON;
}

/* Whether what comes next, or the stream's end, waits for what the stream computes. */
static bool needs_result(const stream *s) {
    if (s->at == s->length) return true;
    switch (s->records[s->at].op) {
    case COMPUTE: case RECORD: case AWAIT: case WAIT: case WAIT_ALL: case WAIT_DATA: return false;
    default: return true;
    }
}

static enum state execute(simulation *v, int64_t id, virtual_call *c, const record *i) {
    switch (i->op) {
    case WRITE: case WRITE_NT: return write(v, id, c, i);
    case READ: case REDUCE: return gather(v, id, c, i);
    case SIGNAL: case SIGNAL_DATA: return ring(v, id, c, i);
    case WAIT: case WAIT_DATA: return wait(v, id, c, i);
    case WAIT_ALL: return wait_all(v, id, c, i);
    case COMPUTE: return compute(v, id, c, i);
    case RECORD: return happen(v, id, c, i);
    case AWAIT: return await(v, id, c, i);
    case FLUSH: case INVALIDATE: case FENCE: case COPY: case REDUCE_LOCAL: return local(v, id, c, i);
    default: return WRONG;
    }
}

/* --- calls, one after another on every rank ------------------------------------------------------------------------- */

static bool begin_turn(simulation *v, int32_t rank, int64_t now) {
    rank_state *r = &v->ranks[rank];
    while (v->first_turn[rank] + r->turn < v->first_turn[rank + 1]) {
        const int32_t *turn = &v->turns[2 * (v->first_turn[rank] + r->turn)];
        virtual_call *c = &v->calls[turn[0]];
        r->call = turn[0], r->member = turn[1], r->live = 0;
        c->begin_ns[r->member] = now;
        if (c->events[r->member] > r->event_room) {
            event *more = realloc(r->events, (size_t)c->events[r->member] * sizeof *more);
            if (!more) return false;
            r->events = more, r->event_room = c->events[r->member];
        }
        for (int32_t k = 0; k < c->events[r->member]; k++) r->events[k] = (event){NEVER, NOBODY};
        r->busy_ns = 0, r->covered_ns = now += v->costs->call_ns;
        for (int k = 0; k < MAX_STREAMS; k++) {
            const program_stream *p = &c->streams[r->member * MAX_STREAMS + k];
            if (!p->length) continue;
            const int64_t id = (int64_t)rank * MAX_STREAMS + k;
            v->streams[id] = (stream){.records = p->records, .length = p->length, .now = now, .began = now, .rank = rank};
            push(v, id, now);
            r->live++;
        }
        if (r->live) return true;
        c->end_ns[r->member] = now;
        r->turn++;
    }
    return true;
}

static bool end_stream(simulation *v, int32_t rank, int64_t now) {
    rank_state *r = &v->ranks[rank];
    const virtual_call *c = &v->calls[r->call];
    c->end_ns[r->member] = later(c->end_ns[r->member], now);
    if (--r->live) return true;
    const int64_t end = c->end_ns[r->member];
    r->exposed_ns += end - c->begin_ns[r->member] - v->costs->call_ns - r->busy_ns;
    r->turn++;
    return begin_turn(v, rank, end);
}

enum outcome simulation_run(simulation *v, int64_t *where) {
    *where = -1;
    for (int32_t rank = 0; rank < v->rank_count; rank++)
        if (!begin_turn(v, rank, 0)) return NO_MEMORY;
    while (v->heap_length) {
        const int64_t id = v->heap[0].id;
        stream *s = &v->streams[id];
        *where = id;
        if (s->now < s->computed_ns && needs_result(s)) {
            s->now = s->began = s->computed_ns;
            sift_down(v, (due){s->now, id});
            continue;
        }
        if (s->at == s->length) {
            pop(v);
            if (!end_stream(v, s->rank, s->now)) return NO_MEMORY;
            continue;
        }
        const enum state state = execute(v, id, &v->calls[v->ranks[s->rank].call], &s->records[s->at]);
        if (state == WRONG) return BAD_RECORD;
        if (state == BLOCKED) pop(v);
        else sift_down(v, (due){s->now, id});
        if (s->now > LONGEST_NS) return TOO_LONG;
        if (v->out_of_memory) return NO_MEMORY;
        while (v->woken_length) {
            const int32_t woken = v->woken[--v->woken_length];
            push(v, woken, v->streams[woken].now);
        }
    }
    for (int32_t rank = 0; rank < v->rank_count; rank++)
        if (v->ranks[rank].live) return DEADLOCK;
    return OVER;
}
