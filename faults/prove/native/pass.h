/* The happens-before pass goes through the calls' instructions in one order that their waits allow, and keeps for each
 * line, buffer and doorbell which steps have touched it and what each stream knows of them. What holds in this order with
 * these clocks holds in every order.
 *
 *   clock.c  what a stream knows of the others        lines.c  which writes, readers and flushes a line has seen
 *   rules.c  one function a rule                      values.c what bytes are made of
 *   touch.c  what an instruction does to memory        bells.c  ... to doorbells
 *   kernels.c ... to what is computed                 pass.c   the instructions, one after another
 *   module.c the binding */
#ifndef CXLEMU_PASS_H
#define CXLEMU_PASS_H

#include <setjmp.h>

#include "address.h"

/* Step number `at` of a stream. Streams are numbered through all ranks; a stream's steps from 1 through all calls. */
typedef struct {
    uint32_t stream, at;
} event;

enum { SHARE = 64 }; /* streams */

/* A part of a vector clock: the last steps of SHARE streams that are known. Clocks that know the same share it. */
typedef struct {
    uint32_t refs;
    uint32_t at[SHARE];
} share;

/* A vector clock. Points with equal knowledge share one, which stays as it is while it is shared. */
typedef struct {
    uint32_t refs, shares;
    share *of[]; /* by stream / SHARE */
} knowledge;

/* A step, and which steps had happened before it. */
typedef struct {
    knowledge *known;
    event self;
} point;

enum { FENCES_MAX = 4, DRAINS_MAX = 4 };

/* A FLUSH, an INVALIDATE or the posting of non-temporal stores, and the fences that have completed it. Reference-counted:
 * stores, lines and ranks' open drains share it. */
typedef struct {
    uint32_t refs;
    point from; /* the step that began it */
    int32_t rank, host;
    int fences;
    event fence[FENCES_MAX];
} drain;

/* A store to a cell, and the drains that took it to the pool. */
typedef struct {
    event at;
    bool nt; /* non-temporal */
    int drains;
    drain *by[DRAINS_MAX];
} stored;

/* Why no reader may rely on a cell's bytes: the rule that is broken, and the step that spoils them. */
typedef struct {
    int rule; /* NO_RULE: the bytes are reliable */
    event by;
} spoil;

/* Bytes of a line, or of each line of a segment, that have always been stored to and read together. Reads must see the
 * last write; earlier ones are kept for as long as they could still overwrite it. */
typedef struct {
    uint8_t begin, end; /* within the line */
    int writes, write_room, readers, reader_room;
    stored *write;
    event *reader; /* the last read of each stream that has read since the last write */
    spoil spoil;
} cell;

/* Lines [first, end) with the same history. A segment with more than one cell is a single line. */
typedef struct {
    int64_t first, end;
    int cells, drops, drop_room;
    cell *cell;
    drain **drop; /* the drains that dropped these lines from a host's cache */
} segment;

/* All lines of a card, or of a local buffer, as segments in ascending order without gaps. */
typedef struct {
    int segments, room;
    segment *segment;
} map;

/* From byte `begin` of a memory on, and up to the next run, byte a is byte a + shift of a term. */
typedef struct {
    int64_t begin;
    int32_t term; /* 0: these bytes were never written */
    int64_t shift;
} run;

/* What a memory holds, byte by byte: runs in ascending order, the first from byte 0 on. */
typedef struct {
    int runs, room;
    run *run;
} contents;

/* What bytes are made of: values.c lists the kinds. */
typedef struct {
    int32_t kind, left, right;
    int64_t by;
} term;

/* A signal of a doorbell. */
typedef struct {
    int64_t value;
    point at;
} ring;

/* A doorbell's line, and its signals in ascending order of values, without the oldest ones that all streams know of. */

