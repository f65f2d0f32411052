/* Executes records. Those that touch the pool do so directly here, or through an emulated host's cache in shadow_executor.c. On
 * coherent memory stores are in the pool at once, so flushes, fences and invalidates are elided, and the release of a SIGNAL
 * and the acquire of a WAIT order what they would. On other memory they are the machine's instructions. */
#define _POSIX_C_SOURCE 200809L
#include "core.h"
#include "copy.h"
#include "peer_memory.h"
#include "lines.h"
#include "pace.h"
#include "address.h"
#include "idle.h"
#include "shadow_executor.h"

#include <stdatomic.h>
#include <string.h>

/* From how many bytes on an array is stored past the caches: a number of the machine's, set once (cxlemu/machine.py). */
static _Atomic int64_t past_caches_bytes = PAST_CACHES_BYTES;

int64_t program_past_caches_from(int64_t nbytes) {
    if (nbytes > 0) atomic_store_explicit(&past_caches_bytes, nbytes, memory_order_relaxed);
    return atomic_load_explicit(&past_caches_bytes, memory_order_relaxed);
}

/* Return the address of byte `at` of an operand; *run: how many bytes lie there in a row. */
static uint8_t *piece(const program *p, const operand *o, int64_t at, int64_t *run) {
    if (o->kind == BUFFER) return p->buffers[o->id] + o->offset + at;
    if (berth_of(p, o->id)) return peer_piece(p, o, at, run);
    const region *r = &p->regions[o->id];
    int64_t from = r->start + o->offset + at, granule = from / r->granularity_bytes;
    int64_t within = from % r->granularity_bytes;
    if (r->cards > 1 && r->granularity_bytes - within < *run) *run = r->granularity_bytes - within;
    return p->cards[r->first_card + granule % r->cards] + granules_at(p, o) +
           granule / r->cards * r->granularity_bytes + within;
}

/* Copy into an array that no cache holds whole: ordinary stores would fetch its lines only to overwrite them. */
static bool past_caches(const program *p, const record *r) {
    if (r->op == WRITE && r->dst.kind == REGION && p->regions[r->dst.id].heap == BY_PEERS) /* a peer's result */
        return p->regions[r->dst.id].nbytes >= program_past_caches_from(0);
    return (r->op == READ || r->op == COPY) && !r->dst2.kind &&
           p->buffer_bytes[r->dst.id] >= program_past_caches_from(0);
}

static bool apart(const uint8_t *a, const uint8_t *b, int64_t nbytes) { return a + nbytes <= b || b + nbytes <= a; }

static void move(const program *p, const record *r) {
    if (is_peers(p, &r->a) && !r->dst2.kind) {
        peer_read(p, &r->a, 0, p->buffers[r->dst.id] + r->dst.offset, r->nbytes);
        return;
    }
    const bool nt = past_caches(p, r);
    for (int64_t at = 0, run; at < r->nbytes; at += run) {
        run = r->nbytes - at;
        const uint8_t *from = piece(p, &r->a, at, &run);
        uint8_t *to = piece(p, &r->dst, at, &run), *too = r->dst2.kind ? piece(p, &r->dst2, at, &run) : NULL;
        if (apart(to, from, run)) {
            if (nt) copy_bytes_past(to, from, run);
            else copy_bytes(to, from, run);
        } else if (to != from) memmove(to, from, (size_t)run); /* an array in the heap is its own region */
        if (too) copy_bytes(too, to, run);
    }
    if (nt) lines_fence();
}

static void move_nt(const program *p, const record *r) {
    for (int64_t at = 0, run; at < r->nbytes; at += run) {
        run = r->nbytes - at;
        uint8_t *to = piece(p, &r->dst, at, &run);
        lines_copy_nt(to, piece(p, &r->a, at, &run), run, 0);
    }
}

static void reduce(const program *p, const record *r) {
    int64_t divisor = r->flags & FLAG_DIVIDE ? r->arg : 1;
    for (int64_t at = 0, run; at < r->nbytes; at += run) {
        run = r->nbytes - at;
        const uint8_t *a = piece(p, &r->a, at, &run), *b = piece(p, &r->b, at, &run);
        const uint8_t *c = r->c.kind ? piece(p, &r->c, at, &run) : NULL;
        uint8_t *to = piece(p, &r->dst, at, &run), *too = r->dst2.kind ? piece(p, &r->dst2, at, &run) : NULL;
        fold_arrays(r->dtype, r->redop, to, a, b, c, run, divisor);
        if (too) copy_bytes(too, to, run);
    }
}

