#include "shadow_executor.h"
#include "address.h"
#include "shadow.h"

#include <stdlib.h>

enum { BLOCK_BYTES = 1 << 16 }; /* of an undisturbed REDUCE's operands: they stay in the second-level cache */

static uint8_t *local(const program *p, const operand *o) { return p->buffers[o->id] + o->offset; }

static strided piece_of(uint8_t *bytes, const card_run *run) {
    return (strided){bytes + run->local, run->block_bytes, run->stride};
}

static enum status store(const program *p, const operand *o, uint8_t *from, int64_t nbytes, int op, enum follows next) {
    card_run runs[MAX_RUNS];
    const int count = address_runs(p, o, nbytes, runs);
    enum status status = DONE;
    for (int k = 0; k < count && status == DONE; k++) {
        const int64_t size = runs[k].block_bytes * runs[k].blocks;
        const strided piece = piece_of(from, &runs[k]);
        status = op == WRITE_NT ? shadow_write_nt(p->through, runs[k].at, piece, size)
                                : shadow_write(p->through, runs[k].at, piece, size, next);
    }
    return status;
}

static enum status load(const program *p, const operand *o, uint8_t *into, int64_t nbytes) {
    card_run runs[MAX_RUNS];
    const int count = address_runs(p, o, nbytes, runs);
    enum status status = DONE;
    for (int k = 0; k < count && status == DONE; k++)
        status = shadow_read(p->through, runs[k].at, piece_of(into, &runs[k]), runs[k].block_bytes * runs[k].blocks);
    return status;
}

static enum status flush(const program *p, const record *r) {
    card_extent extents[MAX_CARDS];
    const int count = address_extents(p, &r->a, r->nbytes, extents);
    enum status status = DONE;
    for (int k = 0; k < count && status == DONE; k++)
        status = r->op == FLUSH ? shadow_flush(p->through, extents[k].at, extents[k].nbytes, false)
                                : shadow_invalidate(p->through, extents[k].at, extents[k].nbytes);
    return status;
}

static enum status store_too(const program *p, const record *r) {
    return r->dst2.kind ? store(p, &r->dst2, local(p, &r->dst), r->nbytes, WRITE, OTHER_NEXT) : DONE;
}

static enum status read(const program *p, const record *r) {
    const enum status status = load(p, &r->a, local(p, &r->dst), r->nbytes);
    return status == DONE ? store_too(p, r) : status;
}

/* Load the operands one after the other, each as a whole, then store the result, as the reference engine does. Without
 * an adversary nothing moves in between, and the same is done block by block. */
static enum status reduce(program *p, const record *r) {
    const int64_t divisor = r->flags & FLAG_DIVIDE ? r->arg : 1;
    const int64_t most = p->through->disturbed || r->nbytes < BLOCK_BYTES ? r->nbytes : BLOCK_BYTES;
    const operand *const sources[] = {&r->a, &r->b, &r->c};
    if (3 * most > p->scratch_bytes) {
        uint8_t *scratch = realloc(p->scratch, (size_t)(3 * most));
        if (!scratch) return OUT_OF_MEMORY;
        p->scratch = scratch, p->scratch_bytes = 3 * most;
    }
    for (int64_t at = 0, block; at < r->nbytes; at += block) {
        const uint8_t *values[3] = {NULL};
        block = r->nbytes - at < most ? r->nbytes - at : most;
        for (int k = 0; k < 3; k++) {
            operand source = *sources[k];
            source.offset += at;
            if (source.kind == BUFFER) values[k] = local(p, &source);
            if (source.kind != REGION) continue;
            const enum status status = load(p, &source, p->scratch + k * most, block);
            if (status != DONE) return status;
            values[k] = p->scratch + k * most;
        }
        fold_arrays(r->dtype, r->redop, local(p, &r->dst) + at, values[0], values[1], values[2], block, divisor);
    }
    return store_too(p, r);
}

static enum status ring(const program *p, const record *r) {
    const int64_t epoch = p->epoch + r->value;
    const uint8_t *payload = r->op == SIGNAL_DATA ? local(p, &r->a) : NULL;
    int64_t nbytes = payload ? r->nbytes : 0;
    uint8_t whole[PAYLOAD_BYTES] = {0};
    if (p->told && r->flags & FLAG_PLACES) {
        if (payload) memcpy(whole, payload, (size_t)nbytes);
        told_tell(p->told, whole + PLACES_AT);
        payload = whole, nbytes = PAYLOAD_BYTES;
    }
    return shadow_signal(p->through, doorbell_place(p, r->arg, epoch), doorbell_word(p, epoch), payload, nbytes);
}

enum status shadow_step(program *p, const record *r, enum follows next) {
    switch (r->op) {
    case WRITE:
    case WRITE_NT: return store(p, &r->dst, local(p, &r->a), r->nbytes, r->op, next);
    case FLUSH:
    case INVALIDATE: return flush(p, r);
    case FENCE: return shadow_fence(p->through);
    case READ: return read(p, r);
    case REDUCE: return reduce(p, r);
    default: return ring(p, r);
    }
}

enum status shadow_look(const program *p, int32_t doorbell, int64_t epoch, uint8_t line[LINE_BYTES]) {
    return shadow_poll(p->through, doorbell_place(p, doorbell, epoch), line);
}
