#define _POSIX_C_SOURCE 200809L /* clock_gettime */

#include "search.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BETWEEN_PAUSES = 1 << 12, BETWEEN_LOOKS_AT_THE_CLOCK = 1 << 8 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool search_fail(search *s, enum trouble trouble) {
    if (s->trouble == NO_TROUBLE) s->trouble = trouble;
    return false;
}

int search_value(search *s, int64_t value) {
    for (int k = 0; k < s->value_count; k++)
        if (s->values[k] == value) return k;
    if (s->value_count > VALUES_MAX) {
        search_fail(s, TOO_MANY_VALUES);
        return -1;
    }
    s->values[s->value_count] = value;
    return s->value_count++;
}

/* -- where a thread is */

static node *at_node(search *s, thread *t, uint16_t number) {
    if (!t->nodes[number].known) {
        if (!s->expand(s, t, number)) {
            search_fail(s, INTERRUPTED);
            return NULL;
        }
        if (s->settling.on) settle_expanded(s, t, &t->nodes[number]);
    }
    return &t->nodes[number];
}

/* Return the node after one at which value number `seen` was seen; NO_NODE in trouble. */
static uint16_t after(search *s, thread *t, uint16_t number, uint8_t seen) {
    if (t->straight) return (uint16_t)(number + 1);
    const node *n = &t->nodes[number];
    uint16_t next = n->what != LOAD ? n->next : n->seen_next != NULL ? n->seen_next[seen] : NO_NODE;
    if (next == NO_NODE && s->follow(s, t, number, seen)) {
        n = &t->nodes[number];
        next = n->what == LOAD ? n->seen_next[seen] : n->next;
    }
    if (next == NO_NODE) search_fail(s, INTERRUPTED);
    return next;
}

static bool has_ended(search *s, const uint16_t *row, int t, const node **n) {
    *n = row[t] == CRASHED ? NULL : at_node(s, &s->threads[t], row[t] >> 1);
    return *n == NULL || (*n)->what == 0;
}

const node *search_node(search *s, const uint16_t *row, int t) {
    static const node NOWHERE = {.known = true};
    return row[t] == CRASHED ? &NOWHERE : at_node(s, &s->threads[t], row[t] >> 1);
}

/* Return the number of a step's action on its line, -1 in trouble. A stored value may come from a register. */
static int action_of(search *s, const thread *t, const node *n) {
    if (n->source < 0) return n->action;
    uint8_t value = (uint8_t)s->current[s->at_registers + n->source];
    line_action a = {.what = n->what, .host = t->host, .rank = t->rank, .word = n->word, .value = value};
    return table_action(&s->lines[n->line], a);
}

/* -- from the current state to the next ones */

bool search_note(search *s, move m) {
    trail *t = &s->trail;
    if (!t->follows) return true;
    if (t->count == t->capacity) {
        uint32_t more = 2 * t->capacity + 64;
        if (!table_grow(&t->moves, more, sizeof *t->moves)) return search_fail(s, NO_MEMORY);
        t->capacity = more;
    }
    t->moves[t->count++] = m;
    return true;
}

/* Make room for one more number in *array, at `count`. Return false without memory. */
static bool room_for(uint32_t **array, uint32_t count, uint32_t *capacity) {
    if (count < *capacity) return true;
    uint64_t more = (uint64_t)*capacity + *capacity / 2 + 1024;
    if (more > UINT32_MAX || !table_grow(array, more, sizeof **array)) return false;
    *capacity = (uint32_t)more;
    return true;
}

/* Note the first move to a state, on this line or on none. */
static bool note_first(search *s, int what, int who, int line, int age) {
    s->trail.count = s->trail.begin;
    bool made = false;
    if (line != NO_LINE) {
        const line_info *info = s->lines[line].info;
        made = info[s->next[s->at_lines + line]].pool != info[s->current[s->at_lines + line]].pool;
    }
    return search_note(s,
                       (move){(uint8_t)what, (uint8_t)who, made, (int8_t)age, (uint16_t)(line != NO_LINE ? line : 0)});
}

