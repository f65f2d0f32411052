/* The happens-before pass: what it knows of the pool while it goes through the calls' instructions in one order that
 * their waits allow. What holds in this order with these clocks holds in every order.
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

/* The at-th step of a stream. Streams are numbered through all ranks, steps from 1 through all calls. */
typedef struct {
    uint32_t stream, at;
} event;

/* Of every stream, up to which step. Shared by all points that know the same, and never changed while it is. */
typedef struct {
    uint32_t refs;
    uint32_t at[];
} knowledge;

/* A step, and what had happened before it. */
typedef struct {
    knowledge *known;
    event self;
} point;

enum { FENCES_MAX = 4, DRAINS_MAX = 4 };

/* A FLUSH, an INVALIDATE or the posting of non-temporal stores, and the fences that completed it. */
typedef struct {
    uint32_t refs;
    point from;
    int32_t rank, host;
    int fences;
    event fence[FENCES_MAX];
} drain;

/* A store to a cell, and what drained its line afterwards. */
typedef struct {
    event at;
    bool nt;
    int drains;
    drain *by[DRAINS_MAX];
} stored;

/* Why nobody can rely on a cell's bytes: the rule that was broken, and by which step. */
typedef struct {
    int rule; /* NO_RULE: somebody can */
    event by;
} spoil;

/* Bytes of a line, or of each of many lines, that have been stored to and read together. The last write is the one
 * that reads must see; earlier ones stay as long as they could still matter. */
typedef struct {
    uint8_t begin, end;
    int writes, write_room, readers, reader_room;
    stored *write;
    event *reader; /* of each stream the last */
    spoil spoil;
} cell;

/* Lines [first, end) with the same history; one line only where it has more than one cell. */
typedef struct {
    int64_t first, end;
    int cells, drops, drop_room;
    cell *cell;
    drain **drop; /* what dropped these lines from some host's cache */
} segment;

typedef struct {
    int segments, room;
    segment *segment;
} map;

/* From begin on, byte a of a memory is byte a + shift of a term. */
typedef struct {
    int64_t begin;
    int32_t term; /* 0: nobody wrote them */
    int64_t shift;
} run;

typedef struct {
    int runs, room;
    run *run;
} contents;

/* See values.c. */
typedef struct {
    int32_t kind, left, right;
    int64_t by;
} term;

/* Of a doorbell's line. A later signal's value is larger; those that all streams know of are forgotten. */
typedef struct {
    int64_t value;
    point at;
} ring;

typedef struct {
    int rings, ring_room, readers, reader_room;
    ring *ring;
    int64_t forgotten; /* the largest value among those */
    event payload; /* the signal whose payload the line carries; at = 0: none */
    contents carried; /* that payload */
    event *reader; /* of that payload */
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

/* Which sentence tells it. */
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
    event at, by; /* by.at = 0: nobody */
    int32_t card; /* -1: local memory, or none at all */
    int64_t line; /* of the communicator's extent on that card; of a buffer */
} finding;

/* Where a local buffer lies: in another buffer, and in the pool where card >= 0. */
typedef struct {
    int64_t root, at, card, offset;
} lodging;

/* Rows of bytes, each `stride` after the one before; none: no operand. */
typedef struct {
    int64_t rows, nbytes, stride;
} matrix;

/* Of a contract: see check_contract. */
enum { PIECE_WORDS = 6, FOLD_WORDS = 2, PRODUCT_WORDS = 9 };

enum makes { OPAQUE, CHECKSUM, PRODUCT };

/* Of a COMPUTE: what of dst, a, b and c it touches, and what it makes of them; products of one unit are alike. */
typedef struct {
    matrix of[4];
    int64_t makes, unit;
} kernel;

typedef struct {
    program *part; /* of every rank */
    lodging (*lodging)[MAX_BUFFERS];
    const int64_t **contract; /* of every rank: see check_contract */
    int64_t *contract_words;
    const kernel *kernels;
    int64_t kernel_count, rounds;
    bool meets; /* a barrier: nobody leaves before everybody came */
    int dtype, redop; /* of what is folded */
    bool commutes; /* a op b has the bits of b op a */
} plan;

/* Bytes [first, ...) of what should be folded to `wanted`, which must be folded alike wherever they are held: as their first
 * holder has them. */
