/* The instructions of all ranks, in one order that their waits allow: each rank as far as it goes, and no rank into its
 * next call before the others have ended theirs, unless nothing else moves. */
#include "pass.h"

#include <string.h>

/* Where an instruction is: a stream of a rank in a call. */
typedef struct {
    pass *p;
    const program *part;
    const lodging *lodging;
    uint32_t stream;
    int32_t rank;
    point now;
} step;

/* --- memory ---------------------------------------------------------------------------------------------------- */

enum access_kind { LOAD, STORE, STORE_NT };

static void access_pool(step *s, int32_t card, int64_t begin, int64_t end, enum access_kind kind, drain *posted) {
    const touch a = {s->now, card};
    map *m = &s->p->cards[card];
    const range r = open_range(s->p, m, begin, end);
    for (int k = r.at; k < r.end; k++) {
        segment *touched = &m->segment[k];
        int from, to;
        bytes_in(&r, touched, &from, &to);
        if (kind == LOAD) check_load(s->p, &a, touched, from, to);
        else check_store(s->p, &a, touched, from, to, kind == STORE_NT);
        for (cell *c = touched->cell; posted && c < touched->cell + touched->cells; c++) {
            if (c->begin < from || c->end > to) continue;
            stored *w = &c->write[c->writes - 1];
            w->by[w->drains++] = drain_keep(posted);
        }
    }
}

static void access_local(step *s, int64_t root, int64_t begin, int64_t end, enum access_kind kind) {
    const touch a = {s->now, -1};
    map *m = &s->p->locals[s->rank * MAX_BUFFERS + root];
    const range r = open_range(s->p, m, begin, end);
    for (int k = r.at; k < r.end; k++) {
        int from, to;
        bytes_in(&r, &m->segment[k], &from, &to);
        (kind == LOAD ? check_local_load : check_local_store)(s->p, &a, &m->segment[k], from, to);
    }
}

static void access_buffer(step *s, int buffer, int64_t offset, int64_t nbytes, enum access_kind kind) {
    const lodging *l = &s->lodging[buffer];
    if (nbytes == 0) return;
    if (l->card >= 0) access_pool(s, (int32_t)l->card, l->offset + offset, l->offset + offset + nbytes, kind, NULL);
    else if (s->part->stream_count > 1) access_local(s, l->root, l->at + offset, l->at + offset + nbytes, kind);
}

static void access_operand(step *s, const operand *o, int64_t nbytes, enum access_kind kind, drain *posted) {
    card_extent found[MAX_CARDS];
    if (o->kind == BUFFER) access_buffer(s, o->id, o->offset, nbytes, kind);
    if (o->kind != REGION) return;
    if (kind != LOAD && nbytes && !s->part->regions[o->id].heap) check_reuse(s->p, s->stream, s->part->epoch + o->seq, s->part);
    const int count = extents_of(s->part, o, nbytes, found);
    for (int k = 0; k < count; k++)
        access_pool(s, found[k].at.card, found[k].at.offset, found[k].at.offset + found[k].nbytes, kind, posted);
}

/* --- values ---------------------------------------------------------------------------------------------------- */

/* The memory that a local operand is, and where in it. */
static contents *local_contents(const step *s, int buffer, int64_t offset, int64_t *at) {
    const lodging *l = &s->lodging[buffer];
    *at = (l->card >= 0 ? l->offset : l->at) + offset;
    return l->card >= 0 ? &s->p->card_contents[l->card] : &s->p->local_contents[s->rank * MAX_BUFFERS + l->root];
}

static void fetch(step *s, contents *into, int64_t at, const operand *o, int64_t nbytes) {
    card_run found[MAX_RUNS];
    if (o->kind == BUFFER) {
        int64_t begin;
        const contents *local = local_contents(s, o->id, o->offset, &begin);
        contents_move(s->p, into, at, local, begin, nbytes);
        return;
    }
    const int count = runs_of(s->part, o, nbytes, found);
    for (const card_run *r = found; r < found + count; r++)
        for (int64_t k = 0; k < r->blocks; k++)
            contents_move(s->p, into, at + r->local + k * r->stride, &s->p->card_contents[r->at.card], r->at.offset + k * r->block_bytes, r->block_bytes);
}

