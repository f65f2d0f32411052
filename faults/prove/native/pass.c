/* Runs the instructions of all ranks in one order that their waits allow: each rank in turn goes as far as it can. A rank
 * begins its next call when the others have ended theirs, or when nothing else moves. */
#include "pass.h"

enum { INPUT, OUTPUT, SCRATCH, MORE }; /* a part's buffers; those from MORE on are further inputs */
enum { LOOKS_AFTER = 1 << 10 }; /* instructions between two looks for Ctrl-C and alarms */

/* --- one instruction ------------------------------------------------------------------------------------------- */

/* Whether an array of the heap is copied to or from where it lies already: then nothing is stored. */
static bool stays(const step *s, const operand *array, const operand *there, int64_t nbytes) {
    card_extent found[MAX_CARDS];
    const lodging *l = &s->lodging[array->id];
    return l->card >= 0 && address_extents(s->part, there, nbytes, found) == 1 && found[0].at.card == l->card &&
           found[0].at.offset == l->offset + array->offset;
}

static bool satisfied(step *s, const record *r) {
    if (r->op == WAIT || r->op == WAIT_DATA || r->op == WAIT_ALL) return bell_hears(s, r);
    if (r->op != AWAIT) return true;
    const point *recorded = &s->p->events[s->rank * s->p->events_max + r->arg];
    if (!recorded->known) return false;
    clock_learn(s->p, s->stream, recorded);
    s->now = clock_now(s->p, s->stream);
    return true;
}

static void move(step *s, const record *r) {
    pass_access_loads(s, r);
    pass_access_stores(s, r, STORE, NULL);
    pass_compute(s, r);
}

static void execute(step *s, const record *r, const record *previous) {
    pass *p = s->p;
    point *recorded;
    drain *posted;
    switch (r->op) {
    case FLUSH:
    case INVALIDATE: pass_flush(s, r); break;
    case FENCE: pass_fence(s); break;
    case SIGNAL:
    case SIGNAL_DATA: bell_ring(s, r, previous); break;
    case WAIT_DATA:
        pass_access_stores(s, r, STORE, NULL);
        bell_take_payload(s, r);
        break;
    case RECORD:
        recorded = &p->events[s->rank * p->events_max + r->arg];
        if (!recorded->known) *recorded = (point){clock_know(s->now.known), s->now.self};
        break;
    case WRITE_NT:
        pass_access_loads(s, r);
        posted = drain_new(p, s->stream);
        pass_await_fence(p, s->rank, posted);
        pass_access_stores(s, r, STORE_NT, posted);
        pass_compute(s, r);
        drain_drop(posted);
        break;
    case READ:
        if (!r->dst2.kind && stays(s, &r->dst, &r->a, r->nbytes)) pass_access_loads(s, r);
        else move(s, r);
        break;
    case WRITE:
        if (!stays(s, &r->a, &r->dst, r->nbytes)) move(s, r);
        break;
    case REDUCE:
    case COPY:
    case REDUCE_LOCAL: move(s, r); break;
    case COMPUTE: kernel_run(s, r); break;
    default: break; /* WAIT, WAIT_ALL, AWAIT: nothing to do once satisfied */
    }
}

static void look(pass *p) {
    if (p->interrupted()) longjmp(p->stop, INTERRUPTED);
}

/* Run a stream's instructions up to the first wait that is not satisfied; returns whether any ran. */
static bool advance(step *s, program *part, int32_t stream) {
    pass *p = s->p;
    bool moved = false;
    while (part->position[stream] < part->lengths[stream]) {
        const int64_t at = part->position[stream];
        const record *r = &part->records[stream][at];
        p->now[s->stream]++;
        s->now = clock_now(p, s->stream);
        if (!satisfied(s, r)) {
            p->now[s->stream]--;
            break;
        }
        execute(s, r, at ? r - 1 : NULL);
        part->position[stream]++, moved = true;
        if (++p->instructions % LOOKS_AFTER == 0) look(p);
    }
    return moved;
}

/* --- calls ----------------------------------------------------------------------------------------------------- */

static step first_step(pass *p, int32_t rank) {
    const plan *whole = &p->plan[p->plan_of[p->call[rank]]];
    const uint32_t stream = (uint32_t)(rank * p->per_rank);
    return (step){p, &whole->part[rank], whole->lodging[rank], whole->kernels, stream, rank, clock_now(p, stream)};
}