/* Keep the states that moves led to. Return false in trouble. */
static bool keep_arrived(search *s) {
    for (int k = 0; k < s->arrived_count; k++) rows_expect(&s->states, s->arrived[k]);
    for (int k = 0; k < s->arrived_count; k++) {
        bool fresh;
        uint32_t number = rows_add_root(&s->states, s->arrived[k], &fresh);
        if (number == NO_ROW || (fresh && !room_for(&s->parents, number, &s->parent_capacity)))
            return search_fail(s, NO_MEMORY);
        if (fresh) s->parents[number] = s->at;
        if (s->watch_ends && s->obliged[k]) {
            if (!room_for(&s->edges, s->edge_count, &s->edge_capacity)) return search_fail(s, NO_MEMORY);
            s->edges[s->edge_count++] = number;
        }
    }
    s->arrived_count = 0;
    return true;
}

/* Keep s->next, to which a move led, on this line or on none. `obliged`: the move happens at some time if no other move
 * does. Return false in trouble, and when a retrace has found its state. */
static bool arrive(search *s, int what, int who, int line, int age, bool obliged) {
    bool arrival = what == LAND || what == LAND_NT || what == EVICT;
    if (s->trail.follows && !note_first(s, what, who, line, age)) return false;
    s->transitions += !s->trail.follows;
    if (s->settling.on && !settle_state(s, arrival ? line : NO_LINE)) return false;
    if (s->trail.follows) {
        s->trail.found = memcmp(s->trail.to, s->next, s->states.width * sizeof *s->next) == 0;
        return !s->trail.found;
    }
    s->is_obliged |= obliged;
    if (s->arrived_count == ARRIVED_MAX && !keep_arrived(s)) return false;
    s->obliged[s->arrived_count] = obliged;
    return rows_root(&s->states, s->next, &s->arrived[s->arrived_count++]) || search_fail(s, NO_MEMORY);
}

/* Change a line in s->next by an action that has one result. Return false in trouble. */
bool search_change(search *s, int line, line_action a) {
    uint16_t *state = &s->next[s->at_lines + line];
    int number = table_action(&s->lines[line], a), count = 0;
    if (number < 0) return search_fail(s, NO_MEMORY);
    const successor *only = table_next(&s->lines[line], *state, (uint32_t)number, &count);
    if (count == 0) return search_fail(s, s->lines[line].trouble);
    *state = only->state;
    return true;
}

/* Let a thread go on in s->next. Retire its line where no thread of its host touches it any more: its copies no longer
 * matter. Return false in trouble. */
bool search_proceed(search *s, int t, uint16_t from, uint8_t seen, int line) {
    thread *self = &s->threads[t];
    uint16_t next = after(s, self, from, seen);
    if (next == NO_NODE) return false;
    s->next[t] = (uint16_t)(next << 1);
    if (!s->w.lazy || s->reduction == NULL || line == NO_LINE || next != self->last[line]) return true;
    for (int u = 0; u < s->thread_count; u++)
        if (s->threads[u].host == self->host && s->next[u] >> 1 < s->threads[u].last[line]) return true;
    return search_change(s, line, (line_action){.what = RETIRE, .host = self->host});
}

static bool fence(search *s, int t, uint16_t at) {
    const thread *self = &s->threads[t];
    for (int line = 0; line < s->line_count; line++)
        if (s->lines[line].info[s->current[s->at_lines + line]].holds_fence >> self->rank & 1)
            return true; /* not yet */
    for (int line = 0; line < s->line_count; line++)
        if (s->lines[line].info[s->current[s->at_lines + line]].meets_fence >> self->rank & 1)
            if (!search_change(s, line, (line_action){.what = FENCE, .host = self->host, .rank = self->rank}))
                return false;
    return search_proceed(s, t, at, 0, NO_LINE) && arrive(s, STORE, t, NO_LINE, NO_CHOICE, true);
}

