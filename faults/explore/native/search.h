/* Visits every state of a program, breadth first: threads step, lines change, and each state knows the one that led to it. */
#ifndef CXLEMU_SEARCH_H
#define CXLEMU_SEARCH_H

#include "rows.h"
#include "table.h"

enum { THREADS_MAX = 32, LINES_MAX = 1024, REGISTERS_MAX = 64, EVENTS_MAX = 1024, NODES_MAX = 0x7FF0 };
enum { VALUES_MAX = 255, CRASHED = 0xFFFF, NO_NODE = 0xFFFF };
enum { ARRIVED_MAX = 32 };
enum { NO_LINE = -1 }; /* of a step that touches no line */
enum { ALL_HOSTS = 0xFF };

/* A thread at a node. */
typedef struct {
    uint8_t what; /* 0: it has ended */
    bool known;
    uint8_t word, value; /* its place in the line; the value's number */
    int16_t reg, source; /* -1: none */
    int16_t expect; /* the value's number; -1: any value */
    uint16_t line, event;
    /* numbers of actions on the line; `action` of a stored register is known only later */
    int32_t flush, action, again, peek;
    uint16_t next; /* the next node, if it does not depend on what was seen */
    uint16_t *seen_next; /* by value's number: the next node of a LOAD, in a thread that is not straight */
    int64_t name; /* the caller's name for the node */
    uint64_t live; /* settle.c: the lines that may be looked at from here on without a flush before */
} node;

typedef struct {
    uint8_t host, rank;
    bool straight;
    node *nodes;
    uint32_t node_count, node_capacity;
    uint16_t *last; /* straight: by line, 1 + the last node that touches it */
    void *outside; /* the caller's, for expand and follow */
} thread;

/* A move, as callers see it. */
typedef struct {
    uint8_t what, who; /* a thread for STORE (any step) and AGAIN, a rank for LAND_NT, else a host */
    bool made; /* whether it made a version: the pool's line changed */
    int8_t age; /* how old the chosen version is, as in line_result */
    uint16_t line;
} move;

/* The moves that lead to a state. A search keeps only states, so the moves between them are found again. */
typedef struct {
    move *moves;
    uint32_t count, capacity;
    bool follows, found;
    uint16_t *to; /* the state to find */
    uint32_t begin; /* where the moves from its parent begin */
} trail;

typedef struct {
    uint64_t states_max, bytes_max;
    double seconds_max;
} budget;

enum finding { NO_FINDING, ASSERTION, UNEXPECTED, DEADLOCK, LIVELOCK };
enum stopped { EXHAUSTED, FOUND, STATES_SPENT, BYTES_SPENT, SECONDS_SPENT, IN_TROUBLE };

/* Which moves from a state suffice (reduce.c). */
typedef struct {
    int thread; /* the step of this thread, if it is not -1 */
    int line, nature; /* else this move of nature, if it is not -1 */
    host_set hosts; /* else all moves of these hosts, or of all hosts where none of these must happen */
} chosen_move;

typedef struct reduction reduction;

enum { FORGETTING = 3 }; /* ways to forget: RETIRE, RENEW, RENEW_FRESH */

/* What settle.c takes for granted. Where the search meets the opposite, it begins again. */
typedef struct {
    bool on;
    host_set alone; /* hosts of one thread, which has a rank of its own */
    uint8_t thread_of[HOSTS_MAX]; /* the thread of a host that is alone */
    host_set writers[LINES_MAX]; /* hosts that are known to store to a line */
    host_set trusting[LINES_MAX]; /* hosts that were taken for a line's only writer */
    int32_t (*numbers)[HOSTS_MAX][FORGETTING]; /* by line: the numbers of these actions, for hosts that are alone */
    bool wrong; /* whether anything that was taken for granted is not so */
    bool cut; /* whether a chain of free steps was too long, so that states are kept in which steps are free */
    uint32_t rounds;
} settling;

typedef struct search search;
struct search {
    world w;
    int64_t values[VALUES_MAX + 1];
    int value_count;
    bool checked_reads;
    bool past_hangs; /* go on after a deadlock; it is the finding if there is no other */
    bool straight; /* all threads are straight, and no host crashes */
    bool watch_ends; /* look for a state from which no end can be reached */
    thread threads[THREADS_MAX];
    line_table *lines;
    int64_t (*initial)[WORDS_MAX]; /* [line] */
    int thread_count, line_count;
    /* A row begins with the threads, each of them node * 2 + whether the node's step has begun. Then come: */
    int at_lines, at_registers, at_events;
    row_set states, outcomes;
    uint32_t *parents; /* by state: the state that first led to it */
    uint32_t parent_capacity;
    trail trail;
    settling settling;
    uint16_t *first; /* the state before anything has happened */
    uint32_t *outcome_states; /* by outcome: the state in which it was first seen */
    uint32_t *edges; /* if ends are watched: where threads and arrivals lead, state after state */
    uint32_t *first_edges; /* by state that was looked at: its first edge */
    uint32_t edge_count, edge_capacity, first_edge_capacity;
    uint32_t *ends;
    uint32_t end_count;
    uint64_t transitions;
    uint64_t arrived[ARRIVED_MAX]; /* roots of the states that moves from `at` led to, which are not yet kept */
    bool obliged[ARRIVED_MAX]; /* whether these moves happen at some time */
    int arrived_count;
    uint32_t at; /* the state that is looked at */
    uint16_t *current, *next;
    bool is_obliged, is_whole; /* whether something must happen in it; whether all moves from it were tried */
    uint64_t bytes_most;
    enum finding finding;
    int finding_thread, finding_line, finding_age; /* age: of the version that is seen there */
    uint32_t finding_state;
    enum trouble trouble;
    reduction *reduction;
    /* The caller's, called without Python's lock: fill in a node; find the node that follows; look for Ctrl-C. False stops the
     * search. */
    bool (*expand)(search *, thread *, uint16_t node);
    bool (*follow)(search *, thread *, uint16_t node, uint8_t seen);
    bool (*pause)(search *);
    void *outside;
};

/* Search from the state in `current`. */
enum stopped search_run(search *s, budget b);
int search_value(search *s, int64_t value); /* returns a value's number, -1 in trouble */
bool search_retrace(search *s, uint32_t state); /* find the moves that lead to a state, in `trail` */

/* These work on s->next. */
bool search_fail(search *s, enum trouble trouble);
const node *search_node(search *s, const uint16_t *row,
                        int t); /* NULL in trouble; `what` is 0 if it has ended or crashed */
bool search_change(search *s, int line, line_action a); /* change a line by an action that has one result */
bool search_proceed(search *s, int t, uint16_t from, uint8_t seen, int line);
bool search_note(search *s, move m);

bool settle_begin(search *s); /* false without memory */
void settle_end(search *s);
void settle_again(search *s); /* begin again, with what was learned */
void settle_expanded(search *s, const thread *t, const node *n);
bool settle_begun(search *s, int t, int line); /* for a thread that has flushed a line, and will fence it */
bool settle_first(search *s); /* for the first state, in s->next */
bool settle_state(search *s,
                  int line); /* for s->next, where what the pool holds of `line`, if not NO_LINE, may have changed */

reduction *reduction_begin(const search *s); /* for straight threads whose nodes are all known; NULL without memory */
void reduction_end(reduction *r);
chosen_move reduction_choose(search *s);

static inline bool two_moves(uint8_t what) { return what == INVALIDATE || what == WAIT; }

#endif
