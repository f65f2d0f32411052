/* One line of the pool, as all hosts together see it: the whole memory model, for only program order and fences tie
 * lines together. A step of a program or of nature takes a line from one state to others; which, line.c says.
 *
 * Two readings of the same model. *Literal*: a line is absent from a cache or present, and nature prefetches and drops
 * it (faults/machine/steps.py, move for move). *Lazy*: nature's clean copies are not followed; a load may see any
 * version of the line that a copy could be, and chooses when it looks.
 */
#ifndef CXLEMU_LINE_H
#define CXLEMU_LINE_H

#include <stdbool.h>
#include <stdint.h>

enum { WORDS_MAX = 8, HOSTS_MAX = 8, RANKS_MAX = 8, POSTED_MAX = 8, NT_MAX = 8, VERSIONS_MAX = 32 };
enum { CHOICES_MAX = VERSIONS_MAX + 1 };

typedef uint8_t content[WORDS_MAX]; /* of a line: the numbers of its words' values */
typedef uint8_t rank_set;
typedef uint8_t host_set;

/* Those of programs have the numbers of faults/machine/program.py. */
enum what {
    STORE = 1,
    STORE_NT,
    FLUSH,
    FLUSH_KEEP,
    FENCE,
    INVALIDATE, /* its second half: the first is a FLUSH, as a WAIT's is */
    LOAD,
    SIGNAL,
    WAIT, /* its second half */
    RECORD,
    AWAIT,
    CRASH,
    FAIL,
    PEEK, /* a LOAD of which all that it could see is looked at, and nothing changes */
    RETIRE, /* a host will not look at the line again before it has flushed and fenced it */
    AGAIN,
    LAND,
    LAND_NT,
    DROPPED,
    EVICT,
    DROP,
    PREFETCH,
    LOSE,
    RENEW, /* what a copy of the line could be is out of date: a host may see the newest version only */
    RENEW_FRESH, /* the same, of a line that has not been looked at since it was renewed */
};

typedef struct {
    uint8_t what;
    uint8_t host, rank; /* who does it */
    uint8_t word; /* in the line */
    uint8_t value; /* its number */
} line_action;

enum presence { ABSENT, CLEAN, DIRTY }; /* lazy: a CLEAN copy is one that a load has seen */

typedef struct {
    content data;
    rank_set ranks; /* whose fence waits for it */
} write_back;

typedef struct {
    uint8_t presence;
    content data;
    rank_set dropping; /* whose flush has still to take the copy out */
    bool fresh; /* lazy: renewed, and not looked at since: there is no copy unless nature fetched one */
    uint8_t floor; /* lazy: the oldest version that a copy brought in unseen can be */
    uint8_t posted_count;
    write_back posted[POSTED_MAX]; /* oldest first */
} cached_line;

typedef struct {
    uint8_t count;
    uint8_t word[NT_MAX], value[NT_MAX]; /* oldest first */
    uint8_t flushed_at; /* lazy: its flush takes out copies of versions before this one */
} rank_line;

typedef struct {
    host_set away; /* crashed, or retired: its copy is nobody's business */
    host_set crashed;
    uint8_t versions; /* literal: always 1 */
    content version[VERSIONS_MAX]; /* of the pool's line, the last one being what it holds now */
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
    uint8_t seen; /* the value's number, of LOAD, PEEK and WAIT */
    int8_t age; /* lazy: of the version that was chosen, 0 the newest; or where else the line came from */
} line_result;

enum { COPY = -1 /* that was seen before */, NO_CHOICE = -2 /* the last write-back */, OWN = -3 /* dirty */ };
enum {
    TOO_MUCH = -1
}; /* instead of a number of results: more versions, write-backs or stores than there is room for */

/* The states that the action leads to, none where it is not possible. `out` has room for CHOICES_MAX. */
int line_apply(const world *w, const line_state *s, line_action a, line_result *out);

/* Of a state, where it matters: */
host_set line_away(const line_state *s);
host_set line_dirty(const world *w, const line_state *s);
host_set line_posted(const world *w, const line_state *s);
rank_set line_stored_nt(const world *w, const line_state *s);
rank_set line_holds_fence(const world *w, const line_state *s); /* of these ranks */
rank_set line_meets_fence(const world *w, const line_state *s); /* these ranks' fences change it */

#endif
