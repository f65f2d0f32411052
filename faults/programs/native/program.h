/* Runs programs that others wrote on the emulated pool: the interfaces inside the library that `cxlemu exec` preloads.
 *
 *     the program ── accesses ──> events.c ── steps.c ── turn.c: whose step is it?
 *                                    │──── image.c: the host's cache, moved line by line (cxlemu/native/cache.c)
 *                                    └──── program_watcher: what the checker sees, in the order of the trace
 *
 * Recompiled code announces each load and store before it happens (tsan.c). Code that is only preloaded announces
 * flushes and fences, and a whole page when it first touches it (program_pages). In both cases, where a program has
 * mapped the pool it sees its host's image: the bytes that the host's cache holds.
 *
 * Threads take turns: from its turn to its next step a thread runs alone, among all threads of all hosts. So what a
 * program does between two steps needs no lock, and the same seed gives the same trace. With --free, threads run side
 * by side; every function below that needs the `lock` says so.
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
    FLUSH_DROP_BEHIND, /* clflushopt behind an lfence or a locked instruction: it does not overtake older loads */
};
enum fence_kind {
    FENCE_STORES = 1, /* sfence: posted writes have landed; later loads may still hit what was flushed */
    FENCE_LOADS, /* lfence */
    FENCE_FULL, /* mfence */
    FENCE_LOCKED, /* a locked instruction, or xchg: orders as mfence does */
};
enum {
    LOAD_PERHAPS = 1
}; /* a plain load of a coherent range, with --free: it took place before the line was so, or behind that */

/* The functions that announce accesses. `at` is an address of the program: only prog_flush cares for those outside of
 * every pool. `pc` is the code that accesses it. A range may cross lines. Loads and stores are announced before they
 * happen. */
void prog_load(const void *at, size_t nbytes, const void *pc);
void prog_store(void *at, size_t nbytes, const void *pc);

/* Store these bytes past the cache, in place of the program's own instruction. */
void prog_nt_store(void *at, const void *bytes, size_t nbytes, const void *pc);

void prog_flush(const void *at, enum flush_kind kind, const void *pc);
void prog_flush_range(const void *at, size_t nbytes, enum flush_kind kind,
                      const void *pc); /* each line of it is a step */
void prog_fence(enum fence_kind kind, const void *pc);

/* A read-modify-write, which the caller executes on the image between begin and end, while no other thread moves. A locked
 * instruction is also a fence, before and after. `wrote` is false where a compare failed. */
void prog_locked(void *at, size_t nbytes,
                 const void *pc); /* one that inline assembly executes: announced like a store */
void prog_rmw_begin(void *at, size_t nbytes, const void *pc);
void prog_rmw_end(void *at, size_t nbytes, bool wrote, const void *pc);

/* Whether this thread's last step announced this access: inline assembly and compilers may both tell of it. */
bool prog_announced(bool stores, const void *at, size_t nbytes);

/* Announce that a system call reads from (loads) or writes to (stores) a buffer that may lie in a pool. */
void prog_system_reads(const void *at, size_t nbytes, const void *pc);
void prog_system_writes(void *at, size_t nbytes, const void *pc);

/* Take what is found stored in a buffer, without an announcement, for the system call's that was made at `pc`. */
void prog_system_wrote(void *at, size_t nbytes, const void *pc);
void prog_msync(const void *at, size_t nbytes, const void *pc);

/* Let other threads go first: this one waits for one of them, or for time to pass. pc: the place, or NULL. */
void prog_yield(const void *pc);

/* Expect this host's loads of the range to be stale: the program checks them by other means, such as a sequence number or a
 * checksum. */
void prog_expect_stale(const void *at, size_t nbytes, const void *pc);

/* Return whether any byte of the range lies in a pool. Cheap. */
bool prog_in_pool(const void *at, size_t nbytes);

/* --- the trace: what a watcher sees of every step --------------------------------------------------------------------- */

enum step_kind {
    STEP_LOAD = 1,
    STEP_STORE, /* reported once it has happened, before any other thread's next step */
    STEP_RMW, /* reported likewise; a failed compare is a STEP_LOAD with `locked` */
    STEP_NT_STORE, /* reported when it is posted; it lands later: MOVE_NT */
    STEP_FLUSH,
    STEP_FENCE,
    STEP_MSYNC,
    STEP_YIELD,
    STEP_MAP, /* nbytes at offset */
    STEP_UNMAP,
    STEP_THREAD_START, /* `other` is the thread that made it */
    STEP_THREAD_END,
    STEP_THREAD_JOIN, /* `other` is the thread that has ended: this thread now knows all that it knew */
    STEP_PROCESS_START, /* of its first thread, which knows all that ended in an earlier stage (`::`) */
    STEP_PROCESS_END, /* of its last thread: the process exits, or was killed */
    STEP_HOST_CRASH,
    STEP_EXPECT_STALE, /* nbytes at offset: this host reads them without a chain on purpose */
    STEP_OPERATION, /* `what` says whether an operation begins (1) or ends (2), as cxl.h logs them */
    STEP_DEVICE_COPY, /* a device may write nbytes at offset from now on: in a step of thread `other` */
    STEP_DEVICE_SEEN, /* this thread has seen the event of that copy: it has ended */
    STEP_INVARIANT, /* one is declared on nbytes at offset, and examined */
    STEP_KINDS
};

