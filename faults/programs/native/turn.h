/* Whose step it is. From its turn to its next step a thread runs alone; who waits sleeps on a futex.
 *
 *   STARTING ─┐                    ┌─> OUTSIDE: it does not reach a step (it sleeps in the kernel, or computes for long)
 *             ├─> WAITING ─> INSIDE ─> RUNNING ─> WAITING ...      ENDED
 *   the turn passes on when no thread is STARTING, INSIDE or RUNNING
 */
#ifndef CXLEMU_TURN_H
#define CXLEMU_TURN_H

#include "area.h"

/* Before a run's first thread: the schedule begins. */
/* Where a thread stands; it changes at any time. */
static inline uint32_t turn_state(int thread) {
    return __atomic_load_n(&here.area->threads[thread].state, __ATOMIC_ACQUIRE);
}

void turn_begin(program_area *area);

/* A number for a thread of this run; it is STARTING, so that nobody goes on before it has come to its first step. -1
 * when there are too many. */
int turn_new_thread(int host, int command, int process);

/* Wait until it is this thread's turn; it is INSIDE then. False when its host has crashed meanwhile. */
bool turn_take(int thread);

/* RUNNING to INSIDE, without waiting: false when somebody saw it sleep and goes on without it. */
bool turn_enter(int thread);

/* INSIDE to RUNNING: from here to its next step. */
void turn_leave(int thread);

/* Its step changed nothing, or something. */
void turn_progress(int thread, bool progress);

/* Others go first; until_ns: not before the clock says so. */
void turn_give_up(int thread, uint64_t until_ns);

/* The others make so many steps first, if they can; it keeps its priority. */
void turn_stay_behind(int thread, uint64_t steps);

/* A thread, or a process that is gone, is not waited for any more: `state` is ENDED or OUTSIDE. */
void turn_without(int thread, enum thread_state state);

/* The run is over: nobody waits any more, every thread that comes to a step ends its process, but for one. */
void turn_stop(enum outcome outcome, int except);

#endif
