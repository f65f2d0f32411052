/* What an instruction does to memory: to the histories of lines, to the values of bytes, and by flushes and fences. */
#include "pass.h"

/* --- memory ---------------------------------------------------------------------------------------------------- */

void pass_access_pool(step *s, int32_t card, int64_t begin, int64_t end, enum access_kind kind, drain *posted) {
    const touch a = {s->now, card};
    map *m = &s->p->cards[card];
    const range r = map_open_range(s->p, m, begin, end);
    for (int k = r.at; k < r.end; k++) {
        segment *touched = &m->segment[k];
        int from, to;
        map_bytes_in(&r, touched, &from, &to);
        if (kind == LOAD) rule_check_load(s->p, &a, touched, from, to);
        else rule_check_store(s->p, &a, touched, from, to, kind == STORE_NT);
        for (cell *c = touched->cell; posted && c < touched->cell + touched->cells; c++) {
            if (c->begin < from || c->end > to) continue;
            stored *w = &c->write[c->writes - 1];
            w->by[w->drains++] = drain_keep(posted);
        }
    }
    if (kind == STORE) map_join(s->p, m, &r, s->now.self);
}

static void access_local(step *s, int64_t root, int64_t begin, int64_t end, enum access_kind kind) {
    const touch a = {s->now, -1};
    map *m = &s->p->locals[s->rank * MAX_BUFFERS + root];
    const range r = map_open_range(s->p, m, begin, end);
    for (int k = r.at; k < r.end; k++) {
        int from, to;
        map_bytes_in(&r, &m->segment[k], &from, &to);
        (kind == LOAD ? rule_check_local_load : rule_check_local_store)(s->p, &a, &m->segment[k], from, to);
    }
}

void pass_access_buffer(step *s, int buffer, int64_t offset, int64_t nbytes, enum access_kind kind) {
    const lodging *l = &s->lodging[buffer];
    if (nbytes == 0) return;
    if (l->card >= 0)
        pass_access_pool(s, (int32_t)l->card, l->offset + offset, l->offset + offset + nbytes, kind, NULL);
    else if (s->part->stream_count > 1) access_local(s, l->root, l->at + offset, l->at + offset + nbytes, kind);
}

void pass_access_operand(step *s, const operand *o, int64_t nbytes, enum access_kind kind, drain *posted) {
    card_extent found[MAX_CARDS];
    if (o->kind == BUFFER) pass_access_buffer(s, o->id, o->offset, nbytes, kind);
    if (o->kind != REGION) return;
    if (kind != LOAD && nbytes && !s->part->regions[o->id].heap)
        rule_check_reuse(s->p, s->stream, s->part->epoch + o->seq, s->part);
    const int count = address_extents(s->part, o, nbytes, found);
    for (int k = 0; k < count; k++)
        pass_access_pool(s, found[k].at.card, found[k].at.offset, found[k].at.offset + found[k].nbytes, kind, posted);
}

/* LOADED and STORED of plan/accesses.py: calls.py compares the two when it is imported. */
const accesses pass_accesses[OP_END] = {
    [WRITE] = {OF_A, OF_DST},
    [WRITE_NT] = {OF_A, OF_DST},
    [COPY] = {OF_A, OF_DST},
    [READ] = {OF_A, OF_DST | OF_DST2},
    [REDUCE] = {OF_A | OF_B | OF_C, OF_DST | OF_DST2},
    [REDUCE_LOCAL] = {OF_A | OF_B | OF_C, OF_DST},
    [SIGNAL_DATA] = {.loads = OF_A},
    [WAIT_DATA] = {.stores = OF_DST},
};

/* Find the record's operands for which `bits` has a bit, in the order of the bits; returns how many there are. */
static int operands_of(const record *r, int bits, const operand *found[OPERANDS]) {
    const operand *all[OPERANDS] = {&r->dst, &r->dst2, &r->a, &r->b, &r->c};
    int count = 0;
    for (int k = 0; k < OPERANDS; k++)
        if (bits >> k & 1 && all[k]->kind) found[count++] = all[k];
    return count;
}

void pass_access_loads(step *s, const record *r) {
    const operand *found[OPERANDS];
    const int count = operands_of(r, pass_accesses[r->op].loads, found);
    for (int k = 0; k < count; k++) pass_access_operand(s, found[k], r->nbytes, LOAD, NULL);
}

void pass_access_stores(step *s, const record *r, enum access_kind kind, drain *posted) {
    const operand *found[OPERANDS];
    const int count = operands_of(r, pass_accesses[r->op].stores, found);
    for (int k = 0; k < count; k++) pass_access_operand(s, found[k], r->nbytes, kind, posted);
}

/* --- values ---------------------------------------------------------------------------------------------------- */

/* Return the contents in which a local operand lies, and where in them, in *at. */
contents *pass_local_contents(const step *s, int buffer, int64_t offset, int64_t *at) {
    const lodging *l = &s->lodging[buffer];
    *at = (l->card >= 0 ? l->offset : l->at) + offset;
    return l->card >= 0 ? &s->p->card_contents[l->card] : &s->p->local_contents[s->rank * MAX_BUFFERS + l->root];
}

void pass_fetch(step *s, contents *into, int64_t at, const operand *o, int64_t nbytes) {
    card_run found[MAX_RUNS];
    if (o->kind == BUFFER) {
        int64_t begin;
        const contents *local = pass_local_contents(s, o->id, o->offset, &begin);
        contents_move(s->p, into, at, local, begin, nbytes);
        return;
    }
    const int count = address_runs(s->part, o, nbytes, found);
    for (const card_run *r = found; r < found + count; r++)
        for (int64_t k = 0; k < r->blocks; k++)
            contents_move(s->p, into, at + r->local + k * r->stride, &s->p->card_contents[r->at.card],
                          r->at.offset + k * r->block_bytes, r->block_bytes);
}

