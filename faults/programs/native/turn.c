#define _GNU_SOURCE
#include "turn.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "moves.h"
#include "record.h"

enum { IDLE_ENDS_BURST = 8, IDLE_LOWERS = 64, CHANGE_POINTS = 4, STEPS_ESTIMATED = 4096, LATE_MOST = 256 };
enum { STEP_NS = 1000, IDLE_NS = 1000000, IDLE_BEFORE_TIME_RUNS = 512 };
enum { POLICIES = 3 }; /* a schedule's: two kinds of bursts, and priorities */
enum { FAIR_AFTER = 2 * STEPS_ESTIMATED, FAIR_BURST = 64 };
#define LOCK_S 60.0

static program_area *area(void) { return here.area; }
static _Atomic uint32_t *state_of(int thread) { return (_Atomic uint32_t *)&here.area->threads[thread].state; }

static void futex_wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }
/* Where the word has changed meanwhile, the system sets errno, which is the program's. */
static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    const int before = errno;
    syscall(SYS_futex, word, FUTEX_WAIT, value, NULL, NULL, 0);
    errno = before;
}

static bool by_priority(void) { return area()->options.schedule % POLICIES == POLICIES - 1; }

void turn_begin(program_area *a) {
    a->random = a->options.schedule * 0x9E3779B97F4A7C15u + 1;
    a->low = 1 << 20;
    nature_begin(a);
    for (int k = 0; k < CHANGE_POINTS; k++) a->change_points[k] = splitmix(&a->random) % STEPS_ESTIMATED;
}

/* --- choosing -------------------------------------------------------------------------------------------------------- */

static bool awake(int thread) { return area()->wakes[thread] <= area()->clock_ns; }

/* Whether a thread of a search goes round in a cycle, and waits until something is stored. */
static bool folded(int thread) {
    const program_area *a = area();
    return a->cycles[thread].stays || (a->options.every && a->written && a->cycles[thread].since == a->written);
}

bool turn_takes_part(int pid) {
    const program_area *a = area();
    for (int k = 0; k < a->thread_count; k++)
        if (a->threads[k].pid == pid && *state_of(k) != THREAD_ENDED) return true;
    return false;
}

/* Whether a thread of a search waits for another one's end, which has not come. */
static bool blocked(int thread) {
    uint64_t any = 0;
    for (size_t k = 0; k < PROGRAM_THREADS / 64; k++) any |= area()->awaits[thread].bits[k];
    return any;
}

static bool has_come(int thread, const thread_set *ends) {
    const program_thread *all = area()->threads;
    for (int k = 0; k < area()->thread_count; k++) {
        if (!(ends->bits[k / 64] >> k % 64 & 1)) continue;
        if (all[k].pid == all[thread].pid ? *state_of(k) == THREAD_ENDED : !turn_takes_part(all[k].pid)) return true;
    }
    return false;
}

void turn_awaits(int thread, const thread_set *ends) {
    if (!area()->options.every || !host_lock_take(&area()->turns, LOCK_S)) return;
    if (!has_come(thread, ends)) area()->awaits[thread] = *ends, record_awaits(thread, AWAITS_END);
    host_lock_release(&area()->turns);
}

static void awaits_no_more(int thread, enum awaits why) {
    area()->awaits[thread] = (thread_set){0};
    record_awaits(thread, why);
}

void turn_looks(int thread) {
    if (blocked(thread)) awaits_no_more(thread, AWAITS_NOTHING);
}

bool turn_alone(int thread) {
    const program_area *a = area();
    for (int k = 0; k < a->thread_count; k++)
        if (k != thread && a->threads[k].host == a->threads[thread].host && *state_of(k) != THREAD_ENDED) return false;
    return true;
}

void turn_written(int host) {
    program_area *a = area();
    for (int k = 0; a->options.every && k < a->thread_count; k++)
        if (a->threads[k].host == host || !turn_alone(k)) a->cycles[k].news = a->steps;
    a->written = a->steps;
}

void turn_all_written(void) {
    program_area *a = area();
    for (int k = 0; a->options.every && k < a->thread_count; k++) a->cycles[k].news = a->steps;
    a->written = a->steps;
}

