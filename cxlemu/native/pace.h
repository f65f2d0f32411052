/* The pace of a rank: its instructions take the time that the cost model gives them, on this machine's clock. Bytes move
 * for real as soon as an instruction begins, and the stream goes on when its modelled end has come. What ranks share of the
 * model, when every engine, link and card is free, lies in the pool's clocks, and so does when every doorbell was rung. A
 * stream's modelled time is not measured but computed, so what this machine comes late never adds up. */
#ifndef CXLEMU_PACE_H
#define CXLEMU_PACE_H

#include <stdatomic.h>

#include "cost/cost.h"
#include "hostlock.h"
#include "address.h"

enum { CLOCKS_HEAD_BYTES = 4096 };

/* At the beginning of the clocks, zeros at first; the resources follow after CLOCKS_HEAD_BYTES, then a `rung` for every line
 * of every card, of which only those of doorbells are ever touched. */
typedef struct {
    _Alignas(HOST_LOCK_BYTES) host_lock lock;
    _Alignas(HOST_LOCK_BYTES) double time_scale; /* this machine's nanoseconds for one of the model */
    int64_t resource_count;
} clocks;

/* Beside a published doorbell: when it came to show its epoch, and a number about a ring of its rank's done doorbell, which
 * may be rung again before others have seen that. Beside a done doorbell: how often it was rung. */
typedef struct {
    _Atomic int64_t ns, note;
} rung;

typedef struct pacer {
    model model;
    clocks *shared;
    rung *rung; /* [card][line] */
    int64_t card_lines;
    const int32_t *card_of; /* of the pool's cards, which of the model's */
    int32_t card_count;
    int32_t rank; /* of the world */
    int64_t landed_ns, ended_ns; /* all that it wrote is in the pool; its last call is over */
    int64_t *free_ns; /* of each of its multiprocessors */
    double time_scale;
    const int64_t *test_ns; /* a test's clock; NULL: the machine's */
} pacer;

/* What a program has of it. */
typedef struct pacing {
    pacer *pacer;
    region_table regions;
    const kernel_cost *kernels; /* of each kernel of the plan; NULL where the model does not know what they cost */
    int64_t kernel_count;
    progress streams[MAX_STREAMS]; /* .now: from when on the next instruction may begin, or its next part */
    int64_t event_ns[];
} pacing;

/* Bytes of the clocks for so many resources and cards of so many bytes. */
int64_t pace_clocks_bytes(int64_t resource_count, int64_t card_count, int64_t card_bytes);

/* The modelled time of this moment. */
int64_t pace_now(const pacer *p);

/* A call begins. */
void pace_begin(program *p);

/* All streams have ended. */
void pace_end(program *p);

/* The streams by their modelled times: a rank that comes late still makes its requests in their order. */
void pace_order(const program *p, int32_t order[MAX_STREAMS]);

/* Whether a stream's modelled time has come, and that of what it computes, where it needs that; if not, *found says so. */
bool pace_due(const program *p, int32_t s, obstacle *found);

/* What an instruction costs that is about to be executed: DONE, or CLOCKS_TIMEOUT when the clocks cannot be had. *more: it has
 * another part, with which it is not executed once more. */
enum status pace_charge(program *p, int32_t s, const record *r, bool *more);

/* What a wait costs that was executed. */
void pace_observe(program *p, int32_t s, const record *r);

/* What a stream stood at was executed elsewhere: a COMPUTE that the model knows, or what took the time that has passed. */
void pace_skip(program *p, int32_t s);

/* For how long, on this machine's clock, nothing will be due of what was found; INT64_MAX if nothing ever will by itself.
 * *only: nothing else was found but streams whose time has not come. */
int64_t pace_rest_ns(const program *p, const obstacle *found, int count, bool *only);

#endif
