/* Checks that memory safety needs: a plan may come from a file, so every offset is compared with what there is before
 * anything runs. The rules in Python check more, and report it in sentences. */
#include "peer_memory.h"

const int64_t program_item_bytes[DTYPES] = {1, 1, 4, 8, 2, 2, 4, 8, 2, 2, 4, 8, 1, 8, 16};

enum {
    ARITHMETIC = 1 << SUM | 1 << PROD | 1 << AVG,
    ORDER = 1 << MIN | 1 << MAX,
    LOGIC = 1 << BAND | 1 << BOR | 1 << BXOR
};
enum { INTEGER = ARITHMETIC | ORDER | LOGIC, FLOAT = ARITHMETIC | ORDER, TRUTH = INTEGER & ~(1 << AVG) };
static const int operations[DTYPES] = {INTEGER, INTEGER, INTEGER, INTEGER, FLOAT, FLOAT,      FLOAT,     FLOAT,
                                       INTEGER, INTEGER, INTEGER, INTEGER, TRUTH, ARITHMETIC, ARITHMETIC};

bool program_folds(int dtype, int redop) {
    return dtype >= 0 && dtype < DTYPES && redop > 0 && redop < REDOP_END && operations[dtype] >> redop & 1;
}

static bool fits(int64_t at, int64_t nbytes, int64_t size) {
    return at >= 0 && nbytes >= 0 && nbytes <= size && at <= size - nbytes;
}

static bool operand_ok(const program *p, const operand *o, int64_t nbytes) {
    if (o->kind == NOTHING) return true;
    if (o->kind == BUFFER) return o->id < p->buffer_count && fits(o->offset, nbytes, p->buffer_bytes[o->id]);
    return o->kind == REGION && o->id < p->region_count && o->seq >= 0 &&
           fits(o->offset, nbytes, p->regions[o->id].nbytes);
}

static bool region_ok(const program *p, const region *r) {
    const int64_t most = (int64_t)1 << 48;
    if (r->first_card < 0 || r->cards < 1 || r->cards > p->card_count || r->first_card > p->card_count - r->cards)
        return false;
    if (r->granularity_bytes < LINE_BYTES || r->granularity_bytes % LINE_BYTES || r->granularity_bytes > most)
        return false;
    if (r->base < 0 || r->start < 0 || r->nbytes < 0 || r->base > most || r->start > most || r->nbytes > most)
        return false;
    if (r->nbytes == 0) return true;
    /* The furthest byte of any card is in the last granule or in the last whole one before it. */
    int64_t last = r->start + r->nbytes - 1, granule = last / r->granularity_bytes;
    int64_t end = r->base + granule / r->cards * r->granularity_bytes + last % r->granularity_bytes + 1;
    if (granule * r->granularity_bytes > r->start) {
        int64_t whole = r->base + (granule - 1) / r->cards * r->granularity_bytes + r->granularity_bytes;
        if (whole > end) end = whole;
    }
    return end <= (r->heap ? p->heap_bytes : p->layout.slot_card_bytes);
}

/* Return whether a region in a process lies within this rank's array; a peer's is only read, and the kernel checks that. */
static bool berth_ok(const program *p, const berth *lies, int64_t nbytes) {
    if (lies->owner < 0 || lies->owner >= p->peers->ranks || lies->buffer < 0 || lies->buffer >= TOLD_BUFFERS)
        return false;
    return lies->owner != p->peers->own || fits(lies->offset, nbytes, p->buffer_bytes[lies->buffer]);
}

static bool has(const operand *o, enum kind kind) { return o->kind == (uint16_t)kind; }
static bool given(const operand *o) { return o->kind != NOTHING; }

static bool aligned(const program *p, const operand *o, int64_t item) {
    return o->kind != REGION || (p->regions[o->id].start + o->offset) % item == 0;
}

/* Return whether a record's doorbell exists. The published doorbells of all ranks come first, then one done doorbell of
 * each rank. A published one lies in the slot of its epoch, so that must not be before the call: only waits for done
 * doorbells reach back. */
static bool doorbell_ok(const program *p, const record *r, bool waits) {
    const int32_t published = layout_published(&p->layout);
    if (r->arg < 0 || r->arg >= published + p->layout.ranks) return false;
    return r->value >= 0 || (waits && r->arg >= published);
}

static int64_t payload_most(const record *r) { return r->flags & FLAG_PLACES ? PLACES_AT : PAYLOAD_BYTES; }