typedef struct {
    int rings, ring_room, readers, reader_room;
    ring *ring;
    int64_t forgotten; /* the largest value among those that are left out */
    event payload; /* the signal whose payload the line carries; at = 0: no payload yet */
    contents carried; /* that payload */
    int64_t told; /* the value of the signal that told places in that payload; 0: none did */
    event *reader; /* the waits that have taken that payload */
} bell;

enum rule {
    ORDER,
    LANDED,
    OLDER_WRITE,
    FRESH,
    RESIDUE,
    STALE_ALLOCATE,
    FALSE_SHARING,
    PAYLOAD,
    FENCE_SCOPE,
    LOCAL,
    EXIT,
    REUSE,
    BARRIER,
    CONTRACT,
    FOLD_ORDER,
    DEADLOCK,
    NO_RULE = -1
};

/* Which sentence of faults/prove/sentences.py says what is wrong. */
enum detail {
    PLAIN,
    UNWRITTEN,
    UNORDERED_WRITE,
    OVERWRITES,
    NEVER_FLUSHED,
    NEVER_FENCED,
    NOT_TOLD,
    NEVER_DROPPED,
    DROPPED_EARLY,
    DROP_UNFENCED,
    UNREAD,
    UNLANDED,
    NOT_DONE,
    UNMATCHED,
    MISFOLDED
};

enum verdict { PROVED, VIOLATED, UNDECIDED };
enum reason { NO_REASON, SIGNALS_UNORDERED, SIGNALS_FALL, TOO_MANY_FENCES, TOO_MANY_DRAINS, COMPUTES };

typedef struct {
    int rule, detail;
    event at, by; /* the step that breaks the rule, and the other step that it concerns; by.at = 0: no other */
    int32_t card; /* -1: local memory, or no memory at all */
    int64_t line; /* its number in the communicator's extent on that card, or in a local buffer */
} finding;

/* Where a local buffer lies: at byte `at` of buffer `root`, and at `offset` of a card where card >= 0. */
typedef struct {
    int64_t root, at, card, offset;
} lodging;

/* Rows of `nbytes` bytes, each `stride` bytes after the one before. No rows: there is no operand. */
typedef struct {
    int64_t rows, nbytes, stride;
} matrix;

/* How many words parts of a contract have: see contents_check_contract. */
enum { PIECE_WORDS = 6, FOLD_WORDS = 2, PRODUCT_WORDS = 9 };

enum makes { OPAQUE, CHECKSUM, PRODUCT };

/* A kernel of COMPUTE: which bytes of dst, a, b and c it touches, and what it makes. Products with the same unit give the
 * same bits for the same row and column. */
typedef struct {
    matrix of[4]; /* dst, a, b, c */
    int64_t makes, unit;
} kernel;

typedef struct {
    program *part; /* by rank */
    lodging (*lodging)[MAX_BUFFERS];
    const int64_t **contract; /* by rank: see contents_check_contract */
    int64_t *contract_words;
    const kernel *kernels;
    int64_t kernel_count, rounds;
    bool meets; /* a barrier: no rank leaves before every rank came */
    int dtype, redop; /* of the reduction */
    bool commutes; /* a op b has the bits of b op a */
} plan;

/* How the first rank that holds the result `wanted`, from its byte `first` on, has folded it: every other holder must have
 * folded it alike. */
typedef struct {
    int32_t wanted;
    int64_t first;
    contents got;
} holding;

