/* The native engine executes a plan's records in place. engines/reference.py defines what each record means; this file says
 * how a record lies in memory, as the NumPy dtypes of plan/instructions.py do. */
#ifndef CXLEMU_CORE_H
#define CXLEMU_CORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "layout.h"

#define PAYLOAD_BYTES (LINE_BYTES - 8)
/* Behind a payload of at most this many bytes a doorbell's line has two words for where its rank's arrays lie. */
#define PLACES_AT (PAYLOAD_BYTES - 16)
#define TAG_BITS 16
/* The bits of a call's first epoch: with all that its records add, it fits a doorbell's word beside the tag. */
#define EPOCH_BITS 47
/* No call begins at this epoch or later. Until the words of doorbells are full an hour is left, at a round every 64 ns. */
#define EPOCHS_END (((int64_t)1 << EPOCH_BITS) - ((int64_t)1 << 36))
#ifndef MAX_STREAMS
#define MAX_STREAMS 4
#endif
#define MAX_BUFFERS 4
#define MAX_CARDS 256
#define SMALL_WORK_BYTES 8192

enum op {
    WRITE = 1,
    WRITE_NT,
    FLUSH,
    FENCE,
    SIGNAL,
    WAIT,
    WAIT_ALL,
    INVALIDATE,
    READ,
    REDUCE,
    COPY,
    REDUCE_LOCAL,
    COMPUTE,
    RECORD,
    AWAIT,
    SIGNAL_DATA,
    WAIT_DATA,
    OP_END
};
enum kind { NOTHING, BUFFER, REGION };
enum redop { SUM = 1, PROD, MIN, MAX, AVG, BAND, BOR, BXOR, REDOP_END };
enum { FLAG_DIVIDE = 1, FLAG_PLACES = 2 };
/* The steps that a memory does not need: the bits of CoherenceStep in memory/backend.py. */
enum { ELIDE_FLUSH = 1, ELIDE_FENCE = 2, ELIDE_INVALIDATE = 4, ELIDE_PUSH = 8, ELIDE_FETCH = 16, STEPS = 31 };
enum { DTYPES = 15 };

typedef struct {
    uint16_t kind, id;
    int32_t seq;
    int64_t offset;
} operand;

typedef struct {
    uint8_t op, dtype, redop, flags;
    int32_t arg;
    int64_t value, nbytes;
    operand dst, dst2, a, b, c;
} record;

typedef struct {
    int32_t first_card, cards;
    int64_t granularity_bytes, base, start, nbytes;
    int64_t heap; /* at a fixed place in the heap, not in the round's slot: IN_HEAP or BY_PEERS */
} region;
enum { IN_HEAP = 1, BY_PEERS }; /* written by the rank whose strip it is, or given up to its peers */

typedef struct {
    int32_t first, count, stride;
} group;

_Static_assert(sizeof(operand) == 16, "operand differs from OPERAND_DTYPE");
_Static_assert(sizeof(record) == 104, "record differs from RECORD_DTYPE");
_Static_assert(sizeof(region) == 48, "region differs from REGION_DTYPE");
_Static_assert(sizeof(group) == 12, "group differs from GROUP_DTYPE");

typedef struct shadow shadow;
struct peer_memory;
struct told_places;

enum { NO_DOORBELL = -1, MODELLED_TIME = -2 };

/* Why a stream stands at record `at`: it waits until a doorbell that `shows` one epoch shows `wanted`, or it ended the run.
 * `doorbell` is NO_DOORBELL for an event of the rank's own, and MODELLED_TIME where the modelled time `wanted` has not come
 * (see pace.h). */
typedef struct {
    int32_t stream, doorbell;
    int64_t at, wanted, shows;
} obstacle;