static bool record_ok(const program *p, const record *r) {
    const operand *all[] = {&r->dst, &r->dst2, &r->a, &r->b, &r->c};
    const int64_t most = (int64_t)1 << 40;
    if (r->op == 0 || r->op >= OP_END || r->nbytes < 0 || r->value < -most || r->value > most) return false;
    for (int k = 0; k < 5; k++)
        if (r->op != COMPUTE && !operand_ok(p, all[k], r->nbytes)) return false;
    switch (r->op) {
    case WRITE:
    case WRITE_NT: return has(&r->dst, REGION) && has(&r->a, BUFFER) && !given(&r->dst2);
    case READ: return has(&r->dst, BUFFER) && has(&r->a, REGION) && !has(&r->dst2, BUFFER);
    case FLUSH:
    case INVALIDATE: return has(&r->a, REGION);
    case COPY: return has(&r->dst, BUFFER) && has(&r->a, BUFFER) && !given(&r->dst2);
    case REDUCE:
    case REDUCE_LOCAL:
        if (!program_folds(r->dtype, r->redop) || !has(&r->dst, BUFFER)) return false;
        if (r->op == REDUCE_LOCAL &&
            (given(&r->dst2) || has(&r->a, REGION) || has(&r->b, REGION) || has(&r->c, REGION)))
            return false;
        if (!given(&r->a) || !given(&r->b) || has(&r->dst2, BUFFER) || r->nbytes % program_item_bytes[r->dtype])
            return false;
        if (r->flags & FLAG_DIVIDE && r->arg < 1) return false;
        for (int k = 0; k < 5; k++)
            if (!aligned(p, all[k], program_item_bytes[r->dtype])) return false;
        return true;
    case SIGNAL_DATA: return doorbell_ok(p, r, false) && has(&r->a, BUFFER) && r->nbytes <= payload_most(r);
    case WAIT_DATA: return doorbell_ok(p, r, true) && has(&r->dst, BUFFER) && r->nbytes <= payload_most(r);
    case SIGNAL: return doorbell_ok(p, r, false);
    case WAIT: return doorbell_ok(p, r, true);
    case WAIT_ALL: return r->arg >= 0 && r->arg < p->group_count;
    case RECORD:
    case AWAIT: return r->arg >= 0 && r->arg < p->event_count;
    default: return true;
    }
}

/* Return whether the parts of an extent follow each other, and its doorbells lie where layout_doorbell says. */
static bool layout_ok(const layout *l) {
    const int64_t most = (int64_t)1 << 48;
    if (l->cards < 1 || l->ranks < 1 || l->slots < 1 || l->doorbells_per_rank < 1) return false;
    if (l->pool_cards < 1 || l->pool_cards > l->cards || l->own_doorbells < 0 ||
        l->own_doorbells > l->doorbells_per_rank)
        return false;
    if (l->own_doorbells && l->ranks > l->cards - l->pool_cards) return false;
    if ((int64_t)l->ranks * ((int64_t)l->doorbells_per_rank + 1) > INT32_MAX) return false;
    if (l->slot_card_bytes < 0 || l->slot_card_bytes > most || l->extent_bytes < 0) return false;
    const int64_t done_bytes = (l->ranks + (int64_t)l->pool_cards - 1) / l->pool_cards * LINE_BYTES;
    const int64_t lines = (layout_published(l) + (int64_t)l->pool_cards - 1) / l->pool_cards;
    const int64_t slot_bytes = (lines > l->own_doorbells ? lines : l->own_doorbells) * LINE_BYTES;
    if (l->doorbells_offset != done_bytes || l->slot_doorbell_bytes != slot_bytes) return false;
    if (l->data_offset < done_bytes || l->data_offset % LINE_BYTES) return false;
    if (slot_bytes > (l->data_offset - done_bytes) / l->slots) return false;
    if (l->data_offset > l->extent_bytes || l->slot_card_bytes > (l->extent_bytes - l->data_offset) / l->slots)
        return false;
    if (l->heap_offset % LINE_BYTES || l->heap_offset < l->data_offset + l->slots * l->slot_card_bytes) return false;
    return l->heap_offset <= l->extent_bytes;
}

bool program_check(program *p, int32_t *stream, int64_t *at) {
    const layout *l = &p->layout;
    *stream = -1, *at = -1;
    if (!layout_ok(l) || l->cards > p->card_count || p->base < 0 || p->base % LINE_BYTES) return false;
    const int64_t doorbells = (int64_t)layout_published(l) + l->ranks;
    p->heap_bytes = l->extent_bytes - l->heap_offset;
    for (int32_t k = 0; k < p->buffer_count; k++)
        if (p->buffer_bytes[k] < 0) return false;
    for (int32_t k = 0; k < p->region_count; k++)
        if (berth_of(p, k) ? !berth_ok(p, berth_of(p, k), p->regions[k].nbytes) : !region_ok(p, &p->regions[k]))
            return false;
    for (int32_t k = 0; k < p->group_count; k++) {
        const group *g = &p->groups[k];
        if (g->first < 0 || g->count < 1 || g->stride < 1) return false;
        if (g->first + ((int64_t)g->count - 1) * g->stride >= doorbells) return false;
    }
    for (*stream = 0; *stream < p->stream_count; ++*stream)
        for (*at = 0; *at < p->lengths[*stream]; ++*at) {
            const record *r = &p->records[*stream][*at];
            if (!record_ok(p, r)) return false;
            /* The size of an instruction that uses none is any number in the file, so the sum must not overflow. */
            if (p->work_bytes <= SMALL_WORK_BYTES)
                p->work_bytes = r->nbytes > SMALL_WORK_BYTES ? r->nbytes : p->work_bytes + r->nbytes;
            if (r->op != COMPUTE && has(&r->dst, BUFFER)) p->written[r->dst.id] = true;
        }
    *stream = -1, *at = -1;
    return !p->told || told_check(p);
}
