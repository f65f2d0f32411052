/* A thread of a program, as its own process knows it. */
#ifndef CXLEMU_SELF_H
#define CXLEMU_SELF_H

#include <errno.h>

#include "image.h"
#include "turn.h"

/* To the end of its block, what this library does leaves the program's errno as it is. */
static inline void errno_back(const int *saved) { errno = *saved; }
#define KEEPS_ERRNO __attribute__((cleanup(errno_back), unused)) const int saved_errno = errno

enum {
    LATE_SIGNALS = 32,
    SIGNAL_BYTES = 128,
    CALLERS = 256,
    SITES_KNOWN = 1024,
    SEEN = 2048,
    MAPPINGS = 512,
    LIST_PLACES = 1024,
    PAST = 64
};

typedef struct {
    pool_lines *items; /* runs of lines, in the order in which they were added */
    int64_t count, room;
    int64_t at[LIST_PLACES]; /* in which of them the last line was added whose number ends alike */
} line_list;

typedef struct {
    int pool;
    int64_t offset, nbytes;
    uint64_t number;
    uint8_t *bytes;
} nt_store;

typedef struct {
    int thread; /* index in the area */
    bool ordered; /* it has executed a locked instruction, which was no step, since its last load of a pool */
    bool inside; /* it is in one of our functions, whose own accesses are no steps */
    line_list flushed, lingering; /* since the last fence; since the last full fence */
    nt_store *nt;
    int64_t nt_count, nt_room;
    bool nt_shared; /* stores of it are among the area's */
    const void *callers[CALLERS];
    uint32_t depth, spins, looks;
    uint64_t flush_next,
        flush_step; /* where it flushes next, and in which step, if it flushes one line behind another */
    struct {
        uint64_t lands, stays;
        int left;
    } drawn; /* by nature_posts, for the lines that it flushes next */
    uint64_t paused_at; /* how many steps had been made at its last PAUSE instruction */
    uint32_t failed; /* accesses that ended in a SIGBUS */
    uint32_t outside_looks; /* how often it has looked at the clock, or at input from outside */
    const void *system_wrote; /* where a system call was made whose stores are looked for */
    int late_count;
    _Alignas(8) uint8_t late[LATE_SIGNALS][SIGNAL_BYTES]; /* siginfo_t of those that came in the middle of a step */
    uintptr_t tls; /* where this library's variables of this thread lie */
    uintptr_t kernels; /* where the kernel writes by itself */
    struct {
        uint64_t since, base, state, memory, tries;
    } mark; /* a state of this thread, and when it was in it: as in cycle.c */
    uint64_t knows; /* in a search: a digest of what it has done and loaded, a round of a cycle left out */
    bool knows_more; /* from outside of the pool */
    struct {
        uint64_t state, memory, step, knows;
    } past[PAST]; /* in a search */
    int past_count;
    uint64_t memory_bytes; /* private ones of its process, at the last look */
    struct {
        const void *pc, *caller;
        program_site site;
    } known[SITES_KNOWN];
    struct {
        int64_t offset, nbytes;
        int pool;
        uint64_t bytes;
    } seen[SEEN]; /* the bytes that this thread last loaded at a place */
} program_self;

/* This thread's part in the run; NULL outside of one. A pointer, for which a library that is loaded late still has room. */
extern _Thread_local program_self *self __attribute__((tls_model("initial-exec")));

/* mappings.c: the pools in this process. */
extern _Atomic int mapping_count;
extern struct pools_span {
    _Atomic uintptr_t from, to;
} pools_span; /* all of them lie between; one struct, as every access of the program asks for both */

/* Find the part of a range that lies in a pool; false where no byte does. */
bool range_in_pool(const void *at, size_t nbytes, pool_range *found);
static inline pool_lines range_lines(const pool_range *r) {
    return (pool_lines){r->pool, r->offset / LINE_BYTES, (r->offset + r->nbytes + LINE_BYTES - 1) / LINE_BYTES};
}

/* How many bytes of a range lie in one mapping: a program may map a pool twice, side by side. */
size_t in_one_of_many(const void *at, size_t nbytes);
static inline size_t in_one_mapping(const void *at, size_t nbytes) {
    return __builtin_expect(mapping_count > 1, 0) ? in_one_of_many(at, nbytes) : nbytes;
}

