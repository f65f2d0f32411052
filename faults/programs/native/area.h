/* What all processes of a run share, and how one process maps it. program.h lists the files. */
#ifndef CXLEMU_AREA_H
#define CXLEMU_AREA_H

#include <stdatomic.h>

#include "cache.h"
#include "program.h"

enum { DRIVER = -1 }; /* instead of a host: the process that starts the others */
enum { PROGRAM_PROCESSORS = 1024, PROGRAM_COHERENT = 16 };
enum { LINGERS = 8 }; /* one more of a line: flushed, and fenced by an sfence only; a later load may still hit it */

/* What the driver asks for: Options of faults/programs/area.py. */
typedef struct {
    int32_t hosts, pools;
    int32_t nature; /* whether nature moves lines */
    int32_t free_running, check;
    int32_t every; /* one of a search: its steps are recorded, and threads that go round in cycles wait for a store */
    int32_t crash_host; /* -1: none */
    int32_t crashes; /* one of a search: what a crash may leave is followed, and decided as it is read (crash.h) */
    int32_t link_host; /* the host whose link goes down at link_step; -1: none */
    int32_t poison_pool, lost_pool; /* -1: none */
    int32_t dma_to_memory; /* whether devices write past the cache */
    int32_t script_length;
    uint64_t seed, schedule, idle_budget;
    uint64_t crash_step, link_step, poison_step, lost_step;
    int64_t poison_offset;
    double rates[ACTIONS];
    int64_t capacity[PROGRAM_POOLS];
    int32_t dax[PROGRAM_POOLS];
    char path[PROGRAM_POOLS][PROGRAM_PATH];
    struct {
        int64_t pool, begin, end; /* bytes, in whole pages; end 0: no range, and none follows */
    } coherent[PROGRAM_COHERENT];
} program_options;

/* A turn of a schedule: one to follow, or one that was taken. */
typedef struct {
    uint32_t thread, steps;
} program_turn;
enum { PROGRAM_TURNS = 1 << 20 };

/* A store that was announced. It is reported at its thread's next event, when it has happened. */
typedef struct {
    int64_t offset, nbytes; /* nbytes 0: no store */
    uint64_t number;
    program_site site;
    uint8_t pool, kind, locked, system;
    bool early; /* it was reported before that */
    bool beside; /* another thread has stored to its bytes since */
    bool onto_dirty; /* its lines were dirty before it: the same bytes once more change nothing */
} open_store;

/* tears.c: the last store that tears, until its thread's next step, and the bytes of its lines before it, as many as there is room for. */
enum { TORN_BYTES = 4096, TEARS = 8 };
typedef struct {
    program_step step;
    int64_t first, last; /* lines */
    uint8_t before[TORN_BYTES];
} torn_store;

/* A line that has left a cache in the middle of a store: the rest of that, until it has arrived and nobody has the line without it. */
typedef struct {
    program_step store;
    int64_t line;
    int fetched_by; /* a host that holds what had arrived; -1: none */
    bool over; /* the rest has arrived, too */
} program_tear;

/* With --free: a thread's last step, where that is a load of a coherent line, and what its bytes were then. */
typedef struct {
    program_step step; /* nbytes 0: its last step is none */
    uint8_t bytes[16]; /* the first of them */
} open_load;

/* A thread that goes round in a cycle as long as `written` is `since`; and a hash of its process's memory. */
typedef struct {
    uint64_t since, memory;
    uint64_t news; /* the last step that stored something on its host; or anywhere, where another thread is beside it */
    uint64_t stays; /* it makes no step in this run any more since this one, at which a round began; 0: it does */
    uint64_t rounds; /* how often it has come to the same state since */
} thread_cycle;

typedef struct {
    uint64_t bits[PROGRAM_THREADS / 64];
} thread_set;

/* A thread's last step. */
typedef struct {
    int64_t offset;
    program_site site;
    uint8_t kind, pool;
} thread_doing;