enum process_end {
    END_DAMAGED = 1,
    END_GIVEN_UP
}; /* `what` of one that was killed: by what broke, or at the deadline */

/* A place in a program: an index into program_area.sites, 0 where it is unknown. The same place in the same caller has the
 * same number in all processes of a run. */
typedef uint32_t program_site;

typedef struct {
    uint64_t number; /* of the step in the trace, from 1; nature's moves around the step have the same one */
    uint8_t kind,
        what; /* step_kind; a flush's flush_kind, a fence's fence_kind, a load's LOAD_PERHAPS, an operation's part, a process_end */
    bool locked, system; /* a locked instruction; an access by a system call on the program's behalf */
    uint8_t host, pool;
    uint16_t thread, other; /* indices into program_area.threads */
    uint16_t process; /* its number in the run, from 1 */
    uint16_t stage; /* 0 for the commands before the first `::` */
    program_site site;
    int64_t offset, nbytes; /* in the pool; pool 255: a flush or msync outside of every pool, whose address offset is */
} program_step;

/* How bytes of a line move between a host's cache, what it has posted, and the pool. */
enum move_kind {
    MOVE_FETCH = 1, /* pool -> cache */
    MOVE_FETCH_POSTED, /* this host's own pending write-back -> cache */
    MOVE_POST, /* dirty cache -> posted; the line stays until it is dropped */
    MOVE_LAND, /* posted -> pool */
    MOVE_WRITE_BACK, /* dirty cache -> pool, at once: an eviction; MOVE_DROP comes next */
    MOVE_DROP, /* the line leaves the cache */
    MOVE_NT, /* bytes first..first + count of the line, from a non-temporal store, arrive in the pool */
    MOVE_LOST, /* posted bytes, or those of an NT store, vanish: at a crash, or on a link that is down */
    MOVE_LEFT, /* cache or posted -> pool, before the crash of this host: its stores up to number `store` */
    MOVE_FAILED, /* pool -> nowhere: the line is poisoned, or its card or the link to it is lost */
};
enum move_cause { BY_PROGRAM = 1, BY_NATURE };

typedef struct {
    uint64_t number;
    uint8_t kind, cause, host, pool;
    uint16_t thread; /* the thread whose step it was, or around whose step nature moved */
    uint8_t first, count; /* MOVE_NT and its MOVE_LOST: which bytes */
    int64_t line, lines; /* the first one, and how many move alike */
    uint64_t store; /* MOVE_NT, MOVE_LEFT: the number of the store */
} program_move;

/* --- watchers: the checker, or a test's recorder ------------------------------------------------------------------------ */

/* A watcher's functions are called in the order of the trace, in the process whose thread takes the step, with the area's
 * lock held. A watcher keeps all its state in the area (see room), because the next call may come in another process. Any
 * function may be NULL. */
typedef struct {
    /* A process joins; `first` says whether it is the run's first one. */
    void (*begin)(bool first);
    /* `bytes`: the nbytes that the load returns. A range that crosses lines is one step. */
    void (*load)(const program_step *step, const uint8_t *bytes);
    /* A store, RMW or NT store. `before` and `after`: nbytes of the image before and after it; an NT store's `before` is
     * NULL. */
    void (*store)(const program_step *step, const uint8_t *before, const uint8_t *after);
    /* Of several lines, 64 at most, each flush is a step: `number` is the first one's. Bits say which were dirty. */
    void (*flush)(const program_step *step, uint64_t dirty, bool was_present);
    void (*fence)(const program_step *step);
    void (*other)(const program_step *step); /* a step of any other kind */
    void (*move)(const program_move *move);
    /* Every process has ended. Called in the driver: what is dirty (program_line_view) or posted now, stays so. */
    void (*end)(void);
    /* Nothing has changed for as many steps as the budget allows: report what every thread waits for. */
    void (*stuck)(void);
} program_watcher;

/* The run's watcher, or NULL. --check sets it before begin, to the same one in all processes. */
extern const program_watcher *program_watcher_now;

/* What a host holds of a line now. For a watcher's `end`, for reports and pictures. */
typedef struct {
    bool present, dirty, pending;
    const uint8_t *cached, *posted, *pool;
} program_line_view;
program_line_view program_look(int host, int pool, int64_t line);

/* --- preloaded code: pages instead of announcements --------------------------------------------------------------------- */

/* How mappings are handled in a process whose own code was not recompiled: they are PROT_NONE until they are touched. On a
 * host with such a process, lines of a page that was touched are never absent: what a flush or an eviction drops is fetched
 * again at once (a legal prefetch), in place, in the image that all processes of the host map. */