static void flush(const program *p, const record *r) {
    card_extent extents[MAX_CARDS];
    const int count = address_extents(p, &r->a, r->nbytes, extents);
    for (int k = 0; k < count; k++) {
        if (r->op == FLUSH) lines_flush(bytes_at(p, extents[k].at), extents[k].nbytes, 0);
        else lines_invalidate(bytes_at(p, extents[k].at), extents[k].nbytes);
    }
}

/* Tell the places of the rank's arrays behind what else the payload has; between is nothing. */
static void tell(const program *p, const record *r, uint8_t *payload) {
    const int64_t carried = r->op == SIGNAL_DATA ? r->nbytes : 0;
    memset(payload + carried, 0, (size_t)(PLACES_AT - carried));
    if (p->peers) peer_tell(p, payload + PLACES_AT);
    else told_tell(p->told, payload + PLACES_AT);
}

static void ring(const program *p, const record *r) {
    int64_t epoch = p->epoch + r->value;
    uint8_t *line = bytes_at(p, doorbell_place(p, r->arg, epoch));
    if (r->op == SIGNAL_DATA) {
        int64_t run = r->nbytes;
        memcpy(line + 8, piece(p, &r->a, 0, &run), (size_t)r->nbytes);
    }
    if (r->flags & FLAG_PLACES && (p->peers || p->told)) tell(p, r, line + 8);
    atomic_store_explicit((_Atomic uint64_t *)line, doorbell_word(p, epoch), memory_order_release);
    if (!(p->elides & ELIDE_PUSH)) lines_flush(line, LINE_BYTES, 0);
}

/* Look at a doorbell once. Returns DONE where it shows enough, with its payload in `payload`, and where `tells` with the places of
 * its rank's arrays learned; else why not, in *found. */
static enum status look(const program *p, int32_t doorbell, int64_t wanted, uint8_t *payload, int64_t nbytes,
                        bool tells, obstacle *found) {
    uint8_t copied[LINE_BYTES];
    const uint8_t *line = copied;
    uint64_t word;
    found->doorbell = doorbell, found->wanted = wanted, found->shows = 0;
    if (p->through) {
        const enum status status = shadow_look(p, doorbell, wanted, copied);
        if (status != DONE) return status;
        memcpy(&word, line, sizeof word);
    } else {
        line = bytes_at(p, doorbell_place(p, doorbell, wanted));
        if (!(p->elides & ELIDE_FETCH)) lines_invalidate(line, LINE_BYTES);
        word = atomic_load_explicit((const _Atomic uint64_t *)line, memory_order_acquire);
    }
    const int64_t shows = (int64_t)(word >> TAG_BITS);
    const int32_t rank = doorbell - published_count(p);
    if (__builtin_parityll(word)) return DAMAGED;
    if (p->done_seen && rank >= 0) p->done_seen[rank] = shows;
    if (shows > wanted || (shows == wanted && (rank >= 0 || (word | 1) == (doorbell_bits(p, wanted) | 1)))) {
        if (nbytes) memcpy(payload, line + 8, (size_t)nbytes);
        if (!tells || rank >= 0) return DONE;
        const int32_t owner = doorbell / p->layout.doorbells_per_rank;
        if (p->peers) peer_learn(p, owner, line + 8 + PLACES_AT);
        return !p->told || told_learn(p->told, owner, line + 8 + PLACES_AT, &found->shows) ? DONE : MISPLACED;
    }
    found->shows = shows;
    return shows == wanted ? MISMATCH : IDLE;
}

static enum status wait_group(const program *p, const record *r, obstacle *found) {
    int64_t wanted = p->epoch + r->value;
    if (wanted <= 0) return DONE; /* before the communicator's first round */
    const group *g = &p->groups[r->arg];
    for (int32_t k = 0; k < g->count; k++) {
        const int32_t doorbell = g->first + k * g->stride, rank = doorbell - published_count(p);
        if (p->done_seen && rank >= 0 && p->done_seen[rank] >= wanted) continue;
        enum status s = look(p, doorbell, wanted, NULL, 0, false, found);
        if (s != DONE) return s;
    }
    return DONE;
}

