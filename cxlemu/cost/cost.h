/* What moving bytes costs on a modelled fabric, in integer nanoseconds: timing.py says the whole model. The virtual engine
 * asks it in virtual time, the native engine's pace in this machine's: it is one piece of C for both. */
#ifndef CXLEMU_COST_H
#define CXLEMU_COST_H

#include "../native/core.h"

#define LONGEST_NS (1LL << 60)
#define LARGEST_BYTES (1LL << 41) /* of one instruction */
enum { MAX_HOPS = 32 };

/* Of a resource: bytes in a millisecond, 0 where it is never in the way; how much longer it is kept for each transfer; and
 * how many bytes it carries for so many of payload, in whole flits. */
typedef struct {
    int64_t rate, message_ns, flit_bytes, payload_bytes;
} pace;

/* Something that one transfer at a time uses, in the order of requests. */
typedef struct {
    pace pace;
    int64_t free_ns;
    int64_t uses, bytes, busy_ns, queue_ns; /* statistics; queue_ns: how long transfers stood before it */
    int64_t transfer, load, start_ns; /* of the transfer that is being placed: which, its bytes here, when it begins */
} resource;

/* Resource `first + by_host * host + by_card * card` on the way between a host and a card. */
typedef struct {
    int32_t first, by_host, by_card;
} hop;

typedef struct {
    hop to_pool[MAX_HOPS], from_pool[MAX_HOPS]; /* each in the direction of the data, without engines and cards */
    int64_t hops, latency_ns; /* one way */
} route;

typedef struct {
    int64_t call_ns, copy_ns, flush_line_ns, invalidate_line_ns, fence_ns, ring_ns, observe_ns, scan_ns;
    int64_t local_copy_rate, reduce_rate; /* bytes in a millisecond; 0: no time */
} costs;

_Static_assert(sizeof(pace) == 32, "pace differs from PACE_DTYPE");
_Static_assert(sizeof(hop) == 12, "hop differs from HOP_DTYPE");
_Static_assert(sizeof(route) == 2 * MAX_HOPS * 12 + 16, "route differs from ROUTE_DTYPE");
_Static_assert(sizeof(costs) == 80, "costs differs from COSTS_DTYPE");

/* A reservation that was made: called while it is placed. */
typedef void reservation_seen(void *watcher, const resource *r, int32_t rank, int64_t begin_ns, int64_t end_ns, int64_t nbytes);

typedef struct {
    resource *resources;
    const route *routes;
    const int32_t *route_of; /* [host][card] */
    const int64_t *card_latency_ns;
    const int32_t *host_of; /* [rank] */
    int32_t resource_count, route_count, hosts, cards, rank_count;
    int32_t first_read, first_write, first_total; /* + card: resources */
    int32_t first_to, first_from, first_both; /* + rank */
    costs cost;
    int64_t transfers; /* so far, beginning at what no other user of these resources counts to */
    reservation_seen *seen; /* NULL: nobody looks */
    void *watcher;
} model;

/* The regions of a call's plan. */
typedef struct {
    const region *all;
    int32_t count;
} region_table;

/* Move bytes of a region between a rank and the pool, beginning at `now`: when the last one arrived. *alone_ns: how long
 * that takes when nothing else moves; *way_ns: the longest way to a card and back. -1 for a region that is not there. */
int64_t transfer(model *m, int32_t rank, region_table r, const operand *o, int64_t nbytes, bool to_pool, int64_t now,
                 int64_t *alone_ns, int64_t *way_ns);

/* A stream within an instruction. phase: which of its parts comes next, 0 before the first. */
typedef struct {
    int64_t now, queue_ns;
    int32_t phase;
} progress;

enum part { NOT_THERE = -1, MORE, LAST };

/* The next part of an instruction that moves, orders or combines bytes: p->now moves to its end. A part is one request to
 * the pool, so that those of other ranks come in between. *landed_ns: when all that the rank wrote is in the pool.
 * LAST: it is over then. NOT_THERE for an instruction that names what is not there, or that this model does not know. */
enum part instruction_part(model *m, int32_t rank, region_table r, const record *i, int64_t *landed_ns, progress *p);

/* Rounded up; what is too long for a run is not too long for the type. */
static inline int64_t bytes_ns(int64_t nbytes, int64_t rate) {
    if (!rate) return 0;
    if (nbytes < INT64_MAX / 1000000 - rate) return (nbytes * 1000000 + rate - 1) / rate;
    const __int128 ns = ((__int128)nbytes * 1000000 + rate - 1) / rate;
    return ns > 2 * LONGEST_NS ? 2 * LONGEST_NS : (int64_t)ns;
}

/* How long a transfer keeps a resource. */
static inline int64_t kept_ns(int64_t nbytes, const pace *p) {
    const int64_t flits = p->payload_bytes == 1 ? nbytes : (nbytes + p->payload_bytes - 1) / p->payload_bytes;
    return p->message_ns + bytes_ns(flits * p->flit_bytes, p->rate);
}

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

static inline const route *route_to(const model *m, int32_t rank, int32_t card) {
    return &m->routes[m->route_of[(int64_t)m->host_of[rank] * m->cards + card]];
}

/* A request's way and its answer's; a load waits for the card, too. */
static inline int64_t round_trip_ns(const model *m, int32_t rank, int32_t card, bool is_write) {
    return 2 * route_to(m, rank, card)->latency_ns + (is_write ? 0 : m->card_latency_ns[card]);
}

/* When a doorbell on a card comes to show what a rank rings it with from `now` on. */
static inline int64_t shown_after_ns(const model *m, int32_t rank, int32_t card, int64_t now) {
    return now + m->cost.ring_ns + route_to(m, rank, card)->latency_ns;
}

/* A look at `count` doorbells, the first of which lies on this card. */
static inline int64_t look_ns(const model *m, int32_t rank, int32_t card, int32_t count) {
    return m->cost.observe_ns + round_trip_ns(m, rank, card, false) + m->cost.scan_ns * (count - 1);
}

#endif