/* holds.c: an operation that a program has logged: ProgramOperation of faults/programs/area.py. */
enum { PROGRAM_OPERATIONS = 1 << 16, PROGRAM_INVARIANTS = 16, PROGRAM_HELD = 128, HELD_BYTES = 4096 };
typedef struct {
    uint64_t begin, end; /* its steps; end 0: it has not ended */
    uint64_t key, value, result;
    program_site site;
    uint16_t thread;
    uint8_t host, operation;
} program_operation;

/* Bytes of a pool on which an invariant is declared; a process that declares it as well has the same entry. */
typedef struct {
    int64_t pool, offset, nbytes;
    program_site site;
    uint32_t unused;
} program_invariant;

/* What the pool held there once a line had arrived, until a process that has declared the invariant examines it. */
typedef struct {
    uint64_t number;
    int64_t line;
    program_site site; /* of the program's step that let it arrive; 0: none did */
    int16_t invariant;
    uint16_t thread;
    uint8_t host;
    _Alignas(PROGRAM_LINE) uint8_t bytes[HELD_BYTES];
} held_bytes;

/* A store past the cache to a line, until it arrives: where turns are chosen, as moves.c lets it do so in any process. */
enum { PAST_STORES = 1024 };
typedef struct {
    uint64_t number;
    int64_t offset;
    uint16_t thread;
    uint8_t pool, nbytes;
    uint8_t bytes[PROGRAM_LINE];
} past_store;

enum outcome { GOING_ON, NO_PROGRESS, COMMAND_FAILED, REPEATS, GIVEN_UP };

typedef struct {
    uint64_t size; /* of this struct, in the library that made it */
    program_options options;
    host_lock lock; /* with --free: held during each step */
    host_lock turns; /* guards the threads' states, and whose turn it is */
    uint64_t steps, hash,
        idle; /* hash: of the trace; idle: steps since anything changed or was seen for the first time */
    uint64_t written; /* the last step that stored anything, or let anything arrive */
    uint64_t clock_ns; /* of the programs' time */
    uint64_t random, burst, late, low, change_points[4];
    uint64_t chances[ACTIONS]; /* nature's rates, of 2^53; and whether this run's hosts have habits */
    bool habits;
    uint64_t owed; /* how often everything posted was let arrive */
    int32_t driver; /* its pid */
    _Atomic int32_t thread_count; /* raised when the thread is there */
    int32_t process_count, stage, outcome;
    int32_t script_at, turn_count;
    int32_t scripted; /* whether the turn is one of the script, which says where it ends */
    uint64_t free_from; /* the first step behind the script; 0: it is not over */
    uint32_t crashed; /* hosts, as bits */
    uint64_t watched_lines, watched_bytes; /* at the end: as in program_watched */
    uint64_t unannounced; /* how often stores to a line were found that nobody had announced */
    uint64_t expected; /* how often a program said that its loads of a range are stale on purpose */
    bool no_room; /* for a page of the run's files: /dev/shm is full */
    uint64_t coherent_met; /* ranges that a step touched, as bits */
    uint64_t mapped; /* pools that a program mapped, as bits */
    uint64_t absent; /* pools that a program opened without O_CREAT before any had made them, as bits */
    int64_t extent[PROGRAM_POOLS]; /* no line from here on was ever touched */
    uint64_t pages_hosts; /* hosts with a process that was not recompiled, as bits */
    uint64_t damage[DAMAGE_BYTES / 8];
    program_thread threads[PROGRAM_THREADS];
    adversary natures[PROGRAM_THREADS];
    open_store opens[PROGRAM_THREADS];
    open_load loads[PROGRAM_THREADS];
    thread_cycle cycles[PROGRAM_THREADS];
    thread_set awaits[PROGRAM_THREADS]; /* in a search: it waits for one of these to end; none: it does not */
    thread_doing doing[PROGRAM_THREADS];
    torn_store torn;
    uint32_t tear_count; /* at most TEARS are followed */
    program_tear tears[TEARS];
    _Atomic bool asleep[PROGRAM_THREADS]; /* whether it waits for its turn on a futex */
    _Atomic uint64_t untold; /* the first step since threads at rest were told that let something arrive; 0: none */
    _Atomic uint32_t told; /* a futex: how often they were told */
    _Atomic int32_t resting; /* threads that wait there */
    int32_t processor; /* the run's, + 1; 0: not chosen yet */
    _Atomic bool together[PROGRAM_THREADS]; /* with --free: whether a thread is on it */
    uint64_t homes[PROGRAM_THREADS][PROGRAM_PROCESSORS / 64]; /* where each thread may run by itself, as bits */
    uint64_t wakes[PROGRAM_THREADS]; /* at which clock_ns a thread that sleeps goes on; 0: it does not sleep */
    uint32_t module_count, site_count;
    program_module modules[PROGRAM_MODULES];
    program_place sites[PROGRAM_SITES];
    uint32_t site_slots[2 * PROGRAM_SITES];
    uint32_t finding_count;
    program_finding findings[PROGRAM_FINDINGS];
    program_turn script[PROGRAM_TURNS]; /* the turns to follow */
    program_turn taken[PROGRAM_TURNS];
    uint32_t kinds_asked; /* of operations that must be linearizable, as bits */
    uint32_t operation_count, invariant_count, held_count; /* operation_count may exceed the room */
    uint32_t unheld; /* how often there was no room to hold bytes */
    uint32_t device_copies; /* to a pool */
    uint32_t flushed; /* whether a program has flushed a line, or stored past its cache */
    uint32_t operation_open[PROGRAM_THREADS]; /* the number of each thread's operation, from 1; 0: none */
    uint32_t operations_ended[PROGRAM_HOSTS];
    program_operation operations[PROGRAM_OPERATIONS];
    program_invariant invariants[PROGRAM_INVARIANTS];
    held_bytes held[PROGRAM_HELD];
    uint32_t past_count, past_left_out; /* left out: there was no room, so they arrive with their fence */
    uint32_t past_early; /* how many arrived before their fence, for a load */
    past_store past[PAST_STORES];
} program_area;