static enum status direct_step(const program *p, const record *r) {
    switch (r->op) {
    case WRITE:
    case READ: move(p, r); break;
    case WRITE_NT:
        if (p->elides & ELIDE_FENCE) move(p, r);
        else move_nt(p, r);
        break;
    case REDUCE: reduce(p, r); break;
    case FLUSH:
    case INVALIDATE:
        if (!(p->elides & (r->op == FLUSH ? ELIDE_FLUSH : ELIDE_INVALIDATE))) flush(p, r);
        break;
    case FENCE:
        if (!(p->elides & ELIDE_FENCE)) lines_fence();
        break;
    default: ring(p, r);
    }
    return DONE;
}

static enum status peer_step(const program *p, const record *r, obstacle *found) {
    const enum status status = direct_step(p, r);
    if (!p->peers->error) return status;
    *found = (obstacle){.doorbell = NO_DOORBELL, .wanted = p->peers->unreadable, .shows = p->peers->error};
    p->peers->error = 0;
    return UNREADABLE;
}

/* Return whether the next records, of which there are `left`, flush just what this one writes, and fence it. */
static enum follows follows(const record *r, int64_t left) {
    if (r->op != WRITE || left < 1 || r[1].op != FLUSH || r[1].nbytes != r->nbytes) return OTHER_NEXT;
    const operand *a = &r->dst, *b = &r[1].a;
    if (a->id != b->id || a->seq != b->seq || a->offset != b->offset) return OTHER_NEXT;
    return left > 1 && r[2].op == FENCE ? FLUSH_AND_FENCE_NEXT : FLUSH_NEXT;
}

/* Execute a record; returns DONE, or why it cannot be executed yet. left: how many of its stream this run executes after it. */
static enum status step(program *p, const record *r, int64_t left, obstacle *found) {
    switch (r->op) {
    case COPY: move(p, r); return DONE;
    case REDUCE_LOCAL: reduce(p, r); return DONE;
    case WAIT: return look(p, r->arg, p->epoch + r->value, NULL, 0, r->flags & FLAG_PLACES, found);
    case WAIT_DATA:
        return look(p, r->arg, p->epoch + r->value, p->buffers[r->dst.id] + r->dst.offset, r->nbytes,
                    r->flags & FLAG_PLACES, found);
    case WAIT_ALL: return wait_group(p, r, found);
    case RECORD: p->events[r->arg] = 1; return DONE;
    case AWAIT: found->doorbell = NO_DOORBELL, found->wanted = found->shows = 0; return p->events[r->arg] ? DONE : IDLE;
    case COMPUTE: found->doorbell = NO_DOORBELL, found->wanted = found->shows = 0; return KERNEL;
    default:
        if (p->peers) return peer_step(p, r, found);
        found->doorbell = NO_DOORBELL, found->wanted = found->shows = 0;
        if (p->told && (found->wanted = told_lacks(p, r)) != NO_PLACE) return MISPLACED;
        if (!p->through) return direct_step(p, r);
        return shadow_step(p, r, follows(r, left));
    }
}

/* Execute a record in a world with a pace: when the stream's modelled time has come, and once for all parts of an instruction. */
static enum status paced_step(program *p, int32_t s, const record *r, int64_t left, obstacle *found) {
    const bool waits = r->op == WAIT || r->op == WAIT_ALL || r->op == WAIT_DATA || r->op == AWAIT;
    if (waits || r->op == COMPUTE) {
        const enum status status = pace_due(p, s, found) ? step(p, r, left, found) : IDLE;
        if (status == DONE) pace_observe(p, s, r);
        return status;
    }
    bool more = true;
    found->doorbell = NO_DOORBELL, found->wanted = found->shows = 0;
    for (bool first = p->pacing->streams[s].phase == 0; more; first = false) {
        if (!pace_due(p, s, found)) return IDLE;
        enum status status = pace_charge(p, s, r, &more);
        if (status == DONE && first) status = step(p, r, left, found);
        if (status != DONE) return status;
    }
    return DONE;
}

enum status program_execute(program *p, int32_t stream, obstacle *found) {
    const int64_t at = p->position[stream];
    const enum status status = step(p, &p->records[stream][at], 0, found);
    found->stream = stream, found->at = at;
    if (status == DONE) p->position[stream]++;
    return status;
}

void program_begin(program *p, int64_t epoch, uint16_t tag) {
    p->epoch = epoch, p->slot = epoch % p->layout.slots, p->tag = tag;
    memset(p->position, 0, sizeof p->position);
    memcpy(p->stops, p->lengths, sizeof p->stops);
    memset(p->events, 0, (size_t)p->event_count);
    p->turn = p->waiting = 0, p->stepped = false;
    if (p->told) told_forget(p->told);
    if (p->pacing) pace_begin(p);
}