static void put(step *s, const operand *o, const contents *from, int64_t begin, int64_t nbytes) {
    card_run found[MAX_RUNS];
    int64_t at;
    if (o->kind == BUFFER) {
        contents *local = local_contents(s, o->id, o->offset, &at);
        contents_move(s->p, local, at, from, begin, nbytes);
    }
    const int count = o->kind == REGION ? runs_of(s->part, o, nbytes, found) : 0;
    for (const card_run *r = found; r < found + count; r++)
        for (int64_t k = 0; k < r->blocks; k++)
            contents_move(s->p, &s->p->card_contents[r->at.card], r->at.offset + k * r->block_bytes, from, begin + r->local + k * r->stride, r->block_bytes);
}

static void compute(step *s, const record *r) {
    const operand *sources[] = {&r->a, &r->b, &r->c};
    contents *folding = s->p->folding, *result = &folding[3];
    int count = 0;
    for (int k = 0; k < 3; k++) {
        if (!sources[k]->kind) continue;
        contents_begin(s->p, &folding[count]);
        fetch(s, &folding[count++], 0, sources[k], r->nbytes);
    }
    if (r->op == REDUCE || r->op == REDUCE_LOCAL) contents_fold(s->p, result, folding, count, r->nbytes, r->flags & FLAG_DIVIDE ? r->arg : 1);
    else result = &folding[0];
    put(s, &r->dst, result, 0, r->nbytes);
    put(s, &r->dst2, result, 0, r->nbytes);
}

/* --- flushes and fences ---------------------------------------------------------------------------------------- */

static void await_fence(pass *p, int32_t rank, drain *d) {
    p->open[rank] = room_for(p, p->open[rank], &p->open_room[rank], p->opens[rank] + 1, sizeof *p->open[rank]);
    p->open[rank][p->opens[rank]++] = drain_keep(d);
}

/* The host's stores to the line that came before are on their way, unless they are known to have arrived; a stream's
 * first flush after a store is enough. */
static void drain_cell(step *s, cell *c, drain *d) {
    for (stored *w = c->write; w < c->write + c->writes; w++) {
        if (w->nt || s->p->host[w->at.stream] != d->host || !before(w->at, &s->now)) continue;
        bool known = false;
        for (int k = 0; k < w->drains && !known; k++)
            known = w->by[k]->from.self.stream == s->stream || fenced(w->by[k], &s->now);
        if (known) continue;
        if (w->drains == DRAINS_MAX) undecided(s->p, TOO_MANY_DRAINS, s->now.self);
        w->by[w->drains++] = drain_keep(d);
    }
}

