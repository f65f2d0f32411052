/* A transfer occupies every resource on its route, each as soon as that is free and the resource before it has begun.
 * It ends when the slowest of them does. Only the copy engine is held until then: links and cards have queues. */
#include "cost.h"

#include <stddef.h>

/* Find how many bytes of a logical range lie on each card that it touches, from the first card on. Return how many
 * cards. */
static int32_t pieces_of(const int32_t *card_of, const region *r, const operand *o, int64_t nbytes, int32_t *card,
                         int64_t *piece) {
    const int64_t size = r->granularity_bytes, begin = r->start + o->offset, end = begin + nbytes;
    const int64_t first = begin / size, last = (end - 1) / size;
    if (r->cards == 1 || first == last) {
        card[0] = card_of[r->first_card + (int32_t)(first % r->cards)], piece[0] = nbytes;
        return 1;
    }
    int32_t count = 0;
    for (int64_t granule = first; granule <= last && count < r->cards; granule++, count++) {
        const int64_t blocks = (last - granule) / r->cards + 1;
        piece[count] = blocks * size;
        if (granule == first) piece[count] -= begin - first * size;
        if ((last - granule) % r->cards == 0) piece[count] -= (last + 1) * size - end;
        card[count] = card_of[r->first_card + (int32_t)(granule % r->cards)];
    }
    return count;
}

static void note(const model *m, const resource *r, int32_t rank, int64_t begin_ns, int64_t end_ns, int64_t nbytes) {
    if (m->seen && begin_ns != end_ns) m->seen(m->watcher, r, rank, begin_ns, end_ns, nbytes);
}

/* Return when a transfer that comes at `asked_ns` finds room in a resource's buffer, after enough of the bytes in it
 * have left. */
static int64_t entered_ns(const resource *r, int64_t asked_ns, int64_t nbytes) {
    const int64_t room = r->service.buffer_bytes - nbytes;
    if (!r->service.buffer_bytes) return asked_ns;
    return later(asked_ns, r->free_ns - flits_ns(room > 0 ? room : 0, &r->service));
}

/* Keep a link's way to the pool for as long as the requests take to which these bytes from the pool answer. They pass between
 * what else goes there: nothing waits for them in turn, but what comes later finds less of the link. */
static void ask(model *m, resource *r, int32_t rank, int64_t nbytes, int64_t asked_ns) {
    if (!r->service.request_bytes) return;
    resource *other = r - 1;
    const int64_t flits = (nbytes + r->service.payload_bytes - 1) / r->service.payload_bytes;
    const int64_t needs = bytes_ns(flits * r->service.request_bytes, other->service.rate);
    const int64_t begin = later(other->free_ns, asked_ns);
    other->free_ns = begin + needs, other->busy_ns += needs, other->uses++;
    note(m, other, rank, begin, other->free_ns, 0);
}

/* Reserve a resource for a transfer that asks for it at `asked_ns`. Until the transfer finds room there, it occupies
 * `before`, if that is not NULL. Return when it begins; raise *end_ns to its end, and *alone_ns to how long it keeps
 * the resource. */
static int64_t take(model *m, resource *r, resource *before, int32_t rank, int64_t asked_ns, int64_t nbytes,
                    int64_t *end_ns, int64_t *alone_ns) {
    if (!r->service.rate) return asked_ns;
    const int64_t needs = kept_ns(nbytes, &r->service), start = later(asked_ns, r->free_ns);
    const int64_t entered = entered_ns(r, asked_ns, nbytes);
    if (before && entered > asked_ns) before->free_ns += entered - asked_ns, *end_ns = later(*end_ns, before->free_ns);
    r->free_ns = start + needs;
    r->uses++, r->bytes += nbytes, r->busy_ns += needs, r->queue_ns += start - asked_ns;
    *end_ns = later(*end_ns, r->free_ns), *alone_ns = later(*alone_ns, needs);
    note(m, r, rank, start, r->free_ns, nbytes);
    return start;
}