void pass_put(step *s, const operand *o, const contents *from, int64_t begin, int64_t nbytes) {
    card_run found[MAX_RUNS];
    int64_t at;
    if (o->kind == BUFFER) {
        contents *local = pass_local_contents(s, o->id, o->offset, &at);
        contents_move(s->p, local, at, from, begin, nbytes);
    }
    const int count = o->kind == REGION ? address_runs(s->part, o, nbytes, found) : 0;
    for (const card_run *r = found; r < found + count; r++)
        for (int64_t k = 0; k < r->blocks; k++)
            contents_move(s->p, &s->p->card_contents[r->at.card], r->at.offset + k * r->block_bytes, from,
                          begin + r->local + k * r->stride, r->block_bytes);
}

void pass_compute(step *s, const record *r) {
    const operand *sources[OPERANDS], *targets[OPERANDS];
    contents *folding = s->p->folding, *result = &folding[3];
    const int count = operands_of(r, pass_accesses[r->op].loads, sources);
    for (int k = 0; k < count; k++) {
        contents_begin(s->p, &folding[k]);
        pass_fetch(s, &folding[k], 0, sources[k], r->nbytes);
    }
    const bool folds = r->op == REDUCE || r->op == REDUCE_LOCAL;
    const plan *whole = &s->p->plan[s->p->plan_of[s->p->call[rank_of(s->p, s->stream)]]];
    const bool counts = folds && whole->redop; /* in a call that reduces nothing, a fold makes no result */
    bool right = !counts || (r->dtype == whole->dtype && r->redop == whole->redop);
    for (int k = 0; counts && right && k < count; k++)
        right = contents_in_elements(s->p, &folding[k], r->nbytes, program_item_bytes[r->dtype]);
    if (!right) pass_violated(s->p, CONTRACT, MISFOLDED, s->now.self, (event){0, 0}, -1, 0);
    if (!folds) result = &folding[0];
    else contents_fold(s->p, result, folding, count, r->nbytes, r->flags & FLAG_DIVIDE ? r->arg : 1);
    const int target_count = operands_of(r, pass_accesses[r->op].stores, targets);
    for (int k = 0; k < target_count; k++) pass_put(s, targets[k], result, 0, r->nbytes);
}

/* --- flushes and fences ---------------------------------------------------------------------------------------- */

void pass_await_fence(pass *p, int32_t rank, drain *d) {
    p->open[rank] = pass_room_for(p, p->open[rank], &p->open_room[rank], p->opens[rank] + 1, sizeof *p->open[rank]);
    p->open[rank][p->opens[rank]++] = drain_keep(d);
}

/* Note that a flush takes the host's earlier stores to this cell on their way. A store that is known to have arrived, or that
 * this stream has flushed before, needs no further note. */
static void drain_cell(step *s, cell *c, drain *d) {
    for (stored *w = c->write; w < c->write + c->writes; w++) {
        if (w->nt || s->p->host[w->at.stream] != d->host || !clock_before(w->at, &s->now)) continue;
        bool known = false;
        for (int k = 0; k < w->drains && !known; k++)
            known = w->by[k]->from.self.stream == s->stream || drain_is_fenced(w->by[k], &s->now);
        if (known) continue;
        if (w->drains == DRAINS_MAX) pass_undecided(s->p, TOO_MANY_DRAINS, s->now.self);
        w->by[w->drains++] = drain_keep(d);
    }
}

void pass_flush(step *s, const record *r) {
    card_extent found[MAX_CARDS];
    drain *d = drain_new(s->p, s->stream);
    if (r->op == INVALIDATE) drain_fenced(s->p, d, s->now.self);
    else pass_await_fence(s->p, s->rank, d);
    const int count = address_extents(s->part, &r->a, r->nbytes, found);
    for (int k = 0; k < count; k++) {
        map *m = &s->p->cards[found[k].at.card];
        const int64_t begin = found[k].at.offset, end = begin + found[k].nbytes;
        const range lines = map_open_range(s->p, m, begin - begin % LINE_BYTES,
                                           (end + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES);
        for (int at = lines.at; at < lines.end; at++) {
            segment *touched = &m->segment[at];
            for (int c = 0; c < touched->cells; c++) drain_cell(s, &touched->cell[c], d);
            segment_add_drop(s->p, touched, d);
        }
    }
    drain_drop(d);
}

static void fence_of(step *s, int32_t rank) {
    pass *p = s->p;
    int kept = 0;
    for (int k = 0; k < p->opens[rank]; k++) {
        drain *d = p->open[rank][k];
        if (clock_before(d->from.self, &s->now)) drain_fenced(p, d, s->now.self);
        if (d->from.self.stream == s->stream) drain_drop(d);
        else p->open[rank][kept++] = d;
    }
    p->opens[rank] = kept;
}

/* A fence completes the drains of its own rank; without the rule FENCE_SCOPE, those of all ranks of its host. */
void pass_fence(step *s) {
    fence_of(s, s->rank);
    for (int32_t rank = 0; s->p->without >> FENCE_SCOPE & 1 && rank < s->p->ranks; rank++)
        if (rank != s->rank && s->p->host[rank * s->p->per_rank] == s->p->host[s->stream]) fence_of(s, rank);
}
