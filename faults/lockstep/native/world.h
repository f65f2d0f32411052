/* Ranks on hosts around one communicator's part of the cards, all in one thread: what faults/lockstep/lockstep.py does on
 * emulated caches without an adversary, for orders that are tables. Records are executed by cxlemu/native/executor.c, one at a
 * time. */
#ifndef CXLEMU_WORLD_H
#define CXLEMU_WORLD_H

#include "core.h"
#include "shadow.h"

/* A plan as the world runs it: by rank, its records and tables, checked. Nothing of it changes while it runs. */
typedef struct {
    program *part;
} script;

/* One call of all ranks. */
typedef struct {
    const script *plan;
    int64_t epoch;
    uint16_t tag;
} call;

/* A move of nature on one line of one host. */
typedef struct {
    int32_t action, host, card;
    int64_t line; /* from the beginning of the card */
} blow;

/* Which step comes next: the one of least priority, among equals the one that was chosen longest ago; and what nature does
 * between two steps, the last blow first. */
typedef struct {
    const int32_t *priority; /* by rank and stream */
    const blow *blows;
    int64_t blow_count;
} order;

/* How a run ended, beside those of `enum status`, each of which choice[0] and its `why` place. */
enum outcome { STUCK = 100, SPENT, RAISED };

/* What the world asks of others; each returns false to end the run with RAISED. */
typedef struct {
    void *of;
    bool (*ended)(void *of, int32_t number, int32_t rank); /* a rank has ended a call */
    bool (*kernel)(void *of, int32_t number, int32_t rank, int32_t stream, int64_t at); /* a COMPUTE is due */
    bool (*look)(void *of); /* now and then */
} asked;

typedef struct {
    /* what there is */
    layout layout;
    int64_t base, card_bytes;
    int32_t ranks, hosts;
    int32_t *host_of; /* by rank */
    uint8_t *storage; /* all that follows lies in it, first what every run finds empty */
    size_t storage_bytes, emptied_bytes;
    uint8_t **cards;
    shadow *memory; /* by rank */
    /* the run */
    program *now; /* by rank: the call that it is in */
    int32_t *turn; /* by rank: the number of that call */
    int32_t *line_up,
        in_line; /* ranks that have not ended all calls, in the order in which they began the one that they are in */
    int32_t *choice, choices; /* rank and stream of each step that is left, stuck or not */
    int64_t *chosen; /* by rank and stream: when it was chosen last */
    bool *stuck; /* by rank and stream */
    obstacle *why; /* by rank and stream */
    uint8_t **events; /* by rank */
    int64_t events_room;
    int32_t *moves; /* a step's rank and stream, or the negative of a blow's number and 1 */
    int64_t move_count, move_room;
    int64_t *first, *last; /* by call and rank: when its first and its last instruction was done */
    int64_t calls_room;
} world;

/* Make a world of w->layout, w->base, w->ranks and w->hosts, with host_of[rank]. Return false when there is no memory. */
bool world_make(world *w, const int32_t *host_of);
void world_free(world *w);

/* Run calls from the beginning, on empty cards and caches, to the end or the first thing that is wrong. buffers: by call, rank
 * and buffer. end_s: of this thread's processor time, when the run ends with SPENT. */
int world_run(world *w, const call *calls, int32_t count, uint8_t *const *buffers, const order *by, double end_s,
              const asked *ask);

static inline int32_t world_code(int32_t rank, int32_t stream) { return rank * MAX_STREAMS + stream; }

#endif