static int waiting(bool also_asleep, int *found) {
    int count = 0;
    also_asleep |= area()->options.every; /* a search tries all times at which it may wake */
    for (int k = 0; k < area()->thread_count; k++)
        if (*state_of(k) == THREAD_WAITING && (also_asleep || awake(k)) && !folded(k) && !blocked(k))
            found[count++] = k;
    for (int all = 0; !count && area()->options.every && all < 3; all++)
        for (int k = 0; k < area()->thread_count; k++)
            if (*state_of(k) == THREAD_WAITING && (all == 0 ? !folded(k) : all == 2 || !area()->cycles[k].stays))
                found[count++] = k;
    return count;
}

/* All threads sleep: let the clock jump to when the first one wakes. */
static void let_time_pass(void) {
    int found[PROGRAM_THREADS];
    const int count = waiting(true, found);
    uint64_t first = UINT64_MAX;
    for (int k = 0; k < count; k++)
        if (area()->wakes[found[k]] < first) first = area()->wakes[found[k]];
    if (count && first > area()->clock_ns) area()->clock_ns = first;
}

static bool among(int thread, const int *found, int count) {
    for (int k = 0; k < count; k++)
        if (found[k] == thread) return true;
    return false;
}

static int last_thread(void) {
    const program_area *a = area();
    for (int k = a->turn_count; k > 0; k--)
        if (!is_move(a->taken[k - 1])) return (int)a->taken[k - 1].thread;
    return -1;
}

static void make_moves(void) {
    program_area *a = area();
    while (a->script_at < a->options.script_length && is_move(a->script[a->script_at])) {
        const program_turn turn = a->script[a->script_at++];
        move_make(turn);
        if (a->turn_count < PROGRAM_TURNS) a->taken[a->turn_count++] = turn;
    }
}

/* Leave out those that have crashed. */
static int still_waiting(int *found, int count) {
    int left = 0;
    for (int k = 0; k < count; k++)
        if (*state_of(found[k]) == THREAD_WAITING) found[left++] = found[k];
    return left;
}

static int of_script(int *found, int count) {
    program_area *a = area();
    while (a->script_at < a->options.script_length) {
        const program_turn turn = a->script[a->script_at++];
        const bool waits = turn.thread < PROGRAM_THREADS && *state_of((int)turn.thread) == THREAD_WAITING;
        if (a->options.every ? waits : among((int)turn.thread, found, count)) {
            a->burst = turn.steps, a->scripted = true;
            a->cycles[turn.thread].since = 0; /* it may go round once more */
            return (int)turn.thread;
        }
        make_moves();
        count = still_waiting(found, count);
    }
    if (count == 0) return -1;
    if (!a->free_from) a->free_from = a->steps + 1;
    /* After the script, threads take turns in a ring, each for as long as it makes progress. */
    const int last = last_thread();
    a->burst = UINT32_MAX, a->scripted = false;
    if (a->options.every && among(last, found, count) && !a->threads[last].idle_steps) return last;
    for (int k = 0; k < count; k++)
        if (found[k] > last) return found[k];
    return found[0];
}

static int of_priority(const int *found, int count) {
    int best = found[0];
    for (int k = 1; k < count; k++)
        if (area()->threads[found[k]].priority > area()->threads[best].priority) best = found[k];
    area()->burst = FAIR_AFTER - area()->steps;
    for (int k = 0; k < CHANGE_POINTS; k++) {
        const uint64_t point = area()->change_points[k];
        if (point > area()->steps && point - area()->steps < area()->burst) area()->burst = point - area()->steps;
    }
    return best;
}

static int chosen(int *found, int count) {
    program_area *a = area();
    if (a->options.script_length || a->options.every) return of_script(found, count);
    const bool fair = a->steps >= FAIR_AFTER;
    if (by_priority() && !fair) return of_priority(found, count);
    a->burst = by_priority() ? FAIR_BURST : UINT64_C(1) << a->options.schedule % 10;
    if (fair)
        a->burst += splitmix(&a->random) %
                    (2 * a->burst); /* so that no turn ends at the same step of a loop for ever */
    return found[splitmix(&a->random) % (uint64_t)count];
}

static void note_turn(int thread) {
    program_area *a = area();
    if (a->turn_count < PROGRAM_TURNS) a->taken[a->turn_count++] = (program_turn){(uint32_t)thread, 0};
}

