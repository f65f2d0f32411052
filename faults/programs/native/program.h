/* Programs that others wrote, on the emulated pool: the seams inside the library that `cxlemu exec` preloads.
 *
 *     the program ── accesses ──> events.c ── turn.c: whose step is it?
 *                                    │──── image.c: the host's cache, moved line by line (cxlemu/native/cache.c)
 *                                    └──── program_watcher: what the checker sees, in the order of the trace
 *
 * Two ways lead in. Recompiled code announces each load and store before it happens (tsan.c). Code that is preloaded
 * announces only flushes and fences, and whole pages when it touches them first (program_pages). Under both, a
 * mapping of the pool in a program is a mapping of its host's image: the bytes that its cache holds.
 *
 * One step at a time: from its turn to its next step a thread runs alone, among all threads of all hosts. So what a
 * program does between two steps needs no lock, and the same seed gives the same trace. With --free, threads run side
 * by side; every function below that is called with the `lock` held says so.
 */
#ifndef CXLEMU_PROGRAM_H
#define CXLEMU_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROGRAM_LINE 64
enum { PROGRAM_POOLS = 8, PROGRAM_HOSTS = 16, PROGRAM_THREADS = 256 };
#define PROGRAM_EXPORT __attribute__((visibility("default")))

/* --- what a program does: called by tsan.c, asm.c, paths.c and by the preloaded mode ---------------------------------- */

enum flush_kind {
    FLUSH_DROP = 1, /* clflushopt */
    FLUSH_DROP_ORDERED, /* clflush: in order with this thread's stores, so its write-back lands at once */
    FLUSH_KEEP, /* clwb */
};
enum fence_kind {
    FENCE_STORES = 1, /* sfence: posted writes have landed; later loads may still hit what was flushed */
    FENCE_LOADS, /* lfence */
    FENCE_FULL, /* mfence */
    FENCE_LOCKED, /* a locked instruction, or xchg: orders as mfence does */
};

/* Addresses are the program's; what lies outside of every pool is nobody's business, except of prog_flush. `pc` is where
 * the access stands. A range may cross lines. Loads and stores are announced before they happen. */
void prog_load(const void *at, size_t nbytes, const void *pc);
void prog_store(void *at, size_t nbytes, const void *pc);

/* A store of these bytes, past the cache; it is not executed by the program itself any more. */
void prog_nt_store(void *at, const void *bytes, size_t nbytes, const void *pc);

void prog_flush(const void *at, enum flush_kind kind, const void *pc);
void prog_fence(enum fence_kind kind, const void *pc);

/* Around a read-modify-write that the caller executes on the image in between: nobody else moves. A locked instruction
 * is also a fence, before and after. `wrote` is false when a compare failed. */
void prog_locked(void *at, size_t nbytes, const void *pc); /* announced like a store: inline assembly executes it */
void prog_rmw_begin(void *at, size_t nbytes, const void *pc);
void prog_rmw_end(void *at, size_t nbytes, bool wrote, const void *pc);

/* A system call is about to read from (load) or write to (store) a buffer that may lie in a pool. */
void prog_system_reads(const void *at, size_t nbytes, const void *pc);
void prog_system_writes(void *at, size_t nbytes, const void *pc);
void prog_msync(const void *at, size_t nbytes, const void *pc);

/* This thread waits for another one, or for time: others go first. */
void prog_yield(void);

/* This host's loads of the range are checked by other means: a sequence number, a checksum. */
void prog_expect_stale(const void *at, size_t nbytes, const void *pc);

/* Is any byte of the range in a pool? Cheap. */
bool prog_in_pool(const void *at, size_t nbytes);

/* --- the trace: what every step looks like to who watches ------------------------------------------------------------- */

enum step_kind {
    STEP_LOAD = 1,
    STEP_STORE, /* told when it has happened, before any other thread's next step */
    STEP_RMW, /* the same; a failed compare is a STEP_LOAD with `locked` */
    STEP_NT_STORE, /* told when it is posted; it lands later: MOVE_NT */
    STEP_FLUSH,
    STEP_FENCE,
    STEP_MSYNC,
    STEP_YIELD,
    STEP_MAP, /* of nbytes at offset */
    STEP_UNMAP,
    STEP_THREAD_START, /* `other` is the thread that made it */
    STEP_THREAD_END,
    STEP_THREAD_JOIN, /* `other` is the thread that has ended: its knowledge is now this one's */
    STEP_PROCESS_START, /* its first thread; everything that ended in an earlier stage (`::`) is known to it */
    STEP_PROCESS_END, /* of its last thread: exit, or killed */
    STEP_HOST_CRASH,
    STEP_EXPECT_STALE, /* of nbytes at offset: this host reads them without a chain, and means to */
    STEP_KINDS
};

