/* A rank's pace: its instructions take the time that the cost model gives them, on this machine's clock. Bytes move for real
 * as soon as an instruction begins, and the stream goes on when its modelled end has come. The pool's clocks hold what ranks
 * share: when every engine, link and card is free, and when every doorbell was rung. A stream's modelled time is computed,
 * not measured, so that delays of this machine never add up. */
#ifndef CXLEMU_PACE_H
#define CXLEMU_PACE_H

#include <stdatomic.h>

#include "cost/cost.h"
#include "hostlock.h"
#include "address.h"

enum { CLOCKS_HEAD_BYTES = 4096 };

/* The beginning of the clocks, zeros at first. The resources follow after CLOCKS_HEAD_BYTES, then a `rung` for every line of
 * every card, of which only those of doorbells are ever touched. */
typedef struct {
    _Alignas(HOST_LOCK_BYTES) host_lock lock;
    _Alignas(HOST_LOCK_BYTES) double time_scale; /* this machine's nanoseconds for one of the model */
    int64_t resource_count;
} clocks;

/* When a doorbell was rung. For a published one: `ns`, when it came to show its epoch, and in `note` which ring of its rank's
 * done doorbell came last, as that one may be rung again before others have seen it. For a done one: how often it was rung. */
typedef struct {
    _Atomic int64_t ns, note;
} rung;

typedef struct pacer {
    model model;
    clocks *shared;
    rung *rung; /* [card][line] */
    int64_t card_lines;
    const int32_t *card_of; /* by card of the pool: the card's number in the model */
    int32_t card_count;
    int32_t rank; /* in the world */
    int64_t landed_ns, ended_ns; /* when all that the rank wrote is in the pool; when its last call ended */
    int64_t *free_ns; /* by multiprocessor of the rank */
    double time_scale;
    const int64_t *test_ns; /* a test's clock; NULL: the machine's */
} pacer;

/* What a program keeps of its rank's pace. */
typedef struct pacing {
    pacer *pacer;
    region_table regions;
    const kernel_cost *kernels; /* by kernel of the plan; NULL where the model does not know their costs */
    int64_t kernel_count;
    progress streams[MAX_STREAMS]; /* .now: when the next instruction, or its next part, may begin */
    int64_t event_ns[];
} pacing;

/* Return how many bytes the clocks have. */
int64_t pace_clocks_bytes(int64_t resource_count, int64_t card_count, int64_t card_bytes);

/* Return the modelled time of this moment. */
int64_t pace_now(const pacer *p);

/* Begin a call. */
void pace_begin(program *p);

/* End a call, all of whose streams have ended. */
void pace_end(program *p);

/* Sort the streams by their modelled times, so that a rank that comes late still makes its requests in their order. */
void pace_order(const program *p, int32_t order[MAX_STREAMS]);

/* Return whether a stream's modelled time has come and, where its next instruction needs a result, that of the result. If not,
 * *found says so. */
bool pace_due(const program *p, int32_t s, obstacle *found);

/* Charge the cost of an instruction, or of its next part, that is about to be executed. Returns DONE, or CLOCKS_TIMEOUT where
 * the clocks cannot be had. *more: another part follows, for which the instruction is not executed again. */
enum status pace_charge(program *p, int32_t s, const record *r, bool *more);

/* Charge the cost of a wait that was executed. */
void pace_observe(program *p, int32_t s, const record *r);

/* Charge the instruction that a stream stands at, which was executed elsewhere: the model's time for a COMPUTE that it knows,
 * else the time that has passed. */
void pace_skip(program *p, int32_t s);

/* Return for how long, on this machine's clock, nothing that was found will be due; INT64_MAX where nothing ever will be by
 * itself. *only: all that was found is streams whose modelled time has not come. */
int64_t pace_rest_ns(const program *p, const obstacle *found, int count, bool *only);

#endif