/* List the resources of a piece's route in the direction of the data, without engines. Return how many. */
static int32_t way_of(model *m, int32_t rank, int32_t card, bool to_pool, resource **way) {
    const route *between = route_to(m, rank, card);
    const int64_t host = m->host_of[rank], owner = m->card[card].owner_host;
    const hop *hops = to_pool ? between->to_pool : between->from_pool;
    int32_t count = 0;
    resource *ends[2] = {&m->resources[(to_pool ? m->first_write : m->first_read) + card],
                         &m->resources[m->first_total + card]};
    if (!to_pool) way[count++] = ends[1], way[count++] = ends[0];
    for (int64_t k = 0; k < between->hops; k++)
        way[count++] = &m->resources[hops[k].first + hops[k].by_host * host + hops[k].by_rank * (int64_t)rank +
                                     hops[k].by_card * (int64_t)card + hops[k].by_owner * owner];
    if (to_pool) way[count++] = ends[0], way[count++] = ends[1];
    return count;
}

int64_t cost_transfer(model *m, int32_t rank, region_table r, const operand *o, int64_t nbytes,
                      enum direction direction, int64_t now, int64_t *alone_ns, int64_t *way_ns) {
    int32_t cards[MAX_CARDS];
    int64_t pieces[MAX_CARDS];
    resource *way[MAX_HOPS + 2];
    const bool to_pool = direction == TO_POOL;
    if (o->kind != REGION || o->id >= r.count || nbytes < 0 || nbytes > LARGEST_BYTES || o->offset < 0 ||
        o->offset > LARGEST_BYTES)
        return -1;
    const region *whole = &r.all[o->id];
    if (nbytes == 0) return now;
    const int32_t count = pieces_of(r.card_of, whole, o, nbytes, cards, pieces);
    if (count < 1) return -1;
    for (int32_t k = 0; k < count; k++)
        if (!reaches(m, rank, cards[k])) return -1;
    const costs *cost = costs_at(m, cards[0]);
    const int64_t engines[] = {cost->first_to, cost->first_from, cost->first_fold};
    resource *engine = &m->resources[engines[direction] + rank];
    resource *both = &m->resources[cost->first_both + rank];
    const int64_t began = later(now, engine->service.rate ? engine->free_ns : 0);
    int64_t start = began, end = began, last_start = began;
    *alone_ns = 0, *way_ns = 0;
    start = take(m, both, NULL, rank, start, nbytes, &end, alone_ns);
    if (count > 1) { /* a resource that pieces share carries their sum, from the first one on */
        const int64_t number = ++m->transfers;
        for (int32_t k = 0; k < count; k++) {
            const int32_t length = way_of(m, rank, cards[k], to_pool, way);
            for (int32_t at = 0; at < length; at++) {
                if (way[at]->transfer != number) way[at]->transfer = number, way[at]->load = 0, way[at]->start_ns = -1;
                way[at]->load += pieces[k];
            }
        }
    }
    for (int32_t k = 0; k < count; k++) {
        const int32_t length = way_of(m, rank, cards[k], to_pool, way);
        int64_t here = start;
        resource *before = NULL;
        for (int32_t at = 0; at < length; at++) {
            resource *its = way[at];
            ask(m, its, rank, pieces[k], start);
            if (count == 1) here = take(m, its, before, rank, here, nbytes, &end, alone_ns);
            else {
                if (its->start_ns < 0) its->start_ns = take(m, its, before, rank, here, its->load, &end, alone_ns);
                here = later(here, its->start_ns);
            }
            if (its->service.rate) before = its;
        }
        last_start = later(last_start, here);
        *way_ns = later(*way_ns, round_trip_ns(m, rank, cards[k], to_pool));
    }
    if (engine->service.rate) {
        const int64_t needs = kept_ns(nbytes, &engine->service);
        end = later(end, (to_pool ? began : last_start) + needs);
        engine->queue_ns += began - now, engine->busy_ns += end - began, engine->bytes += nbytes, engine->uses++;
        engine->free_ns = end, *alone_ns = later(*alone_ns, needs);
        note(m, engine, rank, began, end, nbytes);
    }
    return end;
}
