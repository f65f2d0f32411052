/* One line of the pool, as all hosts together see it. That is the whole memory model, because nothing but program order and
 * fences ties lines together. A step of a program or of nature takes a line from one state to others: line.c says to which.
 *
 * The model can be read in two ways. *Literal*: a line is absent from a cache or present, and nature prefetches and drops
 * it (faults/machine/steps.py, move for move). *Lazy*: clean copies that nature makes are not followed; instead a load
 * chooses, when it looks, any version of the line that a copy could hold.
 */
#ifndef CXLEMU_LINE_H
#define CXLEMU_LINE_H

#include <stdbool.h>
#include <stdint.h>

enum { WORDS_MAX = 8, HOSTS_MAX = 8, RANKS_MAX = 8, POSTED_MAX = 8, NT_MAX = 8, VERSIONS_MAX = 32 };
enum { CHOICES_MAX = VERSIONS_MAX + 1 };

typedef uint8_t content[WORDS_MAX]; /* what a line holds: the number of each word's value */
typedef uint8_t rank_set;
typedef uint8_t host_set;

/* Actions on a line. Those of programs have the numbers of faults/machine/program.py. */
enum what {
    STORE = 1,
    STORE_NT,
    FLUSH,
    FLUSH_KEEP,
    FENCE,
    INVALIDATE, /* the second half of one; the first is a FLUSH, as a WAIT's is */
    LOAD,
    SIGNAL,
    WAIT, /* the second half of one */
    RECORD,
    AWAIT,
    CRASH,
    FAIL,
    PEEK, /* find all that a LOAD could see, and change nothing */
    RETIRE, /* a host will not look at the line again before it has flushed and fenced it */
    AGAIN,
    LAND,
    LAND_NT,
    DROPPED,
    EVICT,
    DROP,
    PREFETCH,
    LOSE,
    RENEW, /* forget what a copy of the line could hold: a host sees only the newest version from here on */
    RENEW_FRESH, /* the same, for a line that its host has not looked at since it was renewed */
};

typedef struct {
    uint8_t what;
    uint8_t host, rank; /* whose action it is */
    uint8_t word; /* in the line */
    uint8_t value; /* the value's number */
} line_action;

enum presence { ABSENT, CLEAN, DIRTY }; /* lazy: a CLEAN copy is one that a load has seen */

typedef struct {
    content data;
    rank_set ranks; /* the ranks whose fences wait for it */
} write_back;

typedef struct {
    uint8_t presence;
    content data;
    rank_set dropping; /* the ranks whose flushes have yet to drop the copy */
    bool fresh; /* lazy: renewed and not looked at since, so that there is no copy unless nature fetched one */
    uint8_t floor; /* lazy: the oldest version that a copy which nature fetched can hold */
    uint8_t posted_count;
    write_back posted[POSTED_MAX]; /* oldest first */
} cached_line;

typedef struct {
    uint8_t count;
    uint8_t word[NT_MAX], value[NT_MAX]; /* oldest first */
    uint8_t flushed_at; /* lazy: the rank's flush drops copies of versions before this one */
} rank_line;

typedef struct {
    host_set away; /* hosts that crashed or retired: what copy they have does not matter */
    host_set crashed;
    uint8_t versions; /* literal: always 1 */
    content version[VERSIONS_MAX]; /* what the pool's line has held, and last what it holds now */
    cached_line host[HOSTS_MAX];
    rank_line rank[RANKS_MAX];
} line_state;

typedef struct {
    uint8_t hosts, ranks;
    uint8_t host_of[RANKS_MAX];
    bool lazy;
    const int64_t *values; /* by number */
} world;

typedef struct {
    line_state state;
    uint8_t seen; /* the number of the value that LOAD, PEEK or WAIT sees */
    int8_t age; /* lazy: how old the chosen version is, 0 the newest; or COPY, NO_CHOICE or OWN */
} line_result;

enum { COPY = -1 /* seen before */, NO_CHOICE = -2 /* the last write-back */, OWN = -3 /* dirty */ };
enum {
    TOO_MUCH = -1
}; /* not a number of results: there are more versions, write-backs or stores than there is room for */

/* Find the states that an action leads to, and return how many: 0 where it is not possible, or TOO_MUCH. `out` has room for
 * CHOICES_MAX. */
int line_apply(const world *w, const line_state *s, line_action a, line_result *out);

/* The hosts and ranks for which a state differs in something that a search asks for. */
host_set line_away(const line_state *s);
host_set line_dirty(const world *w, const line_state *s);
host_set line_posted(const world *w, const line_state *s);
rank_set line_stored_nt(const world *w, const line_state *s);
rank_set line_holds_fence(const world *w, const line_state *s); /* ranks whose fences have to wait */
rank_set line_meets_fence(const world *w, const line_state *s); /* ranks whose fences change the state */

#endif
