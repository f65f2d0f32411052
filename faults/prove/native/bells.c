/* Doorbells: the same signal satisfies a wait in all executions, so the waiting stream learns what the signalling one
 * knew. */
#include "pass.h"

#include <string.h>

enum { RINGS_KEPT = 64 };

bell *bell_done(const pass *p, int32_t rank) {
    const program *any = &p->plan[0].part[0];
    return &p->bells[(int64_t)any->layout.slots * published_count(any) + rank];
}

bell *bell_at(const pass *p, const program *part, int32_t doorbell, int64_t epoch) {
    const int32_t published = published_count(part);
    if (doorbell >= published) return bell_done(p, doorbell - published);
    return &p->bells[slot_of(part, epoch) * published + doorbell];
}

const ring *bell_first_ring(const bell *b, int64_t value) {
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
        const point q = clock_now(p, s);
        if (!clock_before(e, &q)) return false;
    }
    return true;
}

/* Forget old signals that all streams know of: no stream learns anything from them. */
static void forget_rings(pass *p, bell *b) {
    int gone = 0;
    while (gone < b->rings - RINGS_KEPT / 2 && known_to_all(p, b->ring[gone].at.self)) {
        clock_forget(b->ring[gone].at.known);
        b->forgotten = b->ring[gone++].value;
    }
    b->rings -= gone;
    for (int k = 0; k < b->rings; k++) b->ring[k] = b->ring[k + gone];
}

/* Whether a doorbell's line has a payload for this instruction: bytes, or the places of arrays. */
static bool carries(const record *r) {
    return r->op == SIGNAL_DATA || r->op == WAIT_DATA || (r->op != WAIT_ALL && r->flags & FLAG_PLACES);
}

void bell_ring(step *s, const record *r, const record *previous) {
    pass *p = s->p;
    const int64_t value = s->part->epoch + r->value;
    const place at = doorbell_place(s->part, r->arg, value);
    const touch a = {s->now, at.card};
    bell *b = bell_at(p, s->part, r->arg, value);
    const ring *last = b->rings ? &b->ring[b->rings - 1] : NULL;
    if (last && !clock_before(last->at.self, &s->now)) pass_undecided(p, SIGNALS_UNORDERED, s->now.self);
    if ((last && value < last->value) || value < b->forgotten) pass_undecided(p, SIGNALS_FALL, s->now.self);
    if (carries(r)) {
        if (r->op == SIGNAL_DATA) pass_access_loads(s, r);
        rule_check_reuse(p, s->stream, value, s->part);
        if (!previous ||
            memcmp(r, previous, sizeof *r) != 0) { /* a signal that is repeated at once stores nothing new */
            rule_check_payload_store(p, &a, b, at.offset / LINE_BYTES);
            b->payload = s->now.self, b->readers = 0;
            b->told = r->flags & FLAG_PLACES ? value : 0;
            contents_begin(p, &b->carried);
            if (r->op == SIGNAL_DATA) pass_fetch(s, &b->carried, 0, &r->a, r->nbytes);
        }
    }
    if (last && value == last->value) return; /* a waiting rank may go on at the first one */
    if (b->rings >= RINGS_KEPT && b->rings % RINGS_KEPT == 0) forget_rings(p, b);
    b->ring = pass_room_for(p, b->ring, &b->ring_room, b->rings + 1, sizeof *b->ring);
    b->ring[b->rings++] = (ring){value, {clock_know(s->now.known), s->now.self}};
}

static bool rung(const bell *b, int64_t value) {
    return value <= b->forgotten || (b->rings && b->ring[b->rings - 1].value >= value);
}

/* Let the stream learn from the first signal that satisfies its wait: in some execution it goes on right then. */
static void hear(step *s, const bell *b, int64_t value) {
    const ring *first = bell_first_ring(b, value);
    if (first) clock_learn(s->p, s->stream, &first->at);
    s->now = clock_now(s->p, s->stream);
}

bool bell_hears(step *s, const record *r) {
    const int64_t value = s->part->epoch + r->value;
    const group all = r->op == WAIT_ALL ? s->part->groups[r->arg] : (group){r->arg, 1, 1};
    if (value <= 0) return true; /* before the communicator's first round: doorbells start at 0 */
    for (int32_t k = 0; k < all.count; k++)
        if (!rung(bell_at(s->p, s->part, all.first + k * all.stride, value), value)) return false;
    for (int32_t k = 0; k < all.count; k++) hear(s, bell_at(s->p, s->part, all.first + k * all.stride, value), value);
    if (carries(r)) {
        bell *b = bell_at(s->p, s->part, r->arg, value);
        const place at = doorbell_place(s->part, r->arg, value);
        const touch a = {s->now, at.card};
        rule_check_payload_load(s->p, &a, b, bell_first_ring(b, value), at.offset / LINE_BYTES);
        if (r->flags & FLAG_PLACES) rule_check_told(s->p, &a, b, s->part->epoch, at.offset / LINE_BYTES);
        b->reader = pass_room_for(s->p, b->reader, &b->reader_room, b->readers + 1, sizeof *b->reader);
        b->reader[b->readers++] = s->now.self;
    }
    return true;
}

void bell_take_payload(step *s, const record *r) {
    bell *b = bell_at(s->p, s->part, r->arg, s->part->epoch + r->value);
    if (!b->carried.runs) contents_begin(s->p, &b->carried);
    pass_put(s, &r->dst, &b->carried, 0, r->nbytes);
}