typedef struct {
    int32_t wanted;
    int64_t first;
    contents got;
} holding;

typedef struct {
    /* the world, and what is to be proved */
    int32_t ranks, per_rank, streams, calls;
    const int32_t *host; /* of each stream */
    plan *plan;
    const int32_t *plan_of; /* of each call */
    const int64_t *epoch_of;
    int64_t (*strip)[3]; /* of each rank in the heap: card, offset in the extent, bytes */
    uint32_t without; /* rules that are switched off */
    bool obliges; /* any other call may come before and after */
    /* how far it is */
    int32_t *call; /* of each rank */
    bool *begun;
    knowledge **known; /* of each stream, and its last step */
    uint32_t *now;
    uint32_t *began; /* [call][stream]: the step before its first instruction */
    point *events; /* [rank][event] of the rank's call */
    int32_t events_max;
    int64_t *ready; /* of each stream: up to which epoch its rank may store, all others being done */
    map *cards, *locals; /* locals: [rank][buffer] */
    bell *bells; /* published: [slot][doorbell], then done: [rank] */
    drain ***open; /* of each rank: not fenced yet by the stream that began them */
    int *opens, *open_room;
    knowledge *joint; /* of all who are done with a round */
    contents *card_contents, *local_contents, folding[4], laid; /* folding: three sources and what is made of them */
    holding *held;
    int holdings, held_room;
    int32_t *contribution; /* terms of those to the piece that is checked */
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
    jmp_buf stop; /* longjmp: with DECIDED when decided, NO_MEMORY, INTERRUPTED */
    bool (*interrupted)(void);
} pass;

enum { DECIDED = 1, NO_MEMORY, INTERRUPTED };

/* clock.c */
void *pass_room_for(pass *p, void *array, int *room, int needed, size_t each);
void *pass_zeroed(pass *p, size_t count, size_t each);
bool clock_before(event e, const point *q);
point clock_now(const pass *p, uint32_t stream);
knowledge *clock_know(knowledge *k);
void clock_forget(knowledge *k);
void clock_learn(pass *p, uint32_t stream, const point *of);
void clock_gather(pass *p, int32_t rank); /* all streams of a rank know what each of them knows */
drain *drain_new(pass *p, uint32_t stream);
drain *drain_keep(drain *d);
void drain_drop(drain *d);
void drain_fenced(pass *p, drain *d, event by);
bool drain_is_fenced(const drain *d, const point *q);
static inline int32_t rank_of(const pass *p, uint32_t stream) { return (int32_t)stream / p->per_rank; }

/* lines.c */
typedef struct {
    int at, end; /* segments */
    int64_t begin_byte, end_byte;
} range;

range map_open_range(pass *p, map *m, int64_t begin, int64_t end);
void map_bytes_in(const range *r, const segment *s, int *begin, int *end); /* of each of its lines */
void cell_add_reader(pass *p, cell *c, event e);
void cell_add_write(pass *p, cell *c, event e, bool nt);
void cell_drop_write(cell *c, int at);
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
                         int64_t nbytes); /* 0: nobody wrote some of these bytes */
bool contents_in_elements(const pass *p, const contents *c, int64_t nbytes,
                          int64_t each); /* of contributions, from byte 0 on */
void contents_product(pass *p, contents *into, const contents *a, const contents *b, const kernel *k);
bool contents_known(const contents *c, int64_t nbytes); /* somebody wrote all of them */
bool contents_are(const contents *c, int64_t nbytes, int32_t number);
void contents_check_contract(pass *p, int32_t rank, const contents *c, int64_t base, const int64_t *piece,
                             int64_t words);

/* Where an instruction is: a stream of a rank in a call. */
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

/* Operands that an opcode loads, and that it stores, a bit each in the order of OPERAND_FIELDS. A COMPUTE touches what its
 * kernel says. */
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
const ring *bell_first_ring(const bell *b, int64_t value); /* that satisfies; NULL: none, or forgotten */
void bell_ring(step *s, const record *r, const record *previous);
bool bell_hears(step *s, const record *r);
void bell_take_payload(step *s, const record *r);

/* pass.c */
void pass_run(pass *p);

#endif
