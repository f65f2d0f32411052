/* What moving bytes costs on a modelled fabric, in integer nanoseconds; cxlemu/cost describes the whole model. The virtual
 * engine asks it in virtual time, and the native engine's pace in this machine's time. */
#ifndef CXLEMU_COST_H
#define CXLEMU_COST_H

#include "../core.h"

#define LONGEST_NS (1LL << 60)
#define LARGEST_BYTES (1LL << 41) /* of one instruction */
#define MOST_TILES (1LL << 20) /* of one COMPUTE */
#define LONGEST_TILE_NS (1LL << 40)
enum { MAX_HOPS = 32, MAX_MULTIPROCESSORS = 1024 };

/* How fast a resource is. */
typedef struct {
    int64_t rate; /* in bytes per millisecond; 0: it never delays anything */
    int64_t message_ns; /* how much longer each transfer keeps it */
    int64_t flit_bytes, payload_bytes; /* a flit's size, and how many of its bytes carry data */
    int64_t buffer_bytes; /* how many bytes may wait before it; 0: any number */
    int64_t
        request_bytes; /* what each flit of data from the pool asks for on the resource before it, the link's other way */
} service_rate;

/* An engine, card or link: one transfer at a time uses it, in the order of requests. */
typedef struct {
    service_rate service;
    int64_t free_ns; /* when the last transfer leaves it */
    int64_t uses, bytes, busy_ns, queue_ns; /* statistics; queue_ns: how long transfers waited before it */
    int64_t transfer, load, start_ns; /* the transfer to place: its number, its bytes here, when it begins */
} resource;

/* A resource on the way between a rank and a card: number `first`, plus by_host times the rank's host, by_rank times the rank,
 * by_card times the card, and by_owner times the host that owns the card. */
typedef struct {
    int32_t first, by_host, by_rank, by_card, by_owner;
} hop;

typedef struct {
    hop to_pool[MAX_HOPS], from_pool[MAX_HOPS]; /* in the direction of the data, without engines and cards */
    int64_t hops, latency_ns; /* one way */
} route;

typedef struct {
    int64_t call_ns, copy_ns, flush_line_ns, invalidate_line_ns, fence_ns, ring_ns, arrival_ns, observe_ns, scan_ns;
    int64_t data_ns; /* from a store of data and flag in one until a peer has it; 0: as other doorbells */
    int64_t local_copy_rate, reduce_rate; /* in bytes per millisecond; 0: they take no time */
    int64_t coherent, coherence_ns; /* coherence_ns: what each access takes longer, except the owner's */
    int64_t first_to, first_from, first_both, first_fold; /* the first rank's engines; the others' follow */
} costs; /* of one memory; an instruction that uses no memory costs what the first row says */

typedef struct {
    int64_t latency_ns;
    int32_t costs, owner_host, owner_rank, pad; /* costs: which row; an owner of -1: no host or rank owns it */
} card_row;

/* What a COMPUTE of a kernel costs: how many tiles it has, and how long each takes on one multiprocessor. */
typedef struct {
    int64_t tiles, tile_ns;
} kernel_cost;

static inline bool kernel_cost_fits(const kernel_cost *cost) {
    return cost->tiles >= 1 && cost->tiles <= MOST_TILES && cost->tile_ns >= 0 && cost->tile_ns <= LONGEST_TILE_NS;
}

_Static_assert(sizeof(kernel_cost) == 16, "kernel_cost differs from COST_DTYPE");
_Static_assert(sizeof(service_rate) == 48, "service_rate differs from SERVICE_RATE_DTYPE");
_Static_assert(sizeof(hop) == 20, "hop differs from HOP_DTYPE");
_Static_assert(sizeof(route) == 2 * MAX_HOPS * 20 + 16, "route differs from ROUTE_DTYPE");
_Static_assert(sizeof(costs) == 144, "costs differs from COSTS_DTYPE");
_Static_assert(sizeof(card_row) == 24, "card_row differs from CARD_DTYPE");