/* The user fills arrays in the heap before a call and, as far as a plan can know, as soon as it returns. */
static void user_stores(pass *p, int32_t rank) {
    for (int32_t k = 0; k < p->per_rank; k++)
        p->now[rank * p->per_rank + k]++; /* the user's stores are steps of their own */
    step s = first_step(p, rank);
    for (int k = 0; k < s.part->buffer_count; k++)
        if (s.lodging[k].card >= 0) pass_access_buffer(&s, k, 0, s.part->buffer_bytes[k], STORE);
}

/* Give inputs their terms; every other buffer begins as if it was never written. */
static void fill_buffers(pass *p, int32_t rank) {
    const step s = first_step(p, rank);
    int64_t at;
    for (int k = s.part->buffer_count - 1; k >= 0; k--) { /* the input comes last, as it may lie in the output */
        contents *local = pass_local_contents(&s, k, 0, &at);
        const int32_t given = k == INPUT || k >= MORE ? term_of_input(p, p->call[rank], rank, k) : 0;
        contents_fill(p, local, at, at + s.part->buffer_bytes[k], given, -at);
    }
}

static void begin_call(pass *p, int32_t rank) {
    const int32_t call = p->call[rank];
    program *part = &p->plan[p->plan_of[call]].part[rank];
    part->epoch = p->epoch_of[call], part->slot = part->epoch % part->layout.slots;
    clock_gather(p, rank);
    user_stores(p, rank);
    clock_gather(p, rank);
    for (int32_t s = 0; s < p->per_rank; s++) {
        const int64_t stream = rank * p->per_rank + s;
        p->began[(int64_t)call * p->streams + stream] = p->now[stream];
        if (s < part->stream_count) part->position[s] = 0;
    }
    for (int32_t e = 0; e < p->events_max; e++) {
        clock_forget(p->events[rank * p->events_max + e].known);
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
    clock_gather(p, rank);
    step s = first_step(p, rank);
    if (s.part->buffer_count > OUTPUT)
        pass_access_buffer(&s, OUTPUT, 0, s.part->buffer_bytes[OUTPUT], LOAD); /* the user reads the result */
    if (whole->contract_words[rank]) {
        int64_t base;
        const contents *output = pass_local_contents(&s, OUTPUT, 0, &base);
        contents_check_contract(p, rank, output, base, whole->contract[rank], whole->contract_words[rank]);
    }
    if (whole->meets) rule_check_barrier(p, rank);
    if (p->obliges && p->strip[rank][2]) { /* the user may store to any array that lies in the heap */
        const int64_t *strip = p->strip[rank];
        p->now[rank * p->per_rank]++;
        s.now = clock_now(p, s.stream);
        pass_access_pool(&s, (int32_t)strip[0], strip[1], strip[1] + strip[2], STORE, NULL);
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
            step s = {.p = p, .part = part, .lodging = whole->lodging[rank], .kernels = whole->kernels, .rank = rank};
            s.stream = (uint32_t)(rank * p->per_rank + stream);
            moved |= advance(&s, part, stream);
            ended &= part->position[stream] == part->lengths[stream];
        }
        if (!ended) break;
        look(p); /* to end a call takes as long as thousands of instructions */
        end_call(p, rank);
    }
    return moved;
}

static int32_t least_call(const pass *p) {
    int32_t least = p->call[0];
    for (int32_t rank = 1; rank < p->ranks; rank++) least = p->call[rank] < least ? p->call[rank] : least;
    return least;
}

/* No stream can go on: report the first one that waits as the deadlock. */
static void stuck(pass *p) {
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        if (p->call[rank] != least_call(p)) continue;
        const program *part = &p->plan[p->plan_of[p->call[rank]]].part[rank];
        for (int32_t s = 0; s < part->stream_count; s++) {
            const uint32_t stream = (uint32_t)(rank * p->per_rank + s);
            if (part->position[s] < part->lengths[s])
                pass_violated(p, DEADLOCK, PLAIN, (event){stream, p->now[stream] + 1}, (event){0, 0}, -1, 0);
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
            if (together) rule_check_exit(p, horizon);
            horizon++;
        } else if (!moved && ++horizon == p->calls) stuck(p);
    }
    if (p->computed.at) pass_undecided(p, COMPUTES, p->computed);
    p->verdict = PROVED;
}
