/* What the crash of a host may leave in the pool, for the search of `cxlemu exec --crash every`.
 *
 * A cache may write a line back at any time, so a host that dies leaves the bytes of a line as some store to it had left them: any one
 * since the last that is sure to have arrived. How many of these stores arrive is decided when somebody first fetches the line; by
 * default all do. Such lines have numbers from the crash on, which do not depend on who fetches which one first. */
#ifndef CXLEMU_CRASH_H
#define CXLEMU_CRASH_H

#include "image.h"

enum { CRASH_LINES = 4096, CRASH_STORES = 64, CRASH_POINTS = 1 << 16, CRASH_ARRIVALS = 4096, POOL_USES = 1 << 16 };

/* A store to a line, and the line's bytes after it or after a part of it. */
typedef struct {
    uint8_t bytes[PROGRAM_LINE];
    uint64_t number, mask; /* mask: which bytes of the line arrive with it; past the cache, those that it stores */
    program_site site;
} crash_store;

/* A line of a host with stores that may not have arrived, the oldest one first. */
typedef struct {
    int64_t line;
    int32_t count, posted; /* of stores; of those that a flush has posted */
    uint16_t number; /* from the crash on */
    uint8_t pool, host;
    crash_store stores[CRASH_STORES];
} crash_line;

/* A step at whose beginning a host may crash, as what it would leave has changed: CrashPoint of faults/programs/area.py. */
typedef struct {
    uint64_t step, trace; /* trace: the hash of all steps before */
    uint64_t future, others; /* hashes: of all that what comes after a crash depends on; of how far other hosts are */
    int64_t line; /* the line to which the host has stored since its last point; -1: none; -2: several */
    program_site site; /* of that store */
    uint8_t host, pool, stage;
    uint8_t images; /* how many it may hold since then: more than one where a store is torn */
} crash_point;

/* A line that somebody has fetched after the crash: CrashArrival of faults/programs/area.py. */
typedef struct {
    int64_t line;
    uint64_t step, lost_step; /* at which it was fetched; of the first store that was lost */
    program_site site, lost_site;
    int32_t stores, lost; /* how many there were, and how many of the last ones were lost */
    uint16_t thread;
    uint8_t host, pool; /* of the one that fetched it */
    uint16_t number; /* of the line */
    uint16_t torn; /* whether a part of the first store that was lost has arrived */
} crash_arrival;

/* A step in which a line was fetched from the pool or arrived there: PoolUse of faults/programs/area.py. Between two of them nobody can
 * tell when the line was poisoned. */
typedef struct {
    int64_t line;
    uint64_t step;
    uint8_t pool, stage, unused[6];
} pool_use;

typedef struct {
    int32_t line_count, host; /* host: the one that has crashed; -1: none yet */
    uint32_t point_count, arrival_count; /* may exceed the room for them, as may the others */
    uint32_t left_out; /* lines and stores that there was no room for */
    uint32_t use_count;
    uint64_t trace; /* the hash of all steps before the crash */
    uint64_t pools; /* a hash of all that has arrived */
    struct {
        int64_t line;
        program_site site;
        uint8_t pool;
        bool any;
        uint8_t images; /* of that line */
    } changed[PROGRAM_HOSTS]; /* since the host's last point */
    uint8_t lose[CRASH_LINES]; /* by the number of a line: how many of its last stores are lost */
    crash_arrival arrivals[CRASH_ARRIVALS];
    crash_point points[CRASH_POINTS];
    pool_use uses[POOL_USES];
    crash_line lines[CRASH_LINES];
} crash_area;

/* What this process has mapped; NULL where the run is none of a search. */
extern crash_area *crash_now;

void crash_make(void);
void crash_stored(const program_step *step, const uint8_t *past_the_cache); /* its bytes; NULL: those in the cache */
void crash_moved(const program_move *move); /* before the line moves */
void crash_arrives(int pool, int64_t line); /* note what the pool holds of a line: before it changes, and after */
void crash_point_here(int thread); /* at the beginning of this thread's step */
void crash_begins(int host);
void crash_operation_ended(int host); /* from here on its effect must have arrived */
void crash_read(const program_step *step); /* note the place that has fetched lines in this step */

/* Decide what the crashed host has left of a line that somebody fetches: returns the last store that arrived, NULL where none did. */
const crash_store *crash_decide(mover by, int pool, int64_t line);

#endif