/* Called for each reservation of a resource, when it is placed. */
typedef void reservation_seen(void *watcher, const resource *r, int32_t rank, int64_t begin_ns, int64_t end_ns,
                              int64_t nbytes);

typedef struct {
    resource *resources;
    const route *routes;
    const int32_t *route_of; /* [host][card], at present; -1: there is no way */
    const int64_t *changes_ns; /* when the next table of this kind takes its place */
    int64_t change_count, changed; /* changed: how many changes lie behind */
    int32_t no_way_to; /* a card that was needed and to which there is no way, or -1 */
    const card_row *card;
    const costs *costs;
    const int32_t *host_of; /* [rank] */
    int32_t resource_count, route_count, cost_rows, hosts, cards, rank_count;
    int32_t multiprocessors; /* of each rank */
    int32_t first_read, first_write, first_total; /* the first card's resources; the others' follow */
    int64_t transfers; /* the last transfer's number; no other user of these resources counts to the same ones */
    reservation_seen *seen; /* NULL: reservations are not watched */
    void *watcher;
} model;

/* The regions of a call's plan. */
typedef struct {
    const region *all;
    int32_t count;
    const int32_t *card_of; /* by card of the layout: the card's number in the model */
} region_table;

enum direction { TO_POOL, FROM_POOL, FOLD }; /* FOLD: from the pool, by a kernel that folds */

/* Move bytes of a region between a rank and the pool, beginning at `now`, and return when the last one arrives. *alone_ns: how
 * long that takes when nothing else moves; *way_ns: the longest way to a card and back. Returns -1 for a region that does not
 * exist, or to which there is no way. */
int64_t cost_transfer(model *m, int32_t rank, region_table r, const operand *o, int64_t nbytes,
                      enum direction direction, int64_t now, int64_t *alone_ns, int64_t *way_ns);

/* How far a stream is. */
typedef struct {
    int64_t now, queue_ns;
    int64_t computed_ns; /* when its last COMPUTE is over; the stream may have gone on before */
    int32_t phase; /* which part of its instruction comes next, 0 before the first */
    bool stored, stored_coherent; /* since its last FENCE: to incoherent, and to coherent memory */
} progress;

/* Let a stream's next instruction begin at `now`. */
static inline void next_instruction(progress *p, int64_t now) { p->now = now, p->queue_ns = 0, p->phase = 0; }

enum part { INVALID_RECORD = -1, MORE, LAST };

/* Charge the next part of an instruction that moves, orders or combines bytes: p->now becomes the part's end. A part is one
 * request to the pool, so that requests of other ranks come in between. *landed_ns: when all that the rank wrote is in the
 * pool. Returns LAST for the instruction's last part, and INVALID_RECORD for an instruction that names something that does not
 * exist, or that this model does not know. */
enum part cost_instruction_part(model *m, int32_t rank, region_table r, const record *i, int64_t *landed_ns,
                                progress *p);

/* Charge a COMPUTE: each tile goes to the multiprocessor that is free first; free_ns says when each one is. *first: when the
 * first tile begins; *last: when the last one begins, and the stream goes on. Returns when all tiles are over. */
int64_t cost_compute_tiles(const kernel_cost *cost, int64_t *free_ns, int32_t multiprocessors, int64_t now,
                           int64_t *first, int64_t *last);

/* Return whether an instruction, or the stream's end (NULL), waits for what the stream computes. */
bool cost_needs_result(const record *i);

/* Return how long bytes take at a rate, rounded up. A time that is too long for a run still fits the type. */
static inline int64_t bytes_ns(int64_t nbytes, int64_t rate) {
    if (!rate) return 0;
    if (nbytes < INT64_MAX / 1000000 - rate) return (nbytes * 1000000 + rate - 1) / rate;
    const __int128 ns = ((__int128)nbytes * 1000000 + rate - 1) / rate;
    return ns > 2 * LONGEST_NS ? 2 * LONGEST_NS : (int64_t)ns;
}

