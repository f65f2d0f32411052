/* The cost of each instruction to its stream, except instructions on doorbells and events. */
#include "cost.h"

enum { SOURCES = 3, COMPUTED };

static int64_t lines_of(const record *i) { return (i->nbytes + LINE_BYTES - 1) / LINE_BYTES; }

/* Return the memory in which an operand's region begins, -1 for none. */
static int32_t card_at(region_table r, const operand *o) {
    return o->kind != REGION || o->id >= r.count ? -1 : r.card_of[r.all[o->id].first_card];
}

static const costs *costs_of(const model *m, region_table r, const operand *o) {
    const int32_t card = card_at(r, o);
    return card < 0 ? m->costs : costs_at(m, card);
}

static int64_t combined_bytes(const record *i) { return i->nbytes * (2 + (i->c.kind != NOTHING)); }

/* Charge a stream for one copy from or to the pool, including its start. */
static enum part copy(model *m, int32_t rank, region_table r, const operand *o, int64_t nbytes,
                      enum direction direction, int64_t *landed_ns, progress *p) {
    const bool to_pool = direction == TO_POOL;
    int64_t alone_ns = 0, way_ns = 0;
    const int32_t card = card_at(r, o);
    if (card < 0) return INVALID_RECORD;
    const costs *cost = costs_at(m, card);
    const int64_t begin = p->now + cost->copy_ns + coherence_ns(m, rank, card);
    const int64_t end = cost_transfer(m, rank, r, o, nbytes, direction, begin, &alone_ns, &way_ns);
    if (end < 0) return INVALID_RECORD;
    p->queue_ns += end - begin - alone_ns;
    if (to_pool && cost->coherent) p->stored_coherent = true;
    else if (to_pool) p->stored = true, *landed_ns = later(*landed_ns, end + way_ns);
    p->now = to_pool ? end : end + way_ns;
    return LAST;
}

static enum part write(model *m, int32_t rank, region_table r, const record *i, int64_t *landed_ns, progress *p) {
    if (i->dst.id >= r.count) return INVALID_RECORD;
    if (r.all[i->dst.id].heap == IN_HEAP) return LAST; /* an array in the heap is there already */
    return copy(m, rank, r, &i->dst, i->nbytes, TO_POOL, landed_ns, p);
}

/* Charge a stream for the next part of a READ or REDUCE: one request per operand, then the reduction, then a copy to
 * dst2. */
static enum part gather(model *m, int32_t rank, region_table r, const record *i, int64_t *landed_ns, progress *p) {
    const operand *sources[SOURCES] = {&i->a, &i->b, &i->c};
    const bool result = i->op == READ && i->dst2.kind != REGION && i->a.id < r.count;
    if (result && r.all[i->a.id].heap == BY_PEERS) return LAST; /* it is read where it lies */
    while (p->phase < SOURCES && sources[p->phase]->kind != REGION) p->phase++;
    if (p->phase == COMPUTED) return copy(m, rank, r, &i->dst2, i->nbytes, TO_POOL, landed_ns, p);
    if (p->phase < SOURCES) {
        const enum direction direction = i->op == REDUCE ? FOLD : FROM_POOL;
        if (copy(m, rank, r, sources[p->phase++], i->nbytes, direction, landed_ns, p) == INVALID_RECORD)
            return INVALID_RECORD;
        while (p->phase < SOURCES && sources[p->phase]->kind != REGION) p->phase++;
        if (p->phase < SOURCES) return MORE;
    }
    if (i->op == REDUCE) p->now += bytes_ns(combined_bytes(i), m->costs->reduce_rate);
    if (i->dst2.kind != REGION) return LAST;
    p->phase = COMPUTED;
    return MORE;
}

/* Charge a stream for a fence, which takes no time if it has stored to coherent memory only. */
static void fence(const model *m, int64_t landed_ns, progress *p) {
    if (p->stored || !p->stored_coherent) p->now = later(p->now, landed_ns) + m->costs->fence_ns;
    p->stored = p->stored_coherent = false;
}

enum part cost_instruction_part(model *m, int32_t rank, region_table r, const record *i, int64_t *landed_ns,
                                progress *p) {
    const costs *cost = costs_of(m, r, &i->a);
    if (i->nbytes < 0 || i->nbytes > LARGEST_BYTES) return INVALID_RECORD;
    switch (i->op) {
    case WRITE:
    case WRITE_NT: return write(m, rank, r, i, landed_ns, p);
    case READ:
    case REDUCE: return gather(m, rank, r, i, landed_ns, p);
    case FLUSH: p->now += cost->coherent ? 0 : lines_of(i) * cost->flush_line_ns; return LAST;
    case INVALIDATE: p->now += cost->coherent ? 0 : lines_of(i) * cost->invalidate_line_ns; return LAST;
    case FENCE: fence(m, *landed_ns, p); return LAST;
    case COPY: p->now += bytes_ns(i->nbytes, m->costs->local_copy_rate); return LAST;
    case REDUCE_LOCAL: p->now += bytes_ns(combined_bytes(i), m->costs->reduce_rate); return LAST;
    default: return INVALID_RECORD;
    }
}