void program_skip(program *p, int32_t stream) {
    if (p->pacing) pace_skip(p, stream);
    p->position[stream]++;
    p->stepped = true;
}

/* End a run within a round, and remember that the streams before this one have had their turn. To begin a new round would change
 * the order of the rank's accesses, which an emulated host's adversary sees. */
static enum status end_at(program *p, int32_t turn, bool stepped, obstacle here, obstacle *found, int *count,
                          enum status status) {
    memcpy(p->waits, found, (size_t)*count * sizeof *found);
    p->turn = turn, p->waiting = *count, p->stepped = stepped;
    found[0] = here;
    *count = 1;
    return status;
}

/* Begin where the last run ended: in the middle of its round, or with the first stream. */
static void go_on(program *p, int32_t *begin, bool *stepped, obstacle *found, int *count) {
    memcpy(found, p->waits, (size_t)p->waiting * sizeof *found);
    *begin = p->turn, *stepped = p->stepped, *count = p->waiting;
    p->turn = p->waiting = 0, p->stepped = false;
}

/* Run as fast as this machine can: each stream in turn goes as far as it can, until none goes on. */
static enum status plain_run(program *p, int64_t idle_ns, int64_t spins, obstacle *found, int *count) {
    idling since = {0};
    int32_t begin;
    bool stepped;
    go_on(p, &begin, &stepped, found, count);
    for (;; begin = 0, stepped = false, *count = 0) {
        for (int32_t s = begin; s < p->stream_count; s++) {
            for (; p->position[s] < p->stops[s]; p->position[s]++, stepped = true) {
                obstacle *next = &found[*count];
                const int64_t at = p->position[s];
                const enum status outcome = step(p, &p->records[s][at], p->stops[s] - at - 1, next);
                if (outcome == DONE) continue;
                next->stream = s, next->at = at;
                if (outcome != IDLE) return end_at(p, s, stepped, *next, found, count, outcome);
                ++*count;
                break;
            }
            if (p->position[s] == p->stops[s] && p->stops[s] < p->lengths[s]) {
                const obstacle stop = {.stream = s, .doorbell = NO_DOORBELL, .at = p->position[s]};
                return end_at(p, s, stepped, stop, found, count, STOPPED);
            }
        }
        if (*count == 0) return DONE;
        if (stepped) since = (idling){0};
        else if (!idle(&since, idle_ns, spins, INT64_MAX, false)) return IDLE;
    }
}

static enum status end_paced(obstacle here, obstacle *found, int *count, enum status status) {
    found[0] = here, *count = 1;
    return status;
}

/* Run with a pace: execute one record of the stream whose modelled time comes first, then compare the times anew. A stream comes
 * to its end or its stop when the modelled time of the record before has come. */
static enum status paced_run(program *p, int64_t idle_ns, int64_t spins, obstacle *found, int *count) {
    idling since = {0};
    int32_t order[MAX_STREAMS] = {0, 1, 2, 3};
    for (;;) {
        bool stepped = false, nothing_rings;
        *count = 0;
        pace_order(p, order);
        for (int32_t turn = 0; turn < p->stream_count && !stepped; turn++) {
            const int32_t s = order[turn];
            const int64_t at = p->position[s];
            obstacle *next = &found[*count];
            if (at < p->stops[s]) {
                const enum status outcome = paced_step(p, s, &p->records[s][at], p->stops[s] - at - 1, next);
                if (outcome == DONE) p->position[s]++, stepped = true;
                else {
                    next->stream = s, next->at = at;
                    if (outcome != IDLE) return end_paced(*next, found, count, outcome);
                    ++*count;
                    continue;
                }
            }
            if (p->position[s] < p->stops[s]) continue;
            if (!pace_due(p, s, next)) ++*count;
            else if (p->stops[s] < p->lengths[s])
                return end_paced((obstacle){.stream = s, .doorbell = NO_DOORBELL, .at = p->position[s]}, found, count,
                                 STOPPED);
        }
        if (*count == 0 && !stepped) {
            pace_end(p);
            return DONE;
        }
        if (stepped) {
            since = (idling){0};
            continue;
        }
        const int64_t rest_ns = pace_rest_ns(p, found, *count, &nothing_rings);
        if (!idle(&since, idle_ns, spins, rest_ns, nothing_rings)) return IDLE;
    }
}

enum status program_run(program *p, int64_t idle_ns, int64_t spins, obstacle *found, int *count) {
    return (p->pacing ? paced_run : plain_run)(p, idle_ns, spins, found, count);
}
