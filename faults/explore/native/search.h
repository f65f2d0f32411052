/* Every state of a program, breadth first: threads that step, lines that change, and who came from where. */
#ifndef CXLEMU_SEARCH_H
#define CXLEMU_SEARCH_H

#include "rows.h"
#include "table.h"

enum { THREADS_MAX = 32, LINES_MAX = 1024, REGISTERS_MAX = 64, EVENTS_MAX = 1024, NODES_MAX = 0x7FF0 };
enum { VALUES_MAX = 255, CRASHED = 0xFFFF, NO_NODE = 0xFFFF };

/* A thread at a node. */
typedef struct {
    uint8_t what; /* 0: it has ended */
    bool known;
    uint8_t word, value; /* in its line; a value's number */
    int16_t reg, source; /* -1: none */
    int16_t expect; /* a value's number; -1: any */
    uint16_t line, event;
    int32_t flush, action, again, peek; /* on the line, by number; `action` of a stored register is not known before */
    uint16_t next; /* node, if it does not depend on what was seen */
    uint16_t *seen_next; /* [value's number]: node, for a LOAD of a thread that is not straight */
    int64_t name; /* what the outside calls the node */
    uint64_t live; /* settle.c: lines that may be looked at from here on without being flushed before */
} node;

typedef struct {
    uint8_t host, rank;
    bool straight;
    node *nodes;
    uint32_t node_count, node_capacity;
    uint16_t *last; /* straight, [line]: 1 + the last node that touches it */
    void *outside; /* for expand and follow */
} thread;

/* A move, as the outside is told of it. */
typedef struct {
    uint8_t what, who; /* a thread for STORE (any step) and AGAIN, a rank for LAND_NT, else a host */
    bool made; /* a version: the pool's line changed */
    int8_t age; /* of the version that was chosen */
    uint16_t line;
} move;

/* The moves that lead to a state, worked out again from the states on the way: only those are kept. */
typedef struct {
    move *moves;
    uint32_t count, capacity;
    bool follows, found;
    uint16_t *to; /* the state that is looked for */
    uint32_t begin; /* where the moves from its parent begin */
} trail;

typedef struct {
    uint64_t states_max, bytes_max;
    double seconds_max;
} budget;

enum finding { NO_FINDING, ASSERTION, UNEXPECTED, DEADLOCK, LIVELOCK };
enum stopped { EXHAUSTED, FOUND, STATES_SPENT, BYTES_SPENT, SECONDS_SPENT, IN_TROUBLE };

/* Which moves suffice (reduce.c). */
typedef struct {
    int thread; /* this one's, if not -1 */
    int line, nature; /* else this one of nature's, if not -1; else all */
} chosen_move;

static const chosen_move ALL_MOVES = {-1, -1, -1};

typedef struct reduction reduction;

enum { FORGETTING = 3 }; /* ways to forget: RETIRE, RENEW, RENEW_FRESH */

/* What settle.c takes for granted until the search meets the opposite, and then begins again. */
typedef struct {
    bool on;
    host_set alone; /* hosts of one thread, which has a rank of its own */
    uint8_t thread_of[HOSTS_MAX]; /* of hosts that are alone */
    host_set writers[LINES_MAX]; /* hosts that store to a line, as far as is known */
    host_set trusting[LINES_MAX]; /* hosts that were taken for a line's only writer */
    int32_t (*numbers)[HOSTS_MAX][FORGETTING]; /* [line]: of actions on it, of hosts that are alone */
    bool wrong; /* something was taken for granted that is not so */
    uint32_t rounds;
} settling;

typedef struct search search;
struct search {
    world w;
    int64_t values[VALUES_MAX + 1];
    int value_count;
    bool checked_reads;
    bool past_hangs; /* go on after a deadlock; it is the finding if there is no other */
    bool straight; /* all threads are, and nobody crashes */
    bool watch_ends; /* look for a state from which there is none */
    thread threads[THREADS_MAX];
    line_table *lines;
    int64_t (*initial)[WORDS_MAX]; /* [line] */
    int thread_count, line_count;
    int at_lines, at_registers, at_events; /* in a row, after the threads: node * 2 + whether its step has begun */
    row_set states, outcomes;
    uint32_t *parents; /* the state that first led to a state */
    uint32_t parent_capacity;
    trail trail;
    settling settling;
    uint16_t *first; /* the state before anything has happened */
    uint32_t *outcome_states; /* where each outcome was first seen */
    uint32_t *edges; /* where threads and arrivals lead, state by state, if ends are watched */
    uint32_t *first_edges; /* of each state that was looked at */
    uint32_t edge_count, edge_capacity, first_edge_capacity;
    uint32_t *ends;
    uint32_t end_count;
    uint64_t transitions;
    uint32_t at; /* the state that is looked at */
    uint16_t *current, *next;
    bool is_obliged, is_whole; /* something will happen there; all moves were tried */
    uint64_t bytes_most;
    enum finding finding;
    int finding_thread, finding_line, finding_age; /* the version that is seen there */
    uint32_t finding_state;
    enum trouble trouble;
    reduction *reduction;
    /* The outside, called without Python's lock: fill in a node, or which follows; stop here? False to stop. */
    bool (*expand)(search *, thread *, uint16_t node);
    bool (*follow)(search *, thread *, uint16_t node, uint8_t seen);
    bool (*pause)(search *);
    void *outside;
};

/* `current` is the first state. */
enum stopped search_run(search *s, budget b);
int search_value(search *s, int64_t value); /* its number, -1 in trouble */
bool search_retrace(search *s, uint32_t state); /* the moves that lead there, in `trail` */

/* Of s->next: */
bool search_fail(search *s, enum trouble trouble);
const node *search_node(search *s, const uint16_t *row,
                        int t); /* NULL in trouble; `what` is 0 if it has ended or crashed */
bool search_change(search *s, int line, line_action a); /* by an action that has one result */
bool search_proceed(search *s, int t, uint16_t from, uint8_t seen, int line);
bool search_note(search *s, move m);

bool settle_begin(search *s); /* false without memory */
void settle_end(search *s);
void settle_again(search *s); /* what was learned is taken into account */
void settle_expanded(search *s, const thread *t, const node *n);
bool settle_begun(search *s, int t, int line); /* a thread has flushed a line, and will fence it */
bool settle_first(search *s); /* s->next is the first state */
bool settle_state(search *s, int line); /* s->next; the pool's content of `line` may have changed if it is not -1 */

reduction *reduction_begin(const search *s); /* of straight threads whose nodes are all known; NULL without memory */
void reduction_end(reduction *r);
chosen_move reduction_choose(search *s);

static inline bool two_moves(uint8_t what) { return what == INVALIDATE || what == WAIT; }

#endif