static bool crash(search *s, int t) {
    uint8_t host = s->threads[t].host;
    for (int line = 0; line < s->line_count; line++)
        if (!search_change(s, line, (line_action){.what = CRASH, .host = host})) return false;
    for (int u = 0; u < s->thread_count; u++)
        if (s->threads[u].host == host) s->next[u] = CRASHED;
    return arrive(s, STORE, t, NO_LINE, NO_CHOICE, true);
}

/* Make the first half of an INVALIDATE or a WAIT, which is a flush. */
static bool begin(search *s, int t, const node *n) {
    int count;
    uint16_t *state = &s->next[s->at_lines + n->line];
    const successor *only = table_next(&s->lines[n->line], *state, (uint32_t)n->flush, &count);
    if (count == 0) return search_fail(s, s->lines[n->line].trouble);
    *state = only->state;
    s->next[t] |= 1;
    if (s->settling.on && !settle_begun(s, t, n->line)) return false;
    return arrive(s, STORE, t, n->line, NO_CHOICE, true);
}

static bool wait_again(search *s, int t, const node *n) {
    int count;
    uint16_t *state = &s->next[s->at_lines + n->line];
    const successor *only = table_next(&s->lines[n->line], *state, (uint32_t)n->again, &count);
    if (count == 0) return s->lines[n->line].trouble == NO_TROUBLE || search_fail(s, s->lines[n->line].trouble);
    *state = only->state;
    return arrive(s, AGAIN, t, n->line, NO_CHOICE, true);
}

/* Make a step on a line, once for each of its results. Return as `arrive` does. */
static bool access(search *s, int t, uint16_t at, const node *n) {
    if (two_moves(n->what) && !(s->current[t] & 1)) return begin(s, t, n);
    uint16_t line = n->line;
    bool loads = n->what == LOAD, waits = n->what == WAIT; /* kept, as n is not valid after the thread has proceeded */
    uint16_t *into = loads && n->reg >= 0 ? &s->next[s->at_registers + n->reg] : NULL;
    if (loads && n->expect >= 0 && s->w.lazy && s->checked_reads) { /* `complains` has checked all its values */
        if (into != NULL) *into = (uint16_t)n->expect;
        return search_proceed(s, t, at, (uint8_t)n->expect, line) && arrive(s, STORE, t, line, NO_CHOICE, true);
    }
    int number = action_of(s, &s->threads[t], n), count = 0;
    if (number < 0) return search_fail(s, NO_MEMORY);
    successor found[CHOICES_MAX]; /* a copy, as the table's successors may move */
    const successor *known = table_next(&s->lines[line], s->current[s->at_lines + line], (uint32_t)number, &count);
    if (s->lines[line].trouble != NO_TROUBLE) return search_fail(s, s->lines[line].trouble);
    if (count == 0) return !waits || wait_again(s, t, n);
    memcpy(found, known, (size_t)count * sizeof *found);
    int obliging = found[0].age == COPY ? 0 : count - 1; /* the oldest copy: seeing another one takes a prefetch */
    for (int k = 0; k < count; k++) {
        memcpy(s->next, s->current, s->states.width * sizeof *s->next);
        s->next[s->at_lines + line] = found[k].state;
        if (into != NULL) *into = found[k].seen;
        bool obliged = waits && s->w.lazy ? found[k].age <= 0 && found[k].age != COPY : k == obliging;
        if (!search_proceed(s, t, at, found[k].seen, line) || !arrive(s, STORE, t, line, found[k].age, obliged))
            return false;
    }
    return true;
}