/* Where in a program: an index into program_area.sites, 0 for unknown. The same place in the same caller has the same
 * number in all processes of a run. */
typedef uint32_t program_site;

typedef struct {
    uint64_t number; /* of the step in the trace, from 1; moves of nature around it have the same */
    uint8_t kind, what; /* step_kind; flush_kind or fence_kind of those */
    bool locked, system; /* a locked instruction; done by a system call on the program's behalf */
    uint8_t host, pool;
    uint16_t thread, other; /* indices into program_area.threads */
    uint16_t process; /* of the run, from 1 */
    uint16_t stage; /* 0 for the commands before the first `::` */
    program_site site;
    int64_t offset, nbytes; /* in the pool; pool 255: outside of every pool, offset is the address (flush and msync) */
} program_step;

/* How bytes of a line move, besides a program's own loads and stores of what its host's cache holds. */
enum move_kind {
    MOVE_FETCH = 1, /* pool -> cache */
    MOVE_FETCH_POSTED, /* this host's own pending write-back -> cache */
    MOVE_POST, /* dirty cache -> posted; the line stays until it is dropped */
    MOVE_LAND, /* posted -> pool */
    MOVE_WRITE_BACK, /* dirty cache -> pool, at once: an eviction; MOVE_DROP comes next */
    MOVE_DROP, /* the line is not in the cache any more */
    MOVE_NT, /* bytes first..first + count of the line, of a non-temporal store, arrive in the pool */
    MOVE_LOST, /* posted, or an NT store: vanished, at a crash or on a link that is down */
};
enum move_cause { BY_PROGRAM = 1, BY_NATURE };

typedef struct {
    uint64_t number;
    uint8_t kind, cause, host, pool;
    uint16_t thread; /* whose step it was, or around whose step nature moved */
    uint8_t first, count; /* MOVE_NT and its MOVE_LOST: which bytes */
    int64_t line;
    uint64_t store; /* MOVE_NT: the number of the STEP_NT_STORE */
} program_move;

/* --- who watches: the checker, or a test's recorder --------------------------------------------------------------------- */

/* Called in the order of the trace, in the process whose thread does the step, with the area's lock held; all state
 * lies in the area (see room), as the next call may come in another process. Any function may be NULL. */
typedef struct {
    /* Once per process, when it joins; `first` in the run's first one. */
    void (*begin)(bool first);
    /* `bytes`: nbytes of what the load returns. A range that crosses lines is one step. */
    void (*load)(const program_step *step, const uint8_t *bytes);
    /* `before`: nbytes of the image before, `after`: after. Stores, RMWs and NT stores (whose `before` is NULL). */
    void (*store)(const program_step *step, const uint8_t *before, const uint8_t *after);
    void (*flush)(const program_step *step, bool was_dirty, bool was_present);
    void (*fence)(const program_step *step);
    void (*other)(const program_step *step); /* all other kinds */
    void (*move)(const program_move *move);
    /* Bytes that changed in the image and nobody announced: found at a flush, a fence, an eviction and the end. */
    void (*unannounced)(const program_step *step, int64_t line, uint64_t bytes);
    /* Every process has ended, in the driver: what is still dirty (program_line_view) or posted is final. */
    void (*end)(void);
    /* Nothing has changed for as many steps as the budget has: what does every thread wait for? */
    void (*stuck)(void);
} program_watcher;

/* NULL: nobody watches. Set by --check before begin, the same in all processes. */
extern const program_watcher *program_watcher_now;

/* What a host holds of a line now, for a watcher's `end`, reports and pictures. */
typedef struct {
    bool present, dirty, pending;
    const uint8_t *cached, *posted, *pool;
} program_line_view;
program_line_view program_look(int host, int pool, int64_t line);

/* --- preloaded code: pages instead of announcements --------------------------------------------------------------------- */

/* A process whose own code was not recompiled. Its mappings are PROT_NONE until they are touched. Where a host has any
 * such process, lines of a page that one of them has touched are never absent: what a flush or an eviction drops is
 * fetched again at once (a legal prefetch), in place, in the image that all processes of the host map. */