typedef struct {
    void (*mapped)(int pool, int64_t offset, uint8_t *at, size_t nbytes, int prot);
    void (*unmapped)(uint8_t *at, size_t nbytes);
    void (*touch)(const void *at, size_t nbytes); /* before a system call or this library looks there; any address */
} program_pages;
extern const program_pages *program_pages_now;

/* On such a host image.c finds stores by itself: before a line is looked at, flushed, evicted or dropped, it reports each
 * of its words that differs from its twin as a STEP_STORE without a site. */

/* Fetch a page's absent lines, as a step: between prog_page_begin and prog_page_end. The former is false where this thread
 * has no turn to take, as it is inside a step already. */
void image_open_page(int pool, int64_t page);
bool prog_page_begin(void);
void prog_page_end(void);

/* --- shared by all processes of a run ------------------------------------------------------------------------------------ */

/* A run has a folder on /dev/shm, which the driver makes and removes (faults/programs/area.py):
 *   area            program_area
 *   pool-P          the bytes of pool P (M of the memory model), sparse
 *   host-H-P.data, .posted, .twin    images of a host's cache of it, each as large as the pool, sparse
 *   host-H-P.state, .pending         a byte for each line
 *   lines-P         the watcher's: WATCHER_LINE_BYTES for each line, zeros at first, sparse
 *   room            the watcher's: WATCHER_ROOM_BYTES to use as it likes, zeros at first, sparse
 * Every process maps them at other addresses, so they hold offsets, not pointers. */
enum { WATCHER_LINE_BYTES = 128 };
#define WATCHER_ROOM_BYTES (INT64_C(1) << 30)

enum thread_state {
    THREAD_NONE,
    THREAD_STARTING,
    THREAD_WAITING,
    THREAD_INSIDE, /* it is in a step */
    THREAD_RUNNING, /* it runs from one step to the next one */
    THREAD_OUTSIDE, /* the others do not wait for it */
    THREAD_CRASHED, /* it ends its process at its next step */
    THREAD_ENDED
};

/* Each thread has lines of its own: while it waits for its turn it polls its state, and another thread counts its steps. */
enum { PROGRAM_APART = 128 };
typedef struct {
    _Alignas(PROGRAM_APART) uint32_t state; /* a futex */
    uint16_t process, command;
    uint8_t host;
    bool main; /* its process's first thread */
    int32_t pid, tid;
    uint64_t priority, steps, idle_steps;
} program_thread;

/* Modules and places, so that one process can report on another's code. */
enum { PROGRAM_MODULES = 512, PROGRAM_SITES = 1 << 16, PROGRAM_PATH = 256 };
typedef struct {
    char path[PROGRAM_PATH];
} program_module;
typedef struct {
    uint16_t module, caller_module; /* 0: unknown */
    uint32_t offset, caller_offset; /* in the file's address space, of the instruction (not of what follows it) */
} program_place;

/* A watcher's finding, each kept once. The driver reads them in faults/programs/findings.py. */
enum { PROGRAM_FINDINGS = 1024, FINDING_PLACES = 10, FINDING_BYTES = 64 };
typedef struct {
    uint16_t kind, rule; /* the watcher's numbers; its names are in Python */
    uint8_t host, other_host, pool, bytes;
    uint16_t thread, other_thread;
    uint32_t times;
    int64_t offset, nbytes;
    uint64_t number; /* of the step at which it was found */
    program_site sites[FINDING_PLACES]; /* by role: the watcher's order */
    uint64_t numbers[FINDING_PLACES]; /* the steps' numbers, 0 where there is no step */
    uint8_t seen[FINDING_BYTES], meant[FINDING_BYTES]; /* the bytes that were loaded, and those that should have been */
    int64_t extra[4];
} program_finding;

/* Whether the caches of all hosts are coherent on a line; and whether they are anywhere. */
bool program_coherent(int pool, int64_t line);
extern bool program_coherent_anywhere;

/* Note a finding; where there is one of the same kind, rule and sites, only count it. Called with the lock held. */
void program_report(const program_finding *finding);

/* Return the number of a place; caller may be NULL. */
program_site program_site_of(const void *pc, const void *caller);

/* Return the number of a line of a script: `name` is its file and its function, with \n in between. */
program_site program_site_in(const char *name, uint32_t line);

/* Whether a command has failed, which ends the run. */
bool program_failed(void);

/* Say at the end how many lines were touched, and how many bytes the watcher keeps of them. */
void program_watched(uint64_t lines, uint64_t bytes);

/* The watcher's storage in this process. */
extern uint8_t *program_watcher_lines[PROGRAM_POOLS], *program_watcher_room; /* every step looks there */
static inline uint8_t *program_watcher_line(int pool, int64_t line) {
    return program_watcher_lines[pool] + line * WATCHER_LINE_BYTES;
}

/* The numbers of this thread and its host, -1 outside of a run, and of the step under way. */
int program_thread_here(void);
int program_host_here(void);
uint64_t program_step_number(void);

#endif