typedef struct {
    /* the world, and what is to be proved */
    int32_t ranks, per_rank, streams, calls;
    const int32_t *host; /* by stream */
    uint32_t *neighbour; /* by stream: the next one on its host, the first one after the last */
    plan *plan;
    const int32_t *plan_of; /* by call */
    const int64_t *epoch_of; /* by call */
    int64_t (*strip)[3]; /* by rank, its strip of the heap: card, offset in the extent, bytes */
    uint32_t without; /* a bit for each rule that is switched off */
    bool obliges; /* any other call may come before and after */
    /* how far the pass is */
    int32_t *call; /* by rank: the call that it is in */
    bool *begun; /* by rank: whether that call has begun */
    knowledge **known; /* by stream */
    knowledge *nothing; /* known to all at first */
    uint32_t *now; /* by stream: its last step */
    uint32_t *began; /* [call][stream]: the step before its first instruction */
    point *events; /* [rank][event] of the rank's call */
    int32_t events_max;
    int64_t *ready; /* by stream: the last epoch whose slot it may store to, all ranks being done there */
    map *cards, *locals; /* locals: [rank][buffer] */
    bell *bells; /* published: [slot][doorbell], then done: [rank] */
    drain ***open; /* by rank: drains that the streams which began them have not fenced yet */
    int *opens, *open_room;
    knowledge *joint; /* what the ranks that are done with a round know together */
    contents *card_contents, *local_contents, folding[4], laid; /* folding: three sources and their result */
    holding *held;
    int holdings, held_room;
    int32_t *contribution; /* the terms that the piece under check is folded from */
    int contribution_room;
    term *term;
    int32_t terms, *slot_of_term;
    int term_room;
    int64_t slots_of_terms;
    event computed; /* the first COMPUTE whose value an output depends on; at = 0: none */
    /* the result */
    int64_t instructions;
    enum verdict verdict;
    enum reason reason;
    finding found;
    jmp_buf stop; /* longjmp with DECIDED, NO_MEMORY or INTERRUPTED ends the pass */
    bool (*interrupted)(void); /* whether Ctrl-C or an alarm asks the pass to end */
} pass;

enum { DECIDED = 1, NO_MEMORY, INTERRUPTED };

/* clock.c */
void *pass_room_for(pass *p, void *array, int *room, int needed, size_t each);
void *pass_zeroed(pass *p, size_t count, size_t each);
bool clock_before(event e, const point *q);
point clock_now(const pass *p, uint32_t stream);
knowledge *clock_know(knowledge *k);
void clock_forget(knowledge *k);
knowledge *clock_of_nothing(pass *p);
void clock_add(pass *p, knowledge **known, const point *of); /* add a step, and all that happened before it */
void clock_learn(pass *p, uint32_t stream, const point *of);
void clock_gather(pass *p, int32_t rank); /* let all streams of a rank know what each of them knows */
drain *drain_new(pass *p, uint32_t stream);
drain *drain_keep(drain *d);
void drain_drop(drain *d);
void drain_fenced(pass *p, drain *d, event by);
bool drain_is_fenced(const drain *d, const point *q);
static inline int32_t rank_of(const pass *p, uint32_t stream) { return (int32_t)stream / p->per_rank; }

/* lines.c */
typedef struct {
    int at, end; /* segments [at, end) of a map */
    int64_t begin_byte, end_byte;
} range;

range map_open_range(pass *p, map *m, int64_t begin, int64_t end);
void map_join(pass *p, map *m, const range *r, event by);
void map_bytes_in(const range *r, const segment *s, int *begin, int *end); /* which bytes of each line of a segment */
void cell_add_reader(pass *p, cell *c, event e);
void cell_add_write(pass *p, cell *c, event e, bool nt);
void cell_drop_write(cell *c, int at);
int segment_drops_of(const segment *s, int32_t host);
void segment_add_drop(pass *p, segment *s, drain *d);
void map_begin(pass *p, map *m);
void map_free(map *m);

/* rules.c */
_Noreturn void pass_violated(pass *p, int rule, int detail, event at, event by, int32_t card, int64_t line);
_Noreturn void pass_undecided(pass *p, enum reason reason, event at);
typedef struct {
    point now;
    int32_t card;
} touch;
void rule_check_load(pass *p, const touch *a, segment *s, int begin, int end);
void rule_check_store(pass *p, const touch *a, segment *s, int begin, int end, bool nt);
void rule_check_local_load(pass *p, const touch *a, segment *s, int begin, int end);
void rule_check_local_store(pass *p, const touch *a, segment *s, int begin, int end);
void rule_check_payload_store(pass *p, const touch *a, const bell *b, int64_t line);
void rule_check_payload_load(pass *p, const touch *a, const bell *b, const ring *satisfied, int64_t line);
void rule_check_told(pass *p, const touch *a, const bell *b, int64_t first_epoch, int64_t line);
void rule_check_reuse(pass *p, uint32_t stream, int64_t epoch, const program *part);
void rule_check_exit(pass *p, int32_t call);
void rule_check_barrier(pass *p, int32_t rank);

