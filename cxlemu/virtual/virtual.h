/* The virtual engine: plans as discrete events in integer nanoseconds. What a resource is and what each instruction
 * costs, timing.py says; this file says how the events lie in memory. Records are read in place. */
#ifndef CXLEMU_VIRTUAL_H
#define CXLEMU_VIRTUAL_H

#include "../native/core.h"

#define NEVER INT64_MAX
#define LONGEST_NS (1LL << 60)
#define LARGEST_BYTES (1LL << 41) /* of one instruction */
#define MOST_TILES (1LL << 20) /* of one COMPUTE */
#define LONGEST_TILE_NS (1LL << 40)
enum { MAX_HOPS = 32, MAX_MULTIPROCESSORS = 1024, NOBODY = 0 };

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

/* On the way between a rank and a card: resource `first`, and so many further for its host, the rank, the card and the
 * host that owns that. */
typedef struct {
    int32_t first, by_host, by_rank, by_card, by_owner;
} hop;

typedef struct {
    hop to_pool[MAX_HOPS], from_pool[MAX_HOPS]; /* each in the direction of the data, without engines and cards */
    int64_t hops, latency_ns; /* one way */
} route;

typedef struct {
    int64_t call_ns, copy_ns, flush_line_ns, invalidate_line_ns, fence_ns, ring_ns, observe_ns, scan_ns;
    int64_t local_copy_rate, reduce_rate; /* bytes in a millisecond; 0: no time */
    int64_t coherent, coherence_ns; /* coherence_ns: of each access */
    int64_t first_to, first_from, first_both; /* + rank: engines */
} costs; /* of the memory that is used; what uses none costs what the first row says */

typedef struct {
    int64_t latency_ns;
    int32_t costs, owner_host, owner_rank, pad; /* costs: which row; -1: nobody's, or no rank's */
} card_row;

/* What a COMPUTE of a kernel costs: so many tiles, each so long on one multiprocessor. */
typedef struct {
    int64_t tiles, tile_ns;
} kernel_cost;

_Static_assert(sizeof(kernel_cost) == 16, "kernel_cost differs from COST_DTYPE");
_Static_assert(sizeof(pace) == 32, "pace differs from PACE_DTYPE");
_Static_assert(sizeof(hop) == 20, "hop differs from HOP_DTYPE");
_Static_assert(sizeof(route) == 2 * MAX_HOPS * 20 + 16, "route differs from ROUTE_DTYPE");
_Static_assert(sizeof(costs) == 120, "costs differs from COSTS_DTYPE");
_Static_assert(sizeof(card_row) == 24, "card_row differs from CARD_DTYPE");

/* Waiters are lists linked through `link`. */
static inline int32_t stream_waits(int64_t id) { return (int32_t)id + 1; }
static inline int32_t gate_waits(int32_t number) { return -number - 1; }

typedef struct {
    int64_t ns, epoch;
    int32_t waiters, pad;
} bell; /* a published doorbell in one slot: when which epoch came to be seen there */

typedef struct {
    int64_t ns; /* the latest of the doorbells looked at so far */
    int32_t group, next, waiters, link;
    int64_t epoch;
    bool open;
    int32_t call;
} gate; /* what WAIT_ALL waits for: one for each group and epoch, shared by all who wait */

typedef struct {
    int32_t ranks, slots, doorbells_per_rank, own_doorbells, cards, pool_cards; /* own: the last ones, in the rank's memory */
    const int32_t *card_of; /* of its layout's cards, which of the model's */
    int64_t epochs; /* all that its calls take */
    bell *published; /* [slot][doorbell] */
    int64_t *done; /* [rank][epoch]: when the done doorbell came to show it */
    int64_t *done_shows;
    int32_t *done_waiters;
} communicator;

typedef struct {
    const record *records;
    int64_t length;
} program_stream;

typedef struct {
    int32_t comm, members, group_count, region_count, kernel_count;
    int64_t epoch, rounds;
    const region *regions;
    const group *groups;
    const kernel_cost *kernels;
    int64_t first_gate;
    const program_stream *streams; /* [member][MAX_STREAMS] */
    const int32_t *events; /* how many each member has */
    int64_t *begin_ns, *end_ns; /* of each member */
} virtual_call;