/* Return how long bytes take in whole flits. */
static inline int64_t flits_ns(int64_t nbytes, const service_rate *p) {
    const int64_t flits = p->payload_bytes == 1 ? nbytes : (nbytes + p->payload_bytes - 1) / p->payload_bytes;
    return bytes_ns(flits * p->flit_bytes, p->rate);
}

/* Return how long a transfer keeps a resource. */
static inline int64_t kept_ns(int64_t nbytes, const service_rate *p) { return p->message_ns + flits_ns(nbytes, p); }

static inline int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

static const route NO_WAY_TO_GO = {.hops = 0};

/* Return the route from a rank to a card, or NULL. */
static inline const route *route_to(const model *m, int32_t rank, int32_t card) {
    const int32_t number = m->route_of[(int64_t)m->host_of[rank] * m->cards + card];
    if (m->card[card].owner_rank == rank) return &NO_WAY_TO_GO;
    return number < 0 ? NULL : &m->routes[number];
}

static inline bool reaches(model *m, int32_t rank, int32_t card) {
    if (!route_to(m, rank, card)) m->no_way_to = card;
    return m->no_way_to < 0;
}

/* Take the table of routes that holds from `now` on. */
static inline void change_ways(model *m, int64_t now) {
    for (; m->changed < m->change_count && now >= m->changes_ns[m->changed]; m->changed++)
        m->route_of += (int64_t)m->hosts * m->cards;
}

static inline const costs *costs_at(const model *m, int32_t card) { return &m->costs[m->card[card].costs]; }

/* Return what coherence adds to an access. The owner of a memory does not wait for its directory. */
static inline int64_t coherence_ns(const model *m, int32_t rank, int32_t card) {
    const route *way = route_to(m, rank, card);
    return way && way->hops ? costs_at(m, card)->coherence_ns : 0;
}

/* Return how long a request and its answer are on their way; a load also waits for the card. */
static inline int64_t round_trip_ns(const model *m, int32_t rank, int32_t card, bool is_write) {
    return 2 * route_to(m, rank, card)->latency_ns + (is_write ? 0 : m->card[card].latency_ns);
}

/* Whether a doorbell with data is a store to each peer by a lane of its own, and each peer's flag looked at by one: then
 * nothing but the way takes time, and all ways at once. */
static inline bool by_lanes(const model *m, int32_t card, int32_t op) {
    return (op == SIGNAL_DATA || op == WAIT_DATA) && costs_at(m, card)->data_ns;
}

/* Return when a rank goes on that begins to ring a doorbell on a card at `now`, by a SIGNAL or SIGNAL_DATA. */
static inline int64_t rung_ns(const model *m, int32_t rank, int32_t card, int32_t op, int64_t now) {
    if (by_lanes(m, card, op)) return now;
    return now + costs_at(m, card)->ring_ns + coherence_ns(m, rank, card);
}

/* Return when that doorbell comes to show it, where there is a way to the card. */
static inline int64_t shown_after_ns(const model *m, int32_t rank, int32_t card, int32_t op, int64_t now) {
    if (by_lanes(m, card, op)) return now + costs_at(m, card)->data_ns;
    return rung_ns(m, rank, card, op, now) + route_to(m, rank, card)->latency_ns + costs_at(m, card)->arrival_ns;
}

/* Return how long a wait's look at `count` doorbells takes, the first of which lies on this card. */
static inline int64_t look_ns(const model *m, int32_t rank, int32_t card, int32_t op, int32_t count) {
    if (by_lanes(m, card, op)) return 0;
    const costs *cost = costs_at(m, card);
    return cost->observe_ns + coherence_ns(m, rank, card) + round_trip_ns(m, rank, card, false) +
           cost->scan_ns * (count - 1);
}

#endif
