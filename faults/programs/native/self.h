/* A thread of a program, as its own process knows it. */
#ifndef CXLEMU_SELF_H
#define CXLEMU_SELF_H

#include "image.h"
#include "turn.h"

enum { CALLERS = 256, SITES_KNOWN = 1024, SEEN = 2048, MAPPINGS = 64 };

typedef struct {
    int pool;
    int64_t line;
} line_place;

typedef struct {
    line_place *items;
    int64_t count, room;
} line_list;

typedef struct {
    int pool;
    int64_t offset, nbytes;
    uint64_t number;
    uint8_t *bytes;
} nt_store;

typedef struct {
    int thread; /* index in the area */
    bool inside; /* one of our functions: what it touches itself is no step */
    line_list flushed, lingering; /* since the last fence; since the last full one */
    nt_store *nt;
    int64_t nt_count, nt_room;
    const void *callers[CALLERS];
    uint32_t depth, spins;
    uint32_t failed; /* accesses that ended in a SIGBUS */
    struct {
        const void *pc, *caller;
        program_site site;
    } known[SITES_KNOWN];
    struct {
        int64_t offset, nbytes;
        uint64_t bytes;
    } seen[SEEN]; /* what this thread loaded last at a place */
} program_self;

/* NULL: this thread is in no run. Small, so that there is room for it in a library that is loaded late. */
extern _Thread_local program_self *self __attribute__((tls_model("initial-exec")));

/* mappings.c: the pools in this process. */
extern _Atomic int mapping_count;
extern struct pools_span {
    _Atomic uintptr_t from, to;
} pools_span; /* all of them lie between; one struct, as every access of the program asks for both */

/* The part of a range that lies in a pool; false for none. */
typedef struct {
    int pool;
    int64_t offset, nbytes;
} pool_range;
bool range_in_pool(const void *at, size_t nbytes, pool_range *found);

/* Mappings of pools are closed to the program, so that its accesses fault: this library looks at the image instead. */
extern bool pools_closed;
void *in_image(const void *at);

bool mapping_add(int pool, int64_t offset, uint8_t *at, size_t nbytes);
void mapping_remove(uint8_t *at, size_t nbytes);
void mappings_after_fork(void); /* in the child */

/* Whoever announces an access has mapped what it accesses: no order with other memory is asked for. */
static inline bool outside_pools(const void *at) {
    const uintptr_t from = atomic_load_explicit(&pools_span.from, memory_order_relaxed);
    return (uintptr_t)at - from >= atomic_load_explicit(&pools_span.to, memory_order_relaxed) - from;
}

static inline void *reachable(const void *at) {
    return __builtin_expect(pools_closed, 0) && !outside_pools(at) ? in_image(at) : (void *)(uintptr_t)at;
}

/* The run that CXLEMU_PROGRAM_RUN names, joined when the program first opens a pool. False: there is none. */
bool process_join(void);
bool process_joined(void);
bool process_recompiled(void); /* its main program: it calls what tsan.c defines */

/* watch.c: who watches this run, and whether this process's own code announces what it does. */
void watcher_choose(void);
void pages_choose(void);

/* A thread that takes part from here on; `thread` as turn_new_thread gave it, -1 for a new one. */
void self_begin(int thread, int start_kind, int other);
void self_end(int end_kind);
void process_ends_with(int status); /* known before its last step */
void self_forget(void); /* after fork, in the child */
program_self *self_here(void); /* joins this thread if its process has joined */

/* One step, of any kind: begins in turn, ends with the turn kept until the next one. */
bool step_begin(program_self *me);
void step_end(program_self *me);
program_step step_of(const program_self *me, int kind, const pool_range *range, const void *pc);
void step_other(program_self *me, int kind, int other, const pool_range *range);
void store_told(int thread); /* what it has announced has happened */
void look_for_all_unannounced(program_self *me); /* of this host: when a process ends */
_Noreturn void process_die(void);

void prog_sleep(uint64_t ns);
void prog_wait_readable(int file); /* others go first until there is something to read */

/* nature.c: what happens to lines by itself, if this run wants that. */
void nature_between(program_self *me); /* two steps */
void nature_stored(int thread, pool_range range);
void nature_posted(program_self *me, int pool, int64_t line, bool past_the_cache);

/* posted.c */
void list_add(line_list *list, int pool, int64_t line);
bool posted_fence(program_self *me, mover by, enum fence_kind kind); /* true when something landed */
void posted_add(program_self *me, pool_range range, const uint8_t *bytes, uint64_t number);
int64_t posted_land(program_self *me, mover by, pool_lines lines);
void posted_free(program_self *me);

#endif