/* A rank's part of a plan, bound to a pool and, while a call runs, to the call. */
typedef struct {
    /* the pool and the communicator's extent in it */
    uint8_t **cards;
    int32_t card_count; /* at least as many as the layout has */
    int64_t base; /* where the extent begins, on every card */
    layout layout;
    int64_t heap_bytes; /* of the extent, on every card */
    uint32_t elides; /* the steps that direct memory does not need */
    shadow *through; /* the rank's emulated memory, NULL for direct memory */
    uint8_t *scratch; /* for the operands of a REDUCE that reads through emulated memory */
    int64_t scratch_bytes;
    /* the plan */
    const region *regions;
    const group *groups;
    int32_t region_count, group_count, event_count, stream_count, buffer_count;
    const record *records[MAX_STREAMS];
    int64_t lengths[MAX_STREAMS];
    int64_t buffer_bytes[MAX_BUFFERS];
    int64_t work_bytes; /* of all records together; counted up to SMALL_WORK_BYTES */
    bool written[MAX_BUFFERS]; /* whether any record stores to it, as program_check found */
    /* the call */
    int64_t epoch, slot; /* of its first round */
    uint16_t tag;
    int64_t *done_seen; /* what each rank's done doorbell showed last, which only grows; NULL: every look counts */
    uint8_t *buffers[MAX_BUFFERS];
    int64_t position[MAX_STREAMS], stops[MAX_STREAMS]; /* no record is executed from its stop on */
    /* where the last run ended at a COMPUTE or a stop, within a round of the streams: the next run goes on there */
    int32_t turn, waiting; /* the stream whose turn it was, and how many streams before it wait */
    obstacle waits[MAX_STREAMS];
    bool stepped; /* whether any stream has made a step in this round */
    uint8_t *events;
    struct pacing *pacing; /* NULL: as fast as this machine can */
    struct peer_memory *peers; /* whose processes hold arrays; NULL: all regions lie in the pool */
    struct told_places *told; /* where arrays in the heap lie; NULL: each where its region says */
} program;

enum status {
    DONE,
    IDLE,
    MISMATCH,
    KERNEL,
    LOCK_TIMEOUT,
    OUT_OF_MEMORY,
    LINK_DOWN,
    CARD_LOST,
    POISONED,
    STOPPED,
    DAMAGED,
    CLOCKS_TIMEOUT,
    UNREADABLE,
    MISPLACED
};

/* Check that no record can touch memory outside buffers, slots and doorbells, and fill in p->written. Where it is false,
 * *stream and *at name the wrong record; both are -1 where the tables are wrong. */
bool program_check(program *p, int32_t *stream, int64_t *at);

/* Begin a call at this epoch, with every stream at its first record. */
void program_begin(program *p, int64_t epoch, uint16_t tag);

/* Run the call's streams, and return how that ended:
 *
 *   DONE            all streams have ended
 *   IDLE            nothing progressed for idle_ns; found[0..*count) are the waiting streams
 *
 * Everything else happens to one stream, which found[0] names:
 *
 *   MISMATCH        a doorbell was rung by another call
 *   DAMAGED         a doorbell shows what no rank rings
 *   KERNEL          a COMPUTE is due
 *   STOPPED         a stream has come to its stop
 *   LOCK_TIMEOUT    the lock of an emulated host's cache could not be had
 *   CLOCKS_TIMEOUT  that of the pool's clocks could not be had
 *   OUT_OF_MEMORY   there is no memory for what the rank has posted
 *   LINK_DOWN, CARD_LOST, POISONED  a load from an emulated pool failed
 *   UNREADABLE      the process of rank `wanted` could not be read: errno `shows`
 *   MISPLACED       a doorbell tells the place `shows` of an array, which does not lie there; or without a doorbell: rank
 *                   `wanted` has not told where an array lies that the record names
 *
 * spins: how often doorbells are looked at before the core is given away. */
enum status program_run(program *p, int64_t idle_ns, int64_t spins, obstacle *found, int *count);

/* Execute the record that a stream stands at, which is not at its end, and nothing of what follows along with it. Return DONE,
 * IDLE where it has to wait, or as program_run does; unless it is DONE, *found says where, and on what it waits. There is no
 * pace. */
enum status program_execute(program *p, int32_t stream, obstacle *found);

/* Go on behind the record that a stream stands at: it was executed elsewhere, or is left out. */
void program_skip(program *p, int32_t stream);

/* Return from which size on, in bytes, an array that a call fills is stored past the caches. An argument above 0 sets
 * that size for the whole process. */
#define PAST_CACHES_BYTES (4 << 20)
int64_t program_past_caches_from(int64_t nbytes);

/* Compute dst = a op b [op c], from the left, and divide it by `divisor`. Pointers need no alignment; dst may be an operand;
 * c may be NULL. */
void fold_arrays(int dtype, int redop, void *dst, const void *a, const void *b, const void *c, int64_t nbytes,
                 int64_t divisor);

extern const int64_t program_item_bytes[DTYPES];
/* Return whether there is such a reduction. Only integers and bools have bits, complex numbers no order, bools no mean. */
bool program_folds(int dtype, int redop);

#endif