typedef struct {
    const record *records;
    int64_t length, at, now, began, queue_ns, wanted;
    int64_t computed_ns; /* when all that it computes is there; it may have gone on before */
    int32_t phase, link, rank, doorbell;
    bool stored, stored_coherent; /* since its last FENCE: where nothing keeps caches coherent, and elsewhere */
} stream;

typedef struct {
    int64_t ns;
    int32_t waiters;
} event;

typedef struct {
    int32_t host, call, member, turn, live; /* turn: of its calls, which; live: streams that have not ended */
    int32_t event_room;
    event *events;
    int64_t landed_ns, covered_ns, busy_ns, exposed_ns;
    int64_t tiles_ns; /* of all multiprocessors together */
} rank_state;

typedef struct {
    int64_t ns;
    int64_t id;
} due;

typedef struct {
    int64_t begin_ns, end_ns, queue_ns;
    int32_t rank, call, stream, at;
} executed; /* an instruction, in the order of execution */

typedef struct {
    int64_t begin_ns, end_ns, bytes;
    int32_t resource, rank;
} reserved;

typedef struct {
    int64_t count, ns, queue_ns;
} op_total;

typedef struct {
    /* the model */
    resource *resources;
    const route *routes;
    const int32_t *route_of; /* [host][card]; -1: no way */
    const card_row *card;
    const costs *costs;
    int32_t resource_count, route_count, cost_rows, hosts, cards, rank_count;
    int32_t multiprocessors; /* of each rank */
    int32_t first_read, first_write, first_total; /* + card: resources */
    /* the program */
    communicator *comms;
    virtual_call *calls;
    gate *gates;
    int64_t comm_count, call_count, gate_count;
    const int32_t *turns, *first_turn; /* of each rank: (call, member) from first_turn[rank] on */
    /* the state */
    rank_state *ranks;
    stream *streams; /* [rank][MAX_STREAMS] */
    int64_t *free_ns; /* [rank][multiprocessor] */
    due *heap;
    int32_t *woken; /* by the instruction that is being executed: they are put on the heap after it */
    int64_t heap_length, woken_length, transfers, steps;
    /* what was seen */
    op_total ops[OP_END];
    executed *log;
    reserved *log_reserved;
    int64_t log_room, log_length, reserved_room, reserved_length;
    bool logs, out_of_memory;
} simulation;

enum outcome { OVER, DEADLOCK, BAD_RECORD, TOO_LONG, NO_MEMORY };

/* To the end of all calls. BAD_RECORD: *where is the stream whose record names what is not there. */
enum outcome simulation_run(simulation *v, int64_t *where);

/* Move bytes of a region between a rank and the pool, beginning at `now`: when the last one arrived. *alone_ns: how long
 * that takes when nothing else moves; *way_ns: the longest way to a card and back. -1 for a region that is not there, or
 * that no way leads to. */
int64_t transfer(simulation *v, int32_t rank, const virtual_call *call, const operand *o, int64_t nbytes, bool to_pool,
                 int64_t now, int64_t *alone_ns, int64_t *way_ns);

/* Room for one more row of a log that holds `length`; NULL where there is no memory, which ends the run. */
void *one_more(simulation *v, void *rows, size_t size, int64_t length, int64_t *room);

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

static const route NO_WAY_TO_GO = {.hops = 0};

/* NULL where there is none. */
static inline const route *route_to(const simulation *v, int32_t rank, int32_t card) {
    const int32_t number = v->route_of[(int64_t)v->ranks[rank].host * v->cards + card];
    if (v->card[card].owner_rank == rank) return &NO_WAY_TO_GO;
    return number < 0 ? NULL : &v->routes[number];
}

static inline const costs *costs_at(const simulation *v, int32_t card) { return &v->costs[v->card[card].costs]; }

/* A request's way and its answer's; a load waits for the card, too. */
static inline int64_t round_trip_ns(const simulation *v, int32_t rank, int32_t card, bool is_write) {
    return 2 * route_to(v, rank, card)->latency_ns + (is_write ? 0 : v->card[card].latency_ns);
}

#endif