/* A host's image of a pool, as this process maps it. */
typedef struct {
    card_cache cache;
    uint8_t *twin; /* the bytes as last reported; where they differ, a store is yet to be reported */
    int64_t lines;
} host_image;

typedef struct {
    program_area *area; /* NULL outside of a run */
    char folder[PROGRAM_PATH];
    int host; /* of this process, or DRIVER */
    host_image images[PROGRAM_HOSTS][PROGRAM_POOLS];
} program_process;

extern program_process here __attribute__((visibility("hidden"))); /* found without a look-up */

/* Damage a link, a card or a line, one of each in a run: the driver looks whether an access has met it. */
static inline void area_break(int kind, int where, int64_t line) {
    here.area->damage[0] = 1, here.area->damage[kind] = damage_entry(kind, where, line);
}

static inline host_image *image_of(int host, int pool) { return &here.images[host][pool]; }

/* coherent.c: lines of which all hosts see the same bytes at once. Their images are the pool itself, and they have one twin. */
int coherent_range(int pool, int64_t offset); /* returns the range's number, or -1 */
static inline bool is_coherent(int pool, int64_t line) {
    return __builtin_expect(here.area->options.coherent[0].end != 0, 0) &&
           coherent_range(pool, line * PROGRAM_LINE) >= 0;
}

/* Map one of the run's files over the coherent ranges of a mapping, which begins at `offset` of a pool. */
bool coherent_map(int pool, const char *path, uint8_t *at, int64_t offset, int64_t nbytes, int prot);

/* Map the files of a run; returns whether that was possible. */
bool area_attach(const char *folder, int host);
void area_detach(void);
bool area_empty(void); /* let all bytes of these files be zeros; returns whether that was possible */

/* Return an address to suggest to the kernel for a mapping. Pools are large, and must not fill the 2 GiB around code, where
 * the copies of its instructions have to lie. */
void *area_far_from_code(size_t nbytes);

/* Open a file that is no pool's by its name: no folder of its path is looked at. */
int area_open(const char *path, int flags);

/* Write the path of one of the run's files to `path`. */
void area_path(char *path, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

static inline uint64_t splitmix(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

#endif