static bool step(search *s, int t) {
    const node *n;
    if (has_ended(s, s->current, t, &n)) return s->trouble == NO_TROUBLE;
    uint16_t at = s->current[t] >> 1;
    memcpy(s->next, s->current, s->states.width * sizeof *s->next);
    uint16_t bit = (uint16_t)(1u << n->event % 16), *events = &s->next[s->at_events + n->event / 16];
    switch (n->what) {
    case FENCE: return fence(s, t, at);
    case CRASH: return crash(s, t);
    case AWAIT:
        return !(*events & bit) ||
               (search_proceed(s, t, at, 0, NO_LINE) && arrive(s, STORE, t, NO_LINE, NO_CHOICE, true));
    case RECORD:
        *events |= bit;
        return search_proceed(s, t, at, 0, NO_LINE) && arrive(s, STORE, t, NO_LINE, NO_CHOICE, true);
    default: return access(s, t, at, n);
    }
}

static bool by_nature(search *s, int line, int number) {
    line_table *table = &s->lines[line];
    line_action a = table->actions[number];
    int count;
    const successor *only = table_next(table, s->current[s->at_lines + line], (uint32_t)number, &count);
    if (count == 0) return search_fail(s, table->trouble);
    memcpy(s->next, s->current, s->states.width * sizeof *s->next);
    s->next[s->at_lines + line] = only->state;
    bool obliged = a.what == LAND || a.what == LAND_NT || a.what == DROPPED;
    return arrive(s, a.what, a.what == LAND_NT ? a.rank : a.host, line, NO_CHOICE, obliged);
}

/* -- findings in a state */

/* Return whether a thread fails here, or may see a value other than the expected one; s->finding describes it. */
static bool complains(search *s, int t) {
    const node *n;
    if (has_ended(s, s->current, t, &n)) return false;
    int age = NO_CHOICE;
    if (n->what != FAIL) {
        if (n->what != LOAD || n->expect < 0) return false;
        int count, k = 0;
        const successor *seen = table_next(&s->lines[n->line], s->current[s->at_lines + n->line], (uint32_t)n->peek,
                                           &count);
        while (k < count && seen[k].seen == n->expect) k++;
        if (k == count) return false;
        age = seen[k].age;
    }
    s->finding = n->what == FAIL ? ASSERTION : UNEXPECTED;
    s->finding_thread = t;
    s->finding_line = n->line;
    s->finding_age = age;
    s->finding_state = s->at;
    return true;
}

/* Return whether all threads have ended and no store is under way. */
static bool is_end(search *s) {
    const node *n;
    for (int t = 0; t < s->thread_count; t++)
        if (!has_ended(s, s->current, t, &n)) return false;
    for (int line = 0; line < s->line_count; line++) {
        const line_info *info = &s->lines[line].info[s->current[s->at_lines + line]];
        if (info->posted | info->stored_nt) return false;
    }
    return true;
}

static bool note_end(search *s) {
    bool fresh;
    memcpy(s->next, s->current, s->states.width * sizeof *s->next);
    for (int line = 0; line < s->line_count; line++)
        s->next[s->at_lines + line] = s->lines[line].info[s->current[s->at_lines + line]].pool;
    memset(s->next + s->at_events, 0, (s->states.width - (size_t)s->at_events) * sizeof *s->next);
    uint32_t number = rows_add(&s->outcomes, s->next, &fresh);
    if (number == NO_ROW || (fresh && !table_grow(&s->outcome_states, number + 1, sizeof *s->outcome_states)))
        return search_fail(s, NO_MEMORY);
    if (fresh) s->outcome_states[number] = s->at;
    if (s->watch_ends) {
        if (s->end_count % 1024 == 0 && !table_grow(&s->ends, s->end_count + 1024, sizeof *s->ends))
            return search_fail(s, NO_MEMORY);
        s->ends[s->end_count++] = s->at;
    }
    return true;
}

static void stuck(search *s, enum finding finding, uint32_t state) {
    const node *n;
    rows_get(&s->states, state, s->current);
    s->finding = finding;
    s->finding_state = state;
    s->finding_age = NO_CHOICE;
    s->finding_thread = 0;
    while (s->finding_thread < s->thread_count - 1 && has_ended(s, s->current, s->finding_thread, &n))
        s->finding_thread++;
}