static void flush(step *s, const record *r) {
    card_extent found[MAX_CARDS];
    drain *d = drain_new(s->p, s->stream);
    if (r->op == INVALIDATE) drain_fenced(s->p, d, s->now.self);
    else await_fence(s->p, s->rank, d);
    const int count = extents_of(s->part, &r->a, r->nbytes, found);
    for (int k = 0; k < count; k++) {
        map *m = &s->p->cards[found[k].at.card];
        const int64_t begin = found[k].at.offset, end = begin + found[k].nbytes;
        const range lines = open_range(s->p, m, begin - begin % LINE_BYTES, (end + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
        for (int at = lines.at; at < lines.end; at++) {
            segment *touched = &m->segment[at];
            for (int c = 0; c < touched->cells; c++) drain_cell(s, &touched->cell[c], d);
            add_drop(s->p, touched, d);
        }
    }
    drain_drop(d);
}

static void fence_of(step *s, int32_t rank) {
    pass *p = s->p;
    int kept = 0;
    for (int k = 0; k < p->opens[rank]; k++) {
        drain *d = p->open[rank][k];
        if (before(d->from.self, &s->now)) drain_fenced(p, d, s->now.self);
        if (d->from.self.stream == s->stream) drain_drop(d);
        else p->open[rank][kept++] = d;
    }
    p->opens[rank] = kept;
}

/* A fence is its rank's own. */
static void fence(step *s) {
    for (int32_t rank = 0; rank < s->p->ranks; rank++) {
        const bool neighbour = s->p->host[rank * s->p->per_rank] == s->p->host[s->stream];
        if (rank == s->rank || (neighbour && s->p->without >> FENCE_SCOPE & 1)) fence_of(s, rank);
    }
}

/* --- doorbells ------------------------------------------------------------------------------------------------- */

enum { RINGS_KEPT = 64 };

bell *done_bell(const pass *p, int32_t rank) {
    const program *any = &p->plan[0].part[0];
    return &p->bells[(int64_t)any->slots * published_count(any) + rank];
}

bell *bell_at(const pass *p, const program *part, int32_t doorbell, int64_t epoch) {
    const int32_t published = published_count(part);
    if (doorbell >= published) return done_bell(p, doorbell - published);
    return &p->bells[slot_of(part, epoch) * published + doorbell];
}

const ring *first_ring(const bell *b, int64_t value) {
    int low = 0, high = b->rings;
    if (value <= b->forgotten) return NULL;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (b->ring[middle].value < value) low = middle + 1;
        else high = middle;
    }
    return low < b->rings ? &b->ring[low] : NULL;
}

static bool known_to_all(const pass *p, event e) {
    for (uint32_t s = 0; s < (uint32_t)p->streams; s++) {
        const point q = now(p, s);
        if (!before(e, &q)) return false;
    }
    return true;
}

/* What all streams know tells nobody anything. */
static void forget_rings(pass *p, bell *b) {
    int gone = 0;
    while (gone < b->rings - RINGS_KEPT / 2 && known_to_all(p, b->ring[gone].at.self)) {
        forget(b->ring[gone].at.known);
        b->forgotten = b->ring[gone++].value;
    }
    b->rings -= gone;
    for (int k = 0; k < b->rings; k++) b->ring[k] = b->ring[k + gone];
}

static void ring_bell(step *s, const record *r, const record *previous) {
    pass *p = s->p;
    const int64_t value = s->part->epoch + r->value;
    const place at = doorbell_place(s->part, r->arg, value);
    const touch a = {s->now, at.card};
    bell *b = bell_at(p, s->part, r->arg, value);
    const ring *last = b->rings ? &b->ring[b->rings - 1] : NULL;
    if (last && !before(last->at.self, &s->now)) undecided(p, SIGNALS_UNORDERED, s->now.self);
    if ((last && value < last->value) || value < b->forgotten) undecided(p, SIGNALS_FALL, s->now.self);
    if (r->op == SIGNAL_DATA) {
        access_operand(s, &r->a, r->nbytes, LOAD, NULL);
        check_reuse(p, s->stream, value, s->part);
        if (!previous || memcmp(r, previous, sizeof *r) != 0) { /* twice the same is once */
            check_payload_store(p, &a, b, at.offset / LINE_BYTES);
            b->payload = s->now.self, b->readers = 0;
            contents_begin(p, &b->carried);
            fetch(s, &b->carried, 0, &r->a, r->nbytes);
        }
    }
    if (last && value == last->value) return; /* whoever waits may go on at the first one */
    if (b->rings >= RINGS_KEPT && b->rings % RINGS_KEPT == 0) forget_rings(p, b);
    b->ring = room_for(p, b->ring, &b->ring_room, b->rings + 1, sizeof *b->ring);
    b->ring[b->rings++] = (ring){value, {know(s->now.known), s->now.self}};
}

static bool rung(const bell *b, int64_t value) { return value <= b->forgotten || (b->rings && b->ring[b->rings - 1].value >= value); }

/* Goes on as soon as any execution may: when the first signal that satisfies it has been rung. */
static void hear(step *s, const bell *b, int64_t value) {
    const ring *first = first_ring(b, value);
    if (first) learn(s->p, s->stream, &first->at);
    s->now = now(s->p, s->stream);
}

static bool hears(step *s, const record *r) {
    const int64_t value = s->part->epoch + r->value;
    const group all = r->op == WAIT_ALL ? s->part->groups[r->arg] : (group){r->arg, 1, 1};
    if (value <= 0) return true; /* before the communicator's first round: doorbells start at 0 */
    for (int32_t k = 0; k < all.count; k++)
        if (!rung(bell_at(s->p, s->part, all.first + k * all.stride, value), value)) return false;
    for (int32_t k = 0; k < all.count; k++) hear(s, bell_at(s->p, s->part, all.first + k * all.stride, value), value);
    if (r->op == WAIT_DATA) {
        bell *b = bell_at(s->p, s->part, r->arg, value);
        const place at = doorbell_place(s->part, r->arg, value);
        const touch a = {s->now, at.card};
        check_payload_load(s->p, &a, b, first_ring(b, value), at.offset / LINE_BYTES);
        b->reader = room_for(s->p, b->reader, &b->reader_room, b->readers + 1, sizeof *b->reader);
        b->reader[b->readers++] = s->now.self;
    }
    return true;
}

/* --- one instruction ------------------------------------------------------------------------------------------- */

/* An array in the heap is its own region: there is nothing to store. */
static bool stays(const step *s, const record *r) {
    card_extent found[MAX_CARDS];
    const lodging *l = &s->lodging[r->a.id];
    return l->card >= 0 && extents_of(s->part, &r->dst, r->nbytes, found) == 1 && found[0].at.card == l->card &&
           found[0].at.offset == l->offset + r->a.offset;
}

static bool satisfied(step *s, const record *r) {
    if (r->op == WAIT || r->op == WAIT_DATA || r->op == WAIT_ALL) return hears(s, r);
    if (r->op != AWAIT) return true;
    const point *recorded = &s->p->events[s->rank * s->p->events_max + r->arg];
    if (!recorded->known) return false;
    learn(s->p, s->stream, recorded);
    s->now = now(s->p, s->stream);
    return true;
}

static void take_payload(step *s, const record *r) {
    bell *b = bell_at(s->p, s->part, r->arg, s->part->epoch + r->value);
    if (!b->carried.runs) contents_begin(s->p, &b->carried);
    put(s, &r->dst, &b->carried, 0, r->nbytes);
}

static void execute(step *s, const record *r, const record *previous) {
    pass *p = s->p;
    const operand *sources[] = {&r->a, &r->b, &r->c}, *targets[] = {&r->dst, &r->dst2};
    point *recorded;
    drain *posted;
    switch (r->op) {
    case FLUSH: case INVALIDATE: flush(s, r); break;
    case FENCE: fence(s); break;
    case SIGNAL: case SIGNAL_DATA: ring_bell(s, r, previous); break;
    case WAIT_DATA:
        access_operand(s, &r->dst, r->nbytes, STORE, NULL);
        take_payload(s, r);
        break;
    case RECORD:
        recorded = &p->events[s->rank * p->events_max + r->arg];
        if (!recorded->known) *recorded = (point){know(s->now.known), s->now.self};
        break;
    case WRITE_NT:
        access_operand(s, &r->a, r->nbytes, LOAD, NULL);
        posted = drain_new(p, s->stream);
        await_fence(p, s->rank, posted);
        access_operand(s, &r->dst, r->nbytes, STORE_NT, posted);
        compute(s, r);
        drain_drop(posted);
        break;
    case WRITE:
        if (stays(s, r)) break;
        /* fall through */
    case READ: case REDUCE: case COPY: case REDUCE_LOCAL:
        for (int k = 0; k < 3; k++) access_operand(s, sources[k], r->nbytes, LOAD, NULL);
        for (int k = 0; k < 2; k++) access_operand(s, targets[k], r->nbytes, STORE, NULL);
        compute(s, r);
        break;
    case COMPUTE: undecided(p, COMPUTES, s->now.self);
    default: break; /* WAIT, WAIT_ALL, AWAIT: that was all */
    }
}

/* Whether the stream went on. */
static bool advance(step *s, program *part, int32_t stream) {
    pass *p = s->p;
    bool moved = false;
    while (part->position[stream] < part->lengths[stream]) {
        const int64_t at = part->position[stream];
        const record *r = &part->records[stream][at];
        p->now[s->stream]++;
        s->now = now(p, s->stream);
        if (!satisfied(s, r)) {
            p->now[s->stream]--;
            break;
        }
        execute(s, r, at ? r - 1 : NULL);
        part->position[stream]++, p->instructions++, moved = true;
    }
    return moved;
}

enum { INPUT, OUTPUT }; /* of a part's buffers */

/* --- calls ----------------------------------------------------------------------------------------------------- */

static step first_step(pass *p, int32_t rank) {
    const plan *whole = &p->plan[p->plan_of[p->call[rank]]];
    const uint32_t stream = (uint32_t)(rank * p->per_rank);
    return (step){p, &whole->part[rank], whole->lodging[rank], stream, rank, now(p, stream)};
}

/* The user fills arrays in the heap before a call and, for all we know, as soon as it returns. */
static void user_stores(pass *p, int32_t rank) {
    for (int32_t k = 0; k < p->per_rank; k++) p->now[rank * p->per_rank + k]++; /* steps of their own */
    step s = first_step(p, rank);
    for (int k = 0; k < s.part->buffer_count; k++)
        if (s.lodging[k].card >= 0) access_buffer(&s, k, 0, s.part->buffer_bytes[k], STORE);
}

/* The input is what it is; nothing else has a meaning yet. */
static void fill_buffers(pass *p, int32_t rank) {
    const step s = first_step(p, rank);
    int64_t at;
    for (int k = s.part->buffer_count - 1; k >= 0; k--) { /* the input last: it may lie in the output */
        contents *local = local_contents(&s, k, 0, &at);
        contents_fill(p, local, at, at + s.part->buffer_bytes[k], k == INPUT ? input_term(p, p->call[rank], rank) : 0, -at);
    }
}

static void begin_call(pass *p, int32_t rank) {
    const int32_t call = p->call[rank];
    program *part = &p->plan[p->plan_of[call]].part[rank];
    part->epoch = p->epoch_of[call], part->slot = part->epoch % part->slots;
    gather(p, rank);
    user_stores(p, rank);
    gather(p, rank);
    for (int32_t s = 0; s < p->per_rank; s++) {
        const int64_t stream = rank * p->per_rank + s;
        p->began[(int64_t)call * p->streams + stream] = p->now[stream];
        if (s < part->stream_count) part->position[s] = 0;
    }
    for (int32_t e = 0; e < p->events_max; e++) {
        forget(p->events[rank * p->events_max + e].known);
        p->events[rank * p->events_max + e].known = NULL;
    }
    for (int k = 0; k < part->buffer_count; k++) {
        contents_begin(p, &p->local_contents[rank * MAX_BUFFERS + k]);
        if (part->stream_count == 1) continue;
        map_free(&p->locals[rank * MAX_BUFFERS + k]);
        map_begin(p, &p->locals[rank * MAX_BUFFERS + k]);
    }
    fill_buffers(p, rank);
    p->begun[rank] = true;
}

static void end_call(pass *p, int32_t rank) {
    const plan *whole = &p->plan[p->plan_of[p->call[rank]]];
    gather(p, rank);
    step s = first_step(p, rank);
    if (s.part->buffer_count > OUTPUT) access_buffer(&s, OUTPUT, 0, s.part->buffer_bytes[OUTPUT], LOAD); /* by the user */
    if (whole->contract_words[rank]) {
        int64_t base;
        const contents *output = local_contents(&s, OUTPUT, 0, &base);
        check_contract(p, rank, output, base, whole->contract[rank], whole->contract_words[rank]);
    }
    if (whole->meets) check_barrier(p, rank);
    if (p->obliges && p->strip[rank][2]) { /* whatever arrays were lent: the user may store to them */
        const int64_t *strip = p->strip[rank];
        p->now[rank * p->per_rank]++;
        s.now = now(p, s.stream);
        access_pool(&s, (int32_t)strip[0], strip[1], strip[1] + strip[2], STORE, NULL);
    }
    user_stores(p, rank);
    p->begun[rank] = false, p->call[rank]++;
}

static bool advance_rank(pass *p, int32_t rank, int32_t horizon) {
    bool moved = false;
    while (p->call[rank] < p->calls && p->call[rank] <= horizon) {
        if (!p->begun[rank]) begin_call(p, rank), moved = true;
        const plan *whole = &p->plan[p->plan_of[p->call[rank]]];
        program *part = &whole->part[rank];
        bool ended = true;
        for (int32_t stream = 0; stream < part->stream_count; stream++) {
            step s = {.p = p, .part = part, .lodging = whole->lodging[rank], .rank = rank};
            s.stream = (uint32_t)(rank * p->per_rank + stream);
            moved |= advance(&s, part, stream);
            ended &= part->position[stream] == part->lengths[stream];
        }
        if (!ended) break;
        end_call(p, rank);
    }
    return moved;
}

static int32_t least_call(const pass *p) {
    int32_t least = p->call[0];
    for (int32_t rank = 1; rank < p->ranks; rank++) least = p->call[rank] < least ? p->call[rank] : least;
    return least;
}

/* Nobody can go on: the first one that waits tells it. */
static void stuck(pass *p) {
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        if (p->call[rank] != least_call(p)) continue;
        const program *part = &p->plan[p->plan_of[p->call[rank]]].part[rank];
        for (int32_t s = 0; s < part->stream_count; s++) {
            const uint32_t stream = (uint32_t)(rank * p->per_rank + s);
            if (part->position[s] < part->lengths[s])
                violated(p, DEADLOCK, PLAIN, (event){stream, p->now[stream] + 1}, (event){0, 0}, -1, 0);
        }
    }
}

void pass_run(pass *p) {
    for (int32_t horizon = 0; horizon < p->calls;) {
        bool moved = false;
        for (int32_t rank = 0; rank < p->ranks; rank++) moved |= advance_rank(p, rank, horizon);
        if (least_call(p) > horizon) {
            bool together = true;
            for (int32_t rank = 0; rank < p->ranks; rank++) together &= p->call[rank] == horizon + 1;
            if (together) check_exit(p, horizon);
            horizon++;
        } else if (!moved && ++horizon == p->calls) stuck(p);
    }
    p->verdict = PROVED;
}
