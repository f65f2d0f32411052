/* The record of a run: every step and every move of a line, for the search of `cxlemu exec --every`. */
#ifndef CXLEMU_RECORD_H
#define CXLEMU_RECORD_H

#include "program.h"

enum { RECORD_MOST = 1 << 21 };
/* Other kinds are those of steps. */
enum record_kind { RECORD_MOVE = 32, RECORD_BORN = 64, RECORD_CYCLE, RECORD_AWAITS };

/* `knows`: of a step, a digest of what its thread had done and loaded before; 0 where it may know more than that. `bytes`: of a load of
 * one line, a digest of what its host holds of it; of what arrives from a cache, of what the pool held there before.
 * `line`: the first line that a step touches, or the line that moves; the step since which a thread looks in a cycle. `more`: how
 * many lines a step touches; the thread that made this one, or that has ended; the store past the cache that arrives; the step since
 * which a thread goes round in a cycle. */
typedef struct {
    uint32_t number, line, more;
    uint16_t thread;
    uint8_t kind, what, host, pool, cause, stage;
    uint16_t unused;
    uint64_t knows, bytes;
} record_entry;

typedef struct {
    uint32_t count, unused[3]; /* may exceed RECORD_MOST: what came later was left out */
    record_entry entries[RECORD_MOST];
} run_record;

/* The record that this process has mapped; NULL where the run has none. */
extern run_record *record_now;

/* Return a watcher that records what it sees, and tells `watched`, which may be NULL. */
const program_watcher *record_around(const program_watcher *watched);

void record_born(int thread, int maker);
/* A thread waits for the end of another one, which has come; or it may look again before. */
enum awaits { AWAITS_NOTHING, AWAITS_END, AWAITS_OVER };
void record_awaits(int thread, enum awaits what);
/* A thread is where it was after step `since`, and its host has stored nothing. Returns what it has come to. */
enum cycle {
    CYCLE_LOOKS, /* something has arrived before a look that was there */
    CYCLE_WAITS, /* nothing has arrived where it has looked */
    CYCLE_WOKEN, /* it has looked, and then something has arrived there */
    CYCLE_STAYS, /* either of these, or the script has asked for the round: another run is to show what follows without it */
    CYCLE_REPEATS, /* a run has ended as threads stay that could look again */
};
enum cycle record_cycle(int thread, uint64_t since);
/* Whether threads that stay could look again, as something has arrived since they have looked: then another run goes on. */
bool record_repeats(void);

#endif