typedef struct {
    void (*mapped)(int pool, int64_t offset, uint8_t *at, size_t nbytes, int prot);
    void (*unmapped)(uint8_t *at, size_t nbytes);
    void (*touch)(const void *at, size_t nbytes); /* before a system call or this library looks there; anywhere */
} program_pages;
extern const program_pages *program_pages_now;

/* image.c finds stores that were not announced on such a host by itself: before a line is looked at, flushed, evicted or
 * dropped, each of its words that differs from its twin is told as a STEP_STORE without a site. */

/* A page's absent lines are fetched. In a step: between prog_page_begin, false where there is no turn to take (then it
 * is already inside one), and prog_page_end. */
void image_open_page(int pool, int64_t page);
bool prog_page_begin(void);
void prog_page_end(void);

/* --- shared by all processes of a run ------------------------------------------------------------------------------------ */

/* One folder a run, on /dev/shm, made and removed by the driver (faults/programs/area.py):
 *   area            program_area
 *   pool-P          the bytes of pool P (M of the memory model), sparse
 *   host-H-P.data, .posted, .twin    images of a host's cache of it, as large, sparse
 *   host-H-P.state, .pending         a byte for each line
 *   lines-P         the watcher's own: `watcher_line_bytes` for each line, zeros at first, sparse
 *   room            the watcher's own: as much as it likes up to 1 GiB, zeros at first, sparse
 * Every process maps them at addresses of its own: keep offsets, not pointers. */
enum { WATCHER_LINE_BYTES = 128 };
#define WATCHER_ROOM_BYTES (INT64_C(1) << 30)

enum thread_state {
    THREAD_NONE,
    THREAD_STARTING,
    THREAD_WAITING,
    THREAD_INSIDE, /* a step */
    THREAD_RUNNING, /* from its step to its next one */
    THREAD_OUTSIDE, /* it is not waited for */
    THREAD_CRASHED, /* it ends its process as soon as it comes here */
    THREAD_ENDED
};

/* Each on lines of its own: who waits for its turn looks at its state all the time, while another one counts its steps. */
enum { PROGRAM_APART = 128 };
typedef struct {
    _Alignas(PROGRAM_APART) uint32_t state; /* a futex */
    uint16_t process, command;
    uint8_t host;
    bool main; /* of its process */
    int32_t pid, tid;
    uint64_t priority, steps, idle_steps;
} program_thread;

/* Modules and places, so that one process can tell of another's code. */
enum { PROGRAM_MODULES = 512, PROGRAM_SITES = 1 << 16, PROGRAM_PATH = 256 };
typedef struct {
    char path[PROGRAM_PATH];
} program_module;
typedef struct {
    uint16_t module, caller_module; /* 0: unknown */
    uint32_t offset, caller_offset; /* in the file's address space, of the instruction (not of what follows it) */
} program_place;

/* What a watcher has found; each one once. The driver reads it in faults/programs/findings.py. */
enum { PROGRAM_FINDINGS = 1024, FINDING_PLACES = 10, FINDING_BYTES = 64 };
typedef struct {
    uint16_t kind, rule; /* the watcher's numbers; its names are in Python */
    uint8_t host, other_host, pool, bytes;
    uint16_t thread, other_thread;
    uint32_t times;
    int64_t offset, nbytes;
    uint64_t number; /* of the step at which it was found */
    program_site sites[FINDING_PLACES]; /* by role: the watcher's order */
    uint64_t numbers[FINDING_PLACES]; /* the steps' numbers, 0 for none */
    uint8_t seen[FINDING_BYTES], meant[FINDING_BYTES]; /* what was loaded, what it should have been */
    int64_t extra[4];
} program_finding;

/* With the lock held: note a finding, or count it if one of the same kind, rule and sites is there. */
void program_report(const program_finding *finding);

/* The place's number; caller may be NULL. */
program_site program_site_of(const void *pc, const void *caller);

/* At the end: how many lines were touched, and how many bytes the watcher keeps of them. */
void program_watched(uint64_t lines, uint64_t bytes);

/* The watcher's storage in this process. */
extern uint8_t *program_watcher_lines[PROGRAM_POOLS], *program_watcher_room; /* every step looks there */
static inline uint8_t *program_watcher_line(int pool, int64_t line) {
    return program_watcher_lines[pool] + line * WATCHER_LINE_BYTES;
}

/* Who this thread is; the clock of a watcher is indexed by thread. -1 outside of a run. */
int program_thread_here(void);
int program_host_here(void);
uint64_t program_step_number(void);

#endif
