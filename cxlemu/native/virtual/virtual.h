/* The virtual engine executes plans as discrete events in integer nanoseconds. cxlemu/cost defines resources and the
 * cost of each instruction; this file defines how events lie in memory. Records are packed. */
#ifndef CXLEMU_VIRTUAL_H
#define CXLEMU_VIRTUAL_H

#include "../cost/cost.h"
#include "packed.h"

#define NEVER INT64_MAX
enum { NOBODY = 0 };

/* Waiters are lists, linked through `link`, of streams (positive) and gates (negative). */
static inline int32_t stream_waits(int64_t id) { return (int32_t)id + 1; }
static inline int32_t gate_waits(int32_t number) { return -number - 1; }

typedef struct {
    int64_t ns, epoch;
    int32_t waiters, pad;
} bell; /* a published doorbell in one slot: the epoch that it shows, and since when */

typedef struct {
    int64_t ns; /* the latest of the doorbells looked at so far */
    int32_t group, next, waiters, link;
    int64_t epoch;
    bool open;
    int32_t call;
} gate; /* the doorbells that WAIT_ALL waits for: one per group and epoch, shared by all its waiters */

typedef struct {
    layout layout;
    const int32_t *card_of; /* by card of its layout: the model's card */
    int64_t epochs; /* how many all its calls take */
    bell *published; /* [slot][doorbell] */
    int64_t *done; /* [rank][epoch]: when the done doorbell came to show it */
    int64_t *done_shows;
    int32_t *done_waiters;
} communicator;

typedef struct {
    int64_t *records; /* packed */
    int64_t length;
} program_stream;

typedef struct {
    int32_t comm, members, group_count, kernel_count;
    int32_t inside; /* members that have begun and not ended it */
    int64_t epoch, rounds;
    region_table regions;
    const group *groups;
    const kernel_cost *kernels;
    int64_t first_gate;
    program_stream *streams; /* [member][MAX_STREAMS] */
    int32_t *events; /* how many each member has */
    bool shares; /* its streams and events are another call's */
    int64_t *begin_ns, *end_ns; /* of each member */
} virtual_call;

typedef struct {
    packed_place next; /* the record `at` */
    int64_t length, at, began, wanted;
    progress progress; /* its time, and how much of its next instruction it has executed */
    int32_t link, rank, doorbell;
    int32_t op; /* of the record `at`, once it was looked at */
    int32_t waits_by; /* the operation that waits for the doorbell */
} stream;

typedef struct {
    int64_t ns;
    int32_t waiters;
} event;

typedef struct {
    int32_t call, member, turn, live; /* turn: which of its calls this is; live: streams that have not ended */
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
    model model;
    /* the program */
    communicator *comms;
    virtual_call *calls;
    gate *gates;
    int64_t comm_count, call_count, gate_count;
    const int32_t *turns,
        *first_turn; /* of each rank: (call, member) from first_turn[rank] on; NULL: each call is begun
                                        * by itself */
    /* the state */
    rank_state *ranks;
    stream *streams; /* [rank][MAX_STREAMS] */
    int64_t *free_ns; /* [rank][multiprocessor] */
    due *heap;
    int32_t *woken; /* streams that the current instruction woke, to be put on the heap after it */
    int64_t heap_length, woken_length, steps;
    /* logs and statistics */
    op_total ops[OP_END];
    executed *log;
    reserved *log_reserved;
    int64_t log_room, log_length, reserved_room, reserved_length;
    bool logs, out_of_memory;
    int64_t stranded; /* the stream that waited for a doorbell that it has no route to any more, or -1 */
    int64_t ended; /* the call that has just ended, or -1 */
} simulation;

enum outcome { OVER, DEADLOCK, BAD_RECORD, TOO_LONG, NO_MEMORY, NO_WAY, PAUSED };

/* Run to the end of all calls. BAD_RECORD: *where is the stream whose record names something that does not exist;
 * NO_WAY: *where is the stream whose rank has no route to the model's card `no_way_to`. */
enum outcome simulation_run(simulation *v, int64_t *where);

/* Begin a call, on a ring as new as it first was, on ranks that are in no call. BAD_RECORD: one is in a call. */
enum outcome simulation_begin(simulation *v, int64_t call, const int32_t *ranks, int64_t now);

/* Go on with what was begun, up to `until` at most: PAUSED there, or behind the end of the call v->ended; else as
 * simulation_run. */
enum outcome simulation_advance(simulation *v, int64_t until, int64_t *where);

/* A reservation_seen that adds to the log of the simulation `watcher`. */
void simulation_log_reservation(void *watcher, const resource *r, int32_t rank, int64_t begin_ns, int64_t end_ns,
                                int64_t nbytes);

#endif