/* Make all moves of these hosts' threads and caches. Return as `arrive` does. */
static bool expand_hosts(search *s, host_set hosts) {
    for (int t = 0; t < s->thread_count; t++)
        if ((hosts >> s->threads[t].host & 1) && !step(s, t)) return false;
    for (int line = 0; line < s->line_count; line++) {
        const line_table *table = &s->lines[line];
        uint64_t nature = table->info[s->current[s->at_lines + line]].nature;
        for (int number = 0; nature != 0; number++, nature >>= 1)
            if ((nature & 1) && (hosts >> table->actions[number].host & 1) && !by_nature(s, line, number)) return false;
    }
    return true;
}

/* Make all moves from s->current, or those that suffice. Return as `arrive` does. */
static bool expand(search *s) {
    chosen_move only = s->reduction != NULL ? reduction_choose(s) : (chosen_move){-1, -1, -1, ALL_HOSTS};
    if (only.thread >= 0) return step(s, only.thread);
    if (only.line >= 0) return by_nature(s, only.line, only.nature);
    if (!expand_hosts(s, only.hosts)) return false;
    if (only.hosts != ALL_HOSTS && s->is_obliged) return true;
    s->is_whole = true;
    return expand_hosts(s, (host_set)~only.hosts);
}

/* Visit a state. Return false when the search is over: with a finding, or in trouble. */
static bool look_at(search *s, uint32_t state) {
    s->at = state;
    s->is_obliged = s->is_whole = false;
    if (s->watch_ends) {
        if (!room_for(&s->first_edges, state, &s->first_edge_capacity)) return search_fail(s, NO_MEMORY);
        s->first_edges[state] = s->edge_count;
    }
    rows_get(&s->states, state, s->current);
    for (int t = 0; t < s->thread_count; t++)
        if (complains(s, t)) return false;
    bool end = is_end(s);
    if ((end && !note_end(s)) || !expand(s) || !keep_arrived(s)) return false;
    if (s->is_whole && !end && !s->is_obliged && s->finding == NO_FINDING) stuck(s, DEADLOCK, state);
    return s->finding == NO_FINDING || s->past_hangs;
}

/* -- a state from which no end is reached without nature's help */

/* Mark the states that reach an end, from the last to the first, until a pass marks no more: few passes, as most edges
 * lead to later states. Report the first state that is left as a LIVELOCK. Return false without memory. */
static bool find_endless(search *s) {
    uint32_t states = s->states.count;
    bool *reaches = calloc(states, sizeof *reaches);
    if (reaches == NULL || !room_for(&s->first_edges, states, &s->first_edge_capacity)) {
        free(reaches);
        return search_fail(s, NO_MEMORY);
    }
    s->first_edges[states] = s->edge_count;
    for (uint32_t k = 0; k < s->end_count; k++) reaches[s->ends[k]] = true;
    for (bool more = true; more;) {
        more = false;
        for (uint32_t k = states; k-- > 0;) {
            for (uint32_t e = s->first_edges[k]; !reaches[k] && e < s->first_edges[k + 1]; e++)
                if (reaches[s->edges[e]]) more = reaches[k] = true;
        }
    }
    for (uint32_t k = 0; k < states && s->finding == NO_FINDING; k++)
        if (!reaches[k]) stuck(s, LIVELOCK, k);
    free(reaches);
    return true;
}

/* -- the search */

static uint64_t bytes(const search *s) {
    uint64_t sum = rows_bytes(&s->states) + rows_bytes(&s->outcomes);
    sum += ((uint64_t)s->edge_capacity + s->first_edge_capacity + s->parent_capacity) * sizeof(uint32_t);
    for (int line = 0; line < s->line_count; line++) sum += table_bytes(&s->lines[line]);
    return sum;
}