/* Whether mappings of pools are closed to the program, so that its accesses fault. This library then looks at the image. */
extern bool pools_closed;
void *in_image(const void *at);

bool mapping_add(int pool, int64_t offset, uint8_t *at, size_t nbytes);
void mapping_remove(uint8_t *at, size_t nbytes);
void mappings_after_fork(void); /* in the child */

/* Relaxed loads suffice: a thread that announces an access to a pool has seen its mapping. */
static inline bool outside_pools(const void *at) {
    const uintptr_t from = atomic_load_explicit(&pools_span.from, memory_order_relaxed);
    return (uintptr_t)at - from >= atomic_load_explicit(&pools_span.to, memory_order_relaxed) - from;
}

static inline void *reachable(const void *at) {
    return __builtin_expect(pools_closed, 0) && !outside_pools(at) ? in_image(at) : (void *)(uintptr_t)at;
}

/* Join the run that CXLEMU_PROGRAM_RUN names, when the program first opens a pool. False where there is no run. */
bool process_join(void);
bool process_joined(void);
void environment_keep(void); /* note what the run tells its processes by the environment */
bool process_recompiled(void); /* whether its main program calls what tsan.c defines */

/* server.c: the process whose fork this one is; 0: it was started by itself. */
int process_server(void);

/* watch.c: choose the run's watcher, and follow code of this process that announces nothing. */
void watcher_choose(void);
void code_follow(void);

/* Let this thread take part from here on; `thread` as turn_new_thread returned it, or -1 for a new number. */
void self_begin(int thread, int start_kind, int other);
void self_end(int end_kind);
_Noreturn void too_many_threads(void);
void process_ends_with(int status); /* note the exit status, before the process's last step */
void self_forget(void); /* after fork, in the child */
program_self *self_here(void); /* joins this thread if its process has joined */

/* steps.c. A step of any kind: it begins when this thread has the turn, which it keeps after the end, up to its next step. */
bool step_begin(program_self *me);
/* The same of a known kind, which quiet.c and cycle.c look at. */
bool step_begins(program_self *me, int kind, int what, const pool_range *r);
void step_counts(program_self *me, uint64_t at); /* count a step whose turn has come, and do what comes before it */
uint64_t step_place(int kind, const pool_range *r); /* where a step is taken, as cycle.c compares it */
void step_mix(const program_step *s, uint64_t bytes); /* into the hash of the trace */
void step_mix_flushes(const program_step *s, int64_t lines,
                      uint64_t dirty); /* of as many lines, the first one being s's */
uint64_t step_digest(const uint8_t *bytes, int64_t nbytes);
void step_end(program_self *me);
program_site step_site(program_self *me, const void *pc);
program_step step_of(const program_self *me, int kind, const pool_range *range, const void *pc);
/* Wait until the turn comes back that this thread has given away: another place, for cycle.c, than the step in which it did. */
void step_turn(program_self *me);
bool step_of_operation(program_self *me, int part); /* begins a step in which an operation begins (1) or ends (2) */
void step_other(program_self *me, int kind, int other, const pool_range *range, const void *pc);
void store_told(int thread); /* report the store that a thread has announced: it has happened by now */
void store_told_early(int thread, bool all); /* the same, but it may go on; not before it has begun, unless `all` */
void host_crashes(int host, int thread); /* in a step of this thread; its own threads are left to the caller */
_Noreturn void process_die(void);

void prog_sleep(uint64_t ns, const void *pc);
void prog_wait_readable(int file, const void *pc); /* let others go first until the file has something to read */

/* nature.c: moves lines at random, if this run has a nature. */
void nature_between(program_self *me); /* between two steps */
bool nature_tears(
    const program_step
        *store); /* whether a line of a store that tears is to leave the cache in its middle; before it is told */
void nature_stored(const program_step *store, bool tears);
/* A thread touches lines, at which nature's moves aim; `on`: it flushes them right behind the last ones. */
void nature_touched(program_self *me, pool_lines lines, bool on);
void nature_stored_past(program_self *me, int pool, int64_t line); /* the cache */
/* What nature does behind a row of flushes: which of its lines land, as bits from the first one on, and whether the thread stays behind.
 * The row ends where it does, or as ROW_LINES are drawn. */