/* values.c */
void contents_begin(pass *p, contents *c);
void contents_fill(pass *p, contents *c, int64_t begin, int64_t end, int32_t number, int64_t shift);
void contents_move(pass *p, contents *to, int64_t at, const contents *from, int64_t begin, int64_t nbytes);
void contents_fold(pass *p, contents *into, const contents *source, int sources, int64_t nbytes, int64_t divisor);
int32_t term_of_input(pass *p, int32_t call, int32_t rank, int buffer);
int32_t term_of_compute(pass *p, event by);
int32_t term_of_checksum(pass *p, const contents *c, int64_t begin,
                         int64_t nbytes); /* 0: some of these bytes were never written */
bool contents_in_elements(const pass *p, const contents *c, int64_t nbytes,
                          int64_t each); /* whether contributions begin at whole elements */
void contents_product(pass *p, contents *into, const contents *a, const contents *b, const kernel *k);
bool contents_known(const contents *c, int64_t nbytes); /* whether all bytes were written */
bool contents_are(const contents *c, int64_t nbytes, int32_t number);
void contents_check_contract(pass *p, int32_t rank, const contents *c, int64_t base, const int64_t *piece,
                             int64_t words);

/* The instruction under way: its stream, its rank and the rank's part of the call. */
typedef struct {
    pass *p;
    const program *part;
    const lodging *lodging;
    const kernel *kernels;
    uint32_t stream;
    int32_t rank;
    point now;
} step;

enum access_kind { LOAD, STORE, STORE_NT };

/* Which operands an opcode loads, and which it stores: a bit for each, in the order of OPERAND_FIELDS. Those of a COMPUTE
 * are its kernel's. */
enum { OF_DST = 1, OF_DST2 = 2, OF_A = 4, OF_B = 8, OF_C = 16, OPERANDS = 5 };
typedef struct {
    uint8_t loads, stores;
} accesses;

/* touch.c */
void pass_access_pool(step *s, int32_t card, int64_t begin, int64_t end, enum access_kind kind, drain *posted);
void pass_access_buffer(step *s, int buffer, int64_t offset, int64_t nbytes, enum access_kind kind);
extern const accesses pass_accesses[OP_END];
void pass_access_loads(step *s, const record *r);
void pass_access_stores(step *s, const record *r, enum access_kind kind, drain *posted);
void pass_access_operand(step *s, const operand *o, int64_t nbytes, enum access_kind kind, drain *posted);
contents *pass_local_contents(const step *s, int buffer, int64_t offset, int64_t *at);
void pass_fetch(step *s, contents *into, int64_t at, const operand *o, int64_t nbytes);
void pass_put(step *s, const operand *o, const contents *from, int64_t begin, int64_t nbytes);
void pass_compute(step *s, const record *r);
void pass_await_fence(pass *p, int32_t rank, drain *d);
void pass_flush(step *s, const record *r);
void pass_fence(step *s);

/* kernels.c */
bool kernel_fits(const plan *whole, const program *part, const record *r);
void kernel_run(step *s, const record *r);

/* bells.c */
bell *bell_done(const pass *p, int32_t rank);
bell *bell_at(const pass *p, const program *part, int32_t doorbell, int64_t epoch);
const ring *bell_first_ring(const bell *b, int64_t value); /* the first that satisfies; NULL: not rung, or forgotten */
void bell_ring(step *s, const record *r, const record *previous);
bool bell_hears(step *s, const record *r);
void bell_take_payload(step *s, const record *r);

/* pass.c */
void pass_run(pass *p);

#endif