/* Retire each host's lines that none of its threads touches, as it needs no copies of them. Return false in trouble. */
static bool retire_untouched(search *s) {
    for (int line = 0; line < s->line_count; line++) {
        unsigned touching = 0;
        for (int t = 0; t < s->thread_count; t++)
            touching |= (unsigned)(s->threads[t].last[line] > 0) << s->threads[t].host;
        for (uint8_t host = 0; host < s->w.hosts; host++)
            if (!(touching >> host & 1) && !search_change(s, line, (line_action){.what = RETIRE, .host = host}))
                return false;
    }
    memcpy(s->current, s->next, s->states.width * sizeof *s->current);
    return true;
}

/* Go from the first state to the one that is kept first, in s->next. Return false in trouble. */
static bool set_out(search *s) {
    memcpy(s->current, s->first, s->states.width * sizeof *s->next);
    memcpy(s->next, s->first, s->states.width * sizeof *s->next);
    if (s->w.lazy && s->reduction != NULL && !retire_untouched(s)) return false;
    return !s->settling.on || settle_first(s);
}

static enum stopped run(search *s, budget b, double began) {
    bool fresh;
    s->arrived_count = 0;
    if (!set_out(s)) return IN_TROUBLE;
    if (rows_add(&s->states, s->next, &fresh) == NO_ROW) return search_fail(s, NO_MEMORY) ? EXHAUSTED : IN_TROUBLE;
    for (uint32_t state = 0; state < s->states.count; state++) {
        if (!look_at(s, state))
            return s->trouble == NO_TROUBLE && !s->settling.wrong && s->finding != NO_FINDING ? FOUND : IN_TROUBLE;
        if (s->states.count > b.states_max) return STATES_SPENT;
        if (state % BETWEEN_LOOKS_AT_THE_CLOCK == 0) {
            if (now() - began > b.seconds_max) return SECONDS_SPENT;
            if (bytes(s) > b.bytes_max) return BYTES_SPENT;
        }
        if (state % BETWEEN_PAUSES == 0 && !s->pause(s)) return search_fail(s, INTERRUPTED) ? EXHAUSTED : IN_TROUBLE;
    }
    if (s->watch_ends && s->finding == NO_FINDING && !find_endless(s)) return IN_TROUBLE;
    return s->finding == NO_FINDING ? EXHAUSTED : FOUND;
}

enum stopped search_run(search *s, budget b) {
    double began = now();
    memcpy(s->first, s->current, s->states.width * sizeof *s->next);
    for (;;) {
        enum stopped stopped = run(s, b, began);
        s->bytes_most = bytes(s) > s->bytes_most ? bytes(s) : s->bytes_most;
        if (stopped != IN_TROUBLE || !s->settling.wrong || s->trouble != NO_TROUBLE) return stopped;
        rows_clear(&s->states);
        rows_clear(&s->outcomes);
        s->edge_count = s->end_count = 0;
        s->finding = NO_FINDING;
        settle_again(s);
    }
}

bool search_retrace(search *s, uint32_t state) {
    trail *t = &s->trail;
    uint32_t length = 0, *way = NULL;
    for (uint32_t at = state; at != 0; at = s->parents[at]) length++;
    if (!table_grow(&way, (size_t)length + 1, sizeof *way)) return false;
    for (uint32_t k = length, at = state; k > 0; at = s->parents[at]) way[--k] = at;
    for (int line = 0; line < s->line_count; line++) s->lines[line].trouble = NO_TROUBLE; /* it came after this state */
    enum trouble trouble = s->trouble;
    s->trouble = NO_TROUBLE;
    s->settling.wrong = false;
    t->count = 0;
    t->follows = true;
    bool fine = set_out(s);
    for (uint32_t k = 0; fine && k < length; k++) {
        s->at = k == 0 ? 0 : way[k - 1];
        t->begin = t->count;
        rows_get(&s->states, way[k], t->to);
        t->found = s->is_obliged = false;
        rows_get(&s->states, s->at, s->current);
        expand(s);
        fine = t->found;
    }
    t->follows = false;
    s->trouble = trouble;
    free(way);
    return fine;
}