/* Pass the turn on to the next thread, unless some thread has yet to come to its step. Called with the lock of turns. Returns
 * the thread to wake once the lock is released, as it may want the lock at once; -1 where there is none. */
static int pass_on(void) {
    int found[PROGRAM_THREADS];
    for (int k = 0; k < area()->thread_count; k++) {
        const uint32_t state = *state_of(k);
        if (state == THREAD_STARTING || state == THREAD_INSIDE || state == THREAD_RUNNING) return -1;
    }
    make_moves();
    int count = waiting(false, found);
    if (count == 0) {
        let_time_pass();
        count = waiting(false, found);
    }
    if (count == 0) return -1;
    const int thread = chosen(found, count);
    if (thread < 0) return -1; /* the others sleep until those that have crashed are gone */
    note_turn(thread);
    area()->wakes[thread] = 0;
    *state_of(thread) = THREAD_INSIDE;
    return thread;
}

static void wake(int thread) {
    if (thread >= 0 && area()->asleep[thread]) futex_wake(state_of(thread));
}

/* Wait for the turn asleep: all threads are on one processor, which the one that has the turn needs. */
static void await_turn(int thread) {
    _Atomic uint32_t *state = state_of(thread);
    if (*state != THREAD_WAITING) return;
    area()->asleep[thread] = true;
    while (*state == THREAD_WAITING) futex_wait(state, THREAD_WAITING);
    area()->asleep[thread] = false;
}

/* --- a thread's turn ------------------------------------------------------------------------------------------------- */

static void begins(int thread) {
    if (!area()->scripted) area()->burst = 0; /* so that the next choice includes it */
    *state_of(thread) = THREAD_STARTING;
    record_born(thread, program_thread_here());
}

int turn_number(int host, int command, int process) {
    program_area *a = area();
    if (!host_lock_take(&a->turns, LOCK_S)) return -1;
    const int thread = a->thread_count < PROGRAM_THREADS ? a->thread_count : -1;
    if (thread >= 0) {
        a->threads[thread] = (program_thread){
            .process = (uint16_t)process,
            .command = (uint16_t)command,
            .host = (uint8_t)host,
            .priority = splitmix(&a->random) >> 1 | UINT64_C(1) << 62,
        };
        uint64_t seed = a->options.seed + 1;
        a->natures[thread] = (adversary){.state = splitmix(&seed) ^ (uint64_t)thread << 32, .card_lines = 1};
        for (int k = 0; k < ACTIONS; k++) a->natures[thread].rates[k] = a->options.rates[k];
        a->thread_count = thread + 1;
    }
    host_lock_release(&a->turns);
    return thread;
}

int turn_new_thread(int host, int command, int process) {
    const int thread = turn_number(host, command, process);
    if (thread >= 0) turn_begins(thread);
    return thread;
}

void turn_begins(int thread) {
    if (!host_lock_take(&area()->turns, LOCK_S)) return;
    area()->threads[thread].idle_steps = area()->wakes[thread] = 0;
    begins(thread);
    host_lock_release(&area()->turns);
}

static void count_steps(int thread, uint64_t steps) {
    program_area *a = area();
    a->threads[thread].steps += steps;
    a->clock_ns += steps * (a->idle > IDLE_BEFORE_TIME_RUNS ? IDLE_NS : STEP_NS);
    if (a->turn_count) a->taken[a->turn_count - 1].steps += (uint32_t)steps;
}

bool turn_enter(int thread) {
    uint32_t running = THREAD_RUNNING;
    const bool kept = atomic_compare_exchange_strong(state_of(thread), &running, THREAD_INSIDE);
    if (running == THREAD_OUTSIDE) pin(thread);
    return kept;
}

void turn_leave(int thread) {
    uint32_t inside = THREAD_INSIDE;
    atomic_compare_exchange_strong(state_of(thread), &inside, THREAD_RUNNING);
}

/* Whether a turn that is over goes on with a quiet step: no other thread could tell whether it came before this step. Not for
 * long, nor where the thread waits for others; and a script says itself where its turns end. */
