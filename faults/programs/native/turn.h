/* Turns: from its turn to its next step a thread runs alone, while the others sleep on futexes.
 *
 *   STARTING ─┐                    ┌─> OUTSIDE: it does not reach a step (it sleeps in the kernel, or computes for long)
 *             ├─> WAITING ─> INSIDE ─> RUNNING ─> WAITING ...      ENDED
 *   the turn passes on when no thread is STARTING, INSIDE or RUNNING
 */
#ifndef CXLEMU_TURN_H
#define CXLEMU_TURN_H

#include "area.h"

/* Return a thread's state, which may change at any time. */
static inline uint32_t turn_state(int thread) {
    return __atomic_load_n(&here.area->threads[thread].state, __ATOMIC_ACQUIRE);
}

/* Begin the schedule, before the run's first thread. */
void turn_begin(program_area *area);

/* nature.c: note how often nature moves lines in this run. */
void nature_begin(program_area *area);

/* Return a number for a new thread of this run, or -1 where there are too many. The thread is STARTING, so that no other one
 * goes on before it has come to its first step. */
int turn_new_thread(int host, int command, int process);

/* The same in two parts: the number, and the beginning, which may come again when the thread has ended. */
int turn_number(int host, int command, int process);
void turn_begins(int thread);

/* Wait until it is this thread's turn; it is INSIDE then. False where its host has crashed meanwhile. A turn ends before a step
 * that other threads can observe: where the next step is `quiet`, it may go on. */
bool turn_take(int thread, bool quiet);

/* Return how many more steps the turn of a thread that is INSIDE has left, where all of them are quiet or none need be. */
uint64_t turn_left(int thread, bool quiet);

/* Let the thread, which has the turn and is INSIDE, make up to `most` more steps at once; returns how many, 0 where its turn
 * is over. */
int64_t turn_goes_on(int thread, int64_t most, bool quiet);

/* Go from RUNNING to INSIDE without waiting. False where others saw this thread sleep and go on without it. */
bool turn_enter(int thread);

/* Go from INSIDE to RUNNING, up to this thread's next step. */
void turn_leave(int thread);

/* affinity.c: have a new thread, or one that comes back, run on the run's one processor; `maker` made it, or -1. A thread that is
 * OUTSIDE may run anywhere. */
void pin_begin(int thread, int maker);
void pin(int thread);
void unpin(int thread);
void pin_together(int thread); /* with --free, until program_part */

/* rest.c: with --free, let a thread rest that makes no progress, until something has arrived in the pool, or another thread of its
 * host has stored. The latter three are called with the lock; rest_wake, where a rest is over, behind it, as who wakes wants the lock.
 * rest_tell does both, for a thread that may wait for something else. */
void rest_if_idle(uint64_t idle);
void rest_wake(void);
void rest_tell(void);
bool rest_is_over(uint64_t idle);
void rest_ends(void);
void rest_ends_for_host(int thread);

/* Note that a step has stored something on a host, or let it arrive; or on all of them. A run in which that happens does not hang. */
void turn_written(int host);
void turn_all_written(void);

/* Whether no other thread of its host is left. */
bool turn_alone(int thread);

/* Whether a process has a thread that has not ended. */
bool turn_takes_part(int pid);

/* In a search, a thread waits for one of these to end: with its process, if that is another one. It takes no turn before, unless all
 * others go round in cycles. turn_looks: it may look again at once, as a signal has come. */
void turn_awaits(int thread, const thread_set *ends);
void turn_looks(int thread);

/* Note whether a thread's step has changed anything. */
void turn_progress(int thread, bool progress);

/* Let others go first, at least until the run's clock shows until_ns. */
void turn_give_up(int thread, uint64_t until_ns);

enum { STAYS_BEHIND = 16 }; /* steps that others make first */

/* Let the others make `steps` steps first, if they can. The thread keeps its priority. */
void turn_stay_behind(int thread, uint64_t steps);

/* Wait for a thread no longer, as it has ended or left: `state` is ENDED, CRASHED or OUTSIDE. */
void turn_without(int thread, enum thread_state state);

/* Let a host's threads end, between turns and with the lock of turns. */
void turn_crash(int host);

/* End the run: wake every thread but `except`, and let each end its process at its next step. */
void turn_stop(enum outcome outcome, int except);

#endif