typedef struct {
    int64_t last;
    uint64_t lands;
    bool stays;
} posted_row;
posted_row nature_posts(program_self *me, pool_lines lines, bool on); /* draws it */
void nature_flushed(program_self *me, pool_lines lines, posted_row row); /* of all lines of the row */

/* cycle.c: whether all threads go round in cycles, as this one's state shows at the step `at`: one call of the program may make many. */
bool cycle_closes(program_self *me, uint64_t at);
void cycle_fold(program_self *me,
                uint64_t at); /* in a search, before the step: let the thread wait where it is in a cycle */
void cycle_round(
    const program_self
        *me); /* in a search, behind a step that only looked: so will the next one, until something is stored */
uint64_t timers_left(void); /* threads.c: until this process's timers end, in some unit */
void memory_ahead(void); /* fetch what forks of this process need, so that each need not */
void cycle_thread(program_self *me, bool begins); /* a thread takes part from here on, or no longer */

/* signals.c: send this thread the signals again that came in the middle of its step, which has ended. */
void signals_late(program_self *me);

/* quiet.c: whether a step that comes is quiet, as turn_take asks. */
bool step_is_quiet(const program_self *me, int kind, int what, const pool_range *r);

/* coherent.c: with --free, a thread loads and stores behind its step, while others make theirs. So its host may have learned more
 * from a load of a coherent line than the pool held at its step. */
void coherent_loads(const program_step *load, const uint8_t *twin); /* at such a step; also of a locked instruction */
void coherent_loaded(int thread, const void *value, size_t nbytes); /* behind an atomic load: what it has seen */
void coherent_rested(int thread); /* within a step's end: a load is still to come */
void coherent_hears(int thread, uint64_t at); /* before the step `at`: from what this host's threads have loaded */
void coherent_stores(int thread, const pool_range *range); /* report all that other threads have announced there */
void coherent_stored(int thread, const pool_range *range); /* bytes no longer say whether others have stored there */

/* silent.c: report what was stored to lines without an announcement, as stores of this host at an unknown place. */
void silent_stores(program_self *me, pool_lines lines);
void silent_stores_everywhere(program_self *me); /* when a process ends */

/* tsan.c: an atomic operation comes, which is a fence as well. Returns whether it is on a pool, so that prog_rmw_end has to follow;
 * a loop of them on private memory passes the turn on now and then, as does one of loads, which calls atomic_spins. */
bool atomic_begins(void *at, size_t nbytes, const void *pc);
void atomic_spins(const void *pc);
void atomic_loaded(const void *value, size_t nbytes); /* behind the load, where it is in a pool */

/* library.c: whether code is of a function of C++'s library that was compiled into this program. */
bool library_has(const void *pc);

/* script.c: whether this process runs Python; and the place in a script at which this thread is, or 0. */
extern bool script_runs;
void script_begin(void);
program_site script_site(void);

/* device.c: let this process's devices end their copies, before it does. */
void devices_await(void);

/* End a program that uses cxl.h wrongly, with a sentence. */
__attribute__((format(printf, 1, 2))) _Noreturn void program_misused(const char *format, ...);

/* holds.c: what must hold, as cxl.h says it. */
void holds_moved(
    const program_move *move); /* before a line moves; bytes past the cache, and those of a crash, are there */
void holds_stored(const program_step *step); /* to a coherent range */
void holds_examine(void); /* at the end of a step */

/* room.c: notice in this process that /dev/shm is full. */
void room_watch(void);
void room_unwatch(void);
bool room_is_full(void);

/* posted.c */
void list_add(line_list *list, pool_lines lines);
bool posted_fence(program_self *me, mover by, enum fence_kind kind); /* returns whether anything landed */
void posted_add(program_self *me, pool_range range, const uint8_t *bytes, uint64_t number);
int64_t posted_land(program_self *me, mover by, pool_lines lines);
void posted_free(program_self *me);
static inline bool posts_past(const program_self *me) { return me->nt_count || me->nt_shared; }
bool past_land(int thread, int pool, int64_t line); /* the oldest one of a thread there; false: there is none */
int64_t past_pay(void); /* all that the area has; returns how many */
void past_forget(int host);

#endif