static bool goes_on(int thread) {
    const program_area *a = area();
    const program_thread *t = &a->threads[thread];
    if (a->options.script_length || a->options.every || a->pages_hosts || t->idle_steps || a->wakes[thread])
        return false;
    return turn_alone(thread); /* threads of one host share its cache, and observe everything there */
}

uint64_t turn_left(int thread, bool quiet) {
    const program_area *a = area();
    return a->burst + (quiet && goes_on(thread) ? LATE_MOST - a->late : 0);
}

int64_t turn_goes_on(int thread, int64_t most, bool quiet) {
    program_area *a = area();
    if (*state_of(thread) != THREAD_INSIDE) return 0; /* the next one may change the burst */
    const uint64_t left = turn_left(thread, quiet), steps = left < (uint64_t)most ? left : (uint64_t)most,
                   of_burst = steps < a->burst ? steps : a->burst;
    a->burst -= of_burst, a->late += steps - of_burst;
    count_steps(thread, steps);
    return (int64_t)steps;
}

bool turn_take(int thread, bool quiet) {
    program_area *a = area();
    _Atomic uint32_t *state = state_of(thread);
    if (turn_goes_on(thread, 1, quiet)) return true;
    if (!host_lock_take(&a->turns, LOCK_S)) return false;
    if (*state != THREAD_CRASHED && *state != THREAD_ENDED) *state = THREAD_WAITING;
    const int next = pass_on();
    host_lock_release(&a->turns);
    if (next != thread) wake(next);
    await_turn(thread);
    if (*state != THREAD_INSIDE) return false;
    if (a->burst) a->burst--;
    a->late = 0;
    count_steps(thread, 1);
    return true;
}

void turn_progress(int thread, bool progress) {
    program_area *a = area();
    program_thread *t = &a->threads[thread];
    if (progress) {
        a->idle = t->idle_steps = 0;
        return;
    }
    a->idle++, t->idle_steps++;
    if (a->options.free_running) return;
    if (t->idle_steps % IDLE_ENDS_BURST == 0 && !a->scripted) a->burst = 0;
    if (t->idle_steps % IDLE_LOWERS == 0)
        t->priority = a->low--; /* let others go first, as they may have to make progress before it can */
    for (int k = 0; k < CHANGE_POINTS; k++)
        if (by_priority() && a->change_points[k] == a->steps) t->priority = a->low--;
}

void turn_give_up(int thread, uint64_t until_ns) {
    program_area *a = area();
    a->wakes[thread] = until_ns;
    if (!a->scripted) a->burst = 0;
    a->threads[thread].priority = a->low--;
}

void turn_stay_behind(int thread, uint64_t steps) {
    program_area *a = area();
    if (a->options.free_running) return; /* there are no turns */
    a->wakes[thread] = a->clock_ns + steps * STEP_NS;
    a->burst = 0;
}

void turn_without(int thread, enum thread_state state) {
    if (!host_lock_take(&area()->turns, LOCK_S)) return;
    *state_of(thread) = state;
    if (state == THREAD_OUTSIDE) unpin(thread);
    futex_wake(state_of(thread));
    for (int k = 0; k < area()->thread_count; k++)
        if (blocked(k) && has_come(k, &area()->awaits[k])) awaits_no_more(k, AWAITS_OVER);
    pass_on();
    /* A process that is gone may have passed the turn on without waking the thread that got it. */
    for (int k = 0; k < area()->thread_count; k++)
        if (*state_of(k) == THREAD_INSIDE) futex_wake(state_of(k));
    host_lock_release(&area()->turns);
}

void turn_crash(int host) {
    for (int k = 0; k < area()->thread_count; k++) {
        if (area()->threads[k].host != host || *state_of(k) == THREAD_ENDED) continue;
        *state_of(k) = THREAD_CRASHED;
        futex_wake(state_of(k));
    }
}

void turn_stop(enum outcome outcome, int except) {
    program_area *a = area();
    if (!host_lock_take(&a->turns, LOCK_S)) return;
    if (a->outcome == GOING_ON) a->outcome = (int32_t)outcome;
    for (int k = 0; k < a->thread_count; k++) {
        if (k == except || *state_of(k) == THREAD_ENDED || *state_of(k) == THREAD_NONE) continue;
        *state_of(k) = THREAD_CRASHED;
        futex_wake(state_of(k));
    }
    host_lock_release(&a->turns);
}
