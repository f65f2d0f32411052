/* Ample sets: finds one move that may be made first, because that takes nothing away from what others could do before it; or
 * else a host, of whose moves one may be made first.
 *
 * What others can do before thread t moves is bounded: they cannot pass a wait for what only t will signal. So each rule
 * looks at which lines others may touch before, and how. A move that is made first may leave *more* possible than one that
 * is made later (an old copy may still be seen), which is as good: every bad end is still found. The rules are for lazy
 * lines; for literal ones only the rules hold that touch no line.
 */
#include <stdlib.h>
#include <string.h>

#include "search.h"

enum { NOBODY = 0xFF, NEVER = 0xFFFF };
enum { ANY_LINE = -2 };

/* How other threads may touch a line, as bits. BEGUN_WAITS: blocked ones of other ranks of the host, which have flushed it. */
enum { STORES = 1, SIGNALS = 2, PEEKS = 4, WAITS = 8, BLOCKED_WAITS = 16, WAITS_OF_OTHER_RANKS = 32, OTHERWISE = 64 };
enum { BEGUN_WAITS = 128, ALL_WAITS = WAITS | BLOCKED_WAITS | WAITS_OF_OTHER_RANKS | BEGUN_WAITS };

/* What a wait needs: it is passed only when this thread has gone beyond this node. */
typedef struct {
    uint8_t thread; /* NOBODY: it does not depend on a single thread */
    uint16_t beyond;
} need;

struct reduction {
    need *needs[THREADS_MAX]; /* by thread and node */
    uint8_t *steady; /* by line: the words that only rise, where all writers are on one host */
    uint8_t *unread; /* by line: the words that no thread loads, although some may wait for them */
    uint8_t *bell; /* by line: whether it holds but words that rise and are waited for, each with its payload */
    uint8_t *guarded; /* by line: whether it is a bell where no load depends on what other threads have waited for */
    uint8_t *near, *far; /* by line: how threads of the same host, and of others, may touch it */
    uint16_t reach[THREADS_MAX]; /* by thread: the last node that it can get to */
    uint64_t held; /* threads whose fences wait for the line that does not land */
    bool fences; /* whether another thread of the same rank may fence */
};

static bool on_a_line(const node *n) {
    return n->what == STORE || n->what == STORE_NT || n->what == FLUSH || n->what == FLUSH_KEEP || two_moves(n->what) ||
           n->what == LOAD || n->what == SIGNAL;
}

static bool writes(const node *n) { return n->what == STORE || n->what == STORE_NT || n->what == SIGNAL; }

/* -- once for a program */

static need who_satisfies(const search *s, const node *wait) {
    need found = {NOBODY, NEVER};
    if (wait->what == WAIT && s->initial[wait->line][wait->word] >= s->values[wait->value]) return (need){NOBODY, 0};
    bool several = false;
    for (int t = 0; t < s->thread_count; t++)
        for (uint32_t k = 0; k < s->threads[t].node_count; k++) {
            const node *n = &s->threads[t].nodes[k];
            bool does = wait->what == AWAIT ? n->what == RECORD && n->event == wait->event
                                            : writes(n) && n->line == wait->line && n->word == wait->word &&
                                                  (n->source >= 0 || s->values[n->value] >= s->values[wait->value]);
            several |= does && found.thread != NOBODY && found.thread != t;
            if (does && found.thread == NOBODY) found = (need){(uint8_t)t, (uint16_t)k};
        }
    return several ? (need){NOBODY, 0} : found;
}

static void note_steady(const search *s, uint8_t *steady) {
    for (int line = 0; line < s->line_count; line++) {
        int host = -1, writer[WORDS_MAX];
        int64_t highest[WORDS_MAX];
        memset(writer, -1, sizeof writer);
        memcpy(highest, s->initial[line], sizeof highest);
        steady[line] = 0xFF;
        for (int t = 0; t < s->thread_count; t++)
            for (uint32_t k = 0; k < s->threads[t].node_count; k++) {
                const node *n = &s->threads[t].nodes[k];
                if (!writes(n) || n->line != line) continue;
                int64_t value = n->source < 0 ? s->values[n->value] : INT64_MIN;
                bool foreign = host >= 0 && host != s->threads[t].host;
                bool falls = value < highest[n->word] || (writer[n->word] >= 0 && writer[n->word] != t);
                if (foreign || n->what == STORE_NT) steady[line] = 0;
                else if (falls) steady[line] &= (uint8_t)~(1u << n->word);
                host = s->threads[t].host;
                writer[n->word] = t;
                highest[n->word] = value;
            }
    }
}

static void note_unread(const search *s, uint8_t *unread) {
    memset(unread, 0xFF, (size_t)s->line_count);
    for (int t = 0; t < s->thread_count; t++)
        for (uint32_t k = 0; k < s->threads[t].node_count; k++)
            if (s->threads[t].nodes[k].what == LOAD)
                unread[s->threads[t].nodes[k].line] &= (uint8_t)~(1u << s->threads[t].nodes[k].word);
}

/* A payload's store is followed at once by its signal, so that whoever sees the one may as well see the other. */
static void note_bells(const search *s, reduction *r) {
    memset(r->bell, 1, (size_t)s->line_count);
    for (int t = 0; t < s->thread_count; t++)
        for (const node *n = s->threads[t].nodes; n->what != 0; n++) {
            bool rings = n->what == SIGNAL && (r->steady[n->line] & r->unread[n->line]) >> n->word & 1;
            bool told = n->what == STORE && n[1].what == SIGNAL && n[1].line == n->line;
            if (writes(n) && !rings && !told) r->bell[n->line] = 0;
        }
}

/* Whether a thread, before it loads a value, waits for each flag that is rung behind a store of that value. */
static bool waits_for(const search *s, const thread *self, const node *load) {
    for (int t = 0; t < s->thread_count; t++)
        for (const node *n = s->threads[t].nodes; n->what != 0; n++) {
            bool same = n->what == STORE && n->line == load->line && n->word == load->word;
            if (!same || (n->source < 0 && n->value != load->expect)) continue;
            const node *flag = n + 1, *wait = self->nodes;
            while (wait != load && (wait->what != WAIT || wait->line != flag->line || wait->word != flag->word ||
                                    s->values[wait->value] < s->values[flag->value]))
                wait++;
            if (wait == load) return false;
        }
    return true;
}

/* Where a thread has waited itself, what it loads is never too old, whatever has yet to arrive. If it may be too new, then
 * also where the line arrives, or older copies of it go, as early as can be. */
static void note_guarded(const search *s, reduction *r) {
    memcpy(r->guarded, r->bell, (size_t)s->line_count);
    for (int t = 0; t < s->thread_count; t++)
        for (const node *n = s->threads[t].nodes; n->what != 0; n++)
            if (n->what == LOAD && r->bell[n->line] && (n->expect < 0 || !waits_for(s, &s->threads[t], n)))
                r->guarded[n->line] = 0;
}

reduction *reduction_begin(const search *s) {
    reduction *r = calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    size_t lines = (size_t)s->line_count + 1;
    r->steady = calloc(lines, 1);
    r->unread = calloc(lines, 1);
    r->bell = calloc(lines, 1);
    r->guarded = calloc(lines, 1);
    r->near = calloc(lines, 1);
    r->far = calloc(lines, 1);
    bool fine = r->steady != NULL && r->unread != NULL && r->bell != NULL && r->guarded != NULL && r->near != NULL &&
                r->far != NULL;
    for (int t = 0; fine && t < s->thread_count; t++) {
        const thread *self = &s->threads[t];
        fine = (r->needs[t] = calloc(self->node_count, sizeof(need))) != NULL;
        for (uint32_t k = 0; fine && k < self->node_count; k++) {
            const node *n = &self->nodes[k];
            r->needs[t][k] = n->what == WAIT || n->what == AWAIT ? who_satisfies(s, n) : (need){NOBODY, 0};
        }
    }
    if (!fine) {
        reduction_end(r);
        return NULL;
    }
    note_steady(s, r->steady);
    note_unread(s, r->unread);
    note_bells(s, r);
    note_guarded(s, r);
    return r;
}

void reduction_end(reduction *r) {
    for (int t = 0; r != NULL && t < THREADS_MAX; t++) free(r->needs[t]);
    if (r != NULL) {
        free(r->steady);
        free(r->unread);
        free(r->bell);
        free(r->guarded);
        free(r->near);
        free(r->far);
    }
    free(r);
}

/* -- what others can do before */

static bool passes(const search *s, const reduction *r, int t, uint16_t at, int held_line, int host) {
    need what = r->needs[t][at];
    if (what.thread == NOBODY ? what.beyond == NEVER : r->reach[what.thread] <= what.beyond) return false;
    const thread *self = &s->threads[t];
    const node *n = &self->nodes[at];
    if (n->what == FENCE && (r->held >> t & 1)) return false;
    bool alone = what.thread != NOBODY && s->threads[what.thread].host == host; /* who may satisfy the wait */
    if (n->what != WAIT || self->host == host || !(held_line == ANY_LINE ? alone : n->line == held_line)) return true;
    if (!(r->steady[n->line] >> n->word & 1)) return true; /* by an older version */
    const line_table *table = &s->lines[n->line];
    uint8_t shows = table->pools[table->info[s->current[s->at_lines + n->line]].pool][n->word];
    return s->values[shows] >= s->values[n->value];
}

/* Find how far threads can get while the `frozen` ones stay where they are, and what a host has stored to `held_line`, or to
 * ANY_LINE, does not arrive: the `held` threads pass no fence. */
static void advance(const search *s, reduction *r, uint64_t frozen, uint64_t held, int held_line, int host) {
    r->held = held;
    for (int t = 0; t < s->thread_count; t++) r->reach[t] = s->current[t] >> 1;
    for (bool moved = true; moved;) {
        moved = false;
        for (int t = 0; t < s->thread_count; t++)
            while (!(frozen >> t & 1) && s->threads[t].nodes[r->reach[t]].what != 0 &&
                   passes(s, r, t, r->reach[t], held_line, host)) {
                r->reach[t]++;
                moved = true;
            }
    }
}

static uint8_t touch(const search *s, const node *n, bool passed, bool other_rank) {
    switch (n->what) {
    case STORE:
    case STORE_NT: return STORES;
    case SIGNAL: return SIGNALS;
    case WAIT: return (uint8_t)((passed ? WAITS : BLOCKED_WAITS) | (other_rank ? WAITS_OF_OTHER_RANKS : 0));
    case LOAD: return n->expect >= 0 && s->checked_reads ? PEEKS : OTHERWISE;
    default: return OTHERWISE;
    }
}

/* Find how all threads but `self` may touch lines on the way that `advance` found, as seen from a rank on a host. */
static void look_ahead(const search *s, reduction *r, int self, uint8_t host, uint8_t rank) {
    memset(r->near, 0, (size_t)s->line_count);
    memset(r->far, 0, (size_t)s->line_count);
    r->fences = false;
    for (int t = 0; t < s->thread_count; t++) {
        const thread *other = &s->threads[t];
        uint8_t *touched = other->host == host ? r->near : r->far;
        for (uint16_t k = s->current[t] >> 1; t != self && k <= r->reach[t]; k++) {
            const node *n = &other->nodes[k];
            bool passed = k < r->reach[t];
            r->fences |= n->what == FENCE && other->rank == rank;
            bool begun = !passed && n->what == WAIT && s->current[t] == (k << 1 | 1) && other->host == host;
            if (begun && other->rank != rank) touched[n->line] |= BEGUN_WAITS;
            else if (on_a_line(n) && (passed || n->what == WAIT))
                touched[n->line] |= touch(s, n, passed, other->rank != rank);
        }
    }
}

/* -- one thread's step */

typedef struct {
    const line_info *info;
    uint8_t near, far;
    bool dirty, posted, nt; /* on this host */
    bool quiet; /* whether no other host can change the pool's line */
} place;

static place place_of(const search *s, const reduction *r, int line, uint8_t host) {
    const line_info *info = &s->lines[line].info[s->current[s->at_lines + line]];
    host_set here = (host_set)(1u << host), others = (host_set)~here;
    return (place){
        .info = info,
        .near = r->near[line],
        .far = r->far[line],
        .dirty = info->dirty & here,
        .posted = info->posted & here,
        .nt = info->stored_nt & here,
        .quiet = !((info->dirty | info->posted | info->stored_nt) & others) && !(r->far[line] & (STORES | SIGNALS)),
    };
}

/* Whether an action is possible now. *changes: whether it changes its line. */
static bool possible(search *s, const node *n, int32_t action, bool *changes) {
    int count;
    uint16_t state = s->current[s->at_lines + n->line];
    const successor *found = table_next(&s->lines[n->line], state, (uint32_t)action, &count);
    *changes = count != 1 || found->state != state;
    return count > 0;
}

/* Whether a line may arrive before anything that others do until then, while fences of the `held` threads wait for it. */
static bool lands_unnoticed(const search *s, uint64_t held, int line, uint8_t host) {
    reduction *r = s->reduction;
    advance(s, r, 0, held, line, host);
    look_ahead(s, r, -1, host, NOBODY);
    const place p = place_of(s, r, line, host);
    return p.quiet && !(p.far & ~(PEEKS | BLOCKED_WAITS | WAITS_OF_OTHER_RANKS));
}

/* Whether a thread may leave a write-back for which other threads' fences then wait: it may arrive at once. */
static bool holds_nobody(const search *s, int t, const node *n, const place *p) {
    return !s->reduction->fences || (!p->posted && lands_unnoticed(s, (uint64_t)1 << t, n->line, s->threads[t].host));
}

static bool flush_first(const search *s, int t, const node *n, const place *p, bool changes) {
    if (!changes) return !(p->near & STORES);
    return !p->near && ((!p->dirty && !p->posted) || (!p->nt && holds_nobody(s, t, n, p)));
}

static bool fence_first(const search *s, const reduction *r, uint8_t rank) {
    for (int line = 0; line < s->line_count; line++) {
        const line_info *info = &s->lines[line].info[s->current[s->at_lines + line]];
        if ((info->holds_fence >> rank & 1) || ((info->meets_fence >> rank & 1) && r->near[line])) return false;
    }
    return true;
}

/* Whether a wait may be over first. Other waits of the host keep nothing of what they see but the line's copy, which this one
 * may see and leave just so. */
static bool wait_first(search *s, const node *n, const place *p) {
    bool changes, rises = s->reduction->steady[n->line] >> n->word & 1;
    uint8_t may = ALL_WAITS | (s->reduction->guarded[n->line] ? PEEKS : 0);
    return possible(s, n, n->action, &changes) && rises && (!changes || !(p->near & ~may));
}

/* Whether a wait's flush may go first although others of the host will ring its doorbell: what they have not yet stored does
 * not hold this rank's fences. A later flush might post a payload early, which is as good as seeing it with its signal. */
static bool looks_first(const search *s, int t, const node *n, const place *p) {
    bool streams = false;
    for (int u = 0; u < s->thread_count; u++) streams |= u != t && s->threads[u].rank == s->threads[t].rank;
    return n->what == WAIT && s->reduction->bell[n->line] && !streams && !p->dirty && !(p->near & OTHERWISE);
}

static bool store_first(const reduction *r, const node *n, const place *p) {
    uint8_t may = r->guarded[n->line] ? ALL_WAITS | PEEKS : r->bell[n->line] ? BEGUN_WAITS : 0;
    return p->quiet && !p->nt && !(p->near & ~may) && !p->dirty;
}

/* Whether a signal may go first. If its line is dirty, an eviction before it would show the payload under the old flag. Where
 * flags only rise and are only waited for, a rank that sees that may as well see the new flag. A wait of the same host that
 * begins before it is held by the payload; after it, by both, which arrive together, or by a flag alone, which nobody loads. */
static bool signal_first(const search *s, int t, const node *n, const place *p) {
    bool rises = s->reduction->steady[n->line] >> n->word & 1, unread = s->reduction->unread[n->line] >> n->word & 1;
    uint8_t may = s->reduction->bell[n->line] ? ALL_WAITS : WAITS | BLOCKED_WAITS;
    if (s->reduction->guarded[n->line]) may |= PEEKS;
    bool alone = !(p->near & ~may) && (!p->near || rises) && !p->nt;
    return p->quiet && alone && (!p->dirty || (rises && unread)) && holds_nobody(s, t, n, p);
}

static bool goes_first(search *s, int t, const node *n) {
    const thread *self = &s->threads[t];
    reduction *r = s->reduction;
    bool changes = true, begun = s->current[t] & 1;
    if (n->what == RECORD) return true;
    if (n->what == AWAIT) return s->current[s->at_events + n->event / 16] >> n->event % 16 & 1;
    if (n->what == 0 || n->what == FAIL || (n->what != FENCE && !s->w.lazy)) return false;
    advance(s, r, (uint64_t)1 << t, 0, -1, -1);
    look_ahead(s, r, t, self->host, self->rank);
    if (n->what == FENCE) return fence_first(s, r, self->rank);
    const place p = place_of(s, r, n->line, self->host);
    if (two_moves(n->what) && !begun)
        return possible(s, n, n->flush, &changes) && (flush_first(s, t, n, &p, changes) || looks_first(s, t, n, &p));
    switch (n->what) {
    case FLUSH:
    case FLUSH_KEEP: return possible(s, n, n->action, &changes) && flush_first(s, t, n, &p, changes);
    case INVALIDATE: return possible(s, n, n->action, &changes) && (!changes || !p.near);
    case WAIT: return wait_first(s, n, &p);
    case LOAD:
        if (touch(s, n, true, false) == PEEKS) return p.quiet && !p.nt && !(p.near & (STORES | SIGNALS));
        return p.quiet && !p.nt && !p.near;
    case STORE: return store_first(r, n, &p);
    case SIGNAL: return signal_first(s, t, n, &p);
    default: /* STORE_NT */ return p.quiet && !p.near && !p.dirty && !r->fences;
    }
}

/* -- an arrival: after it, others see all that they saw before, and one more version */

static bool lands_first(search *s, int line, uint8_t host) {
    uint64_t held = 0;
    const line_info *info = &s->lines[line].info[s->current[s->at_lines + line]];
    for (int t = 0; t < s->thread_count; t++)
        if (s->threads[t].host == host) held |= (uint64_t)(info->holds_fence >> s->threads[t].rank & 1) << t;
    return lands_unnoticed(s, held, line, host);
}

/* -- all moves of a host's threads and caches: whichever comes first may come before all that other hosts do until then */

static bool host_first(const search *s, uint8_t host) {
    reduction *r = s->reduction;
    uint64_t frozen = 0;
    for (int t = 0; t < s->thread_count; t++) frozen |= (uint64_t)(s->threads[t].host == host) << t;
    advance(s, r, frozen, 0, ANY_LINE, host);
    look_ahead(s, r, -1, host, NOBODY);
    for (int t = 0; t < s->thread_count; t++) {
        const node *n = &s->threads[t].nodes[s->current[t] >> 1];
        need what = r->needs[t][s->current[t] >> 1];
        if (!(frozen >> t & 1)) continue;
        if (on_a_line(n) && !place_of(s, r, n->line, host).quiet) return false;
        if (n->what == AWAIT && (what.thread == NOBODY || s->threads[what.thread].host != host)) return false;
    }
    for (int line = 0; line < s->line_count; line++) {
        const place p = place_of(s, r, line, host);
        bool arrives = p.dirty || p.posted || p.nt;
        if (arrives && (!p.quiet || (p.far & ~(PEEKS | BLOCKED_WAITS | WAITS_OF_OTHER_RANKS)))) return false;
    }
    return true;
}

chosen_move reduction_choose(search *s) {
    for (int t = 0; t < s->thread_count; t++)
        if (goes_first(s, t, &s->threads[t].nodes[s->current[t] >> 1]))
            return (chosen_move){.thread = t, .line = -1, .nature = -1};
    for (int line = 0; s->w.lazy && line < s->line_count; line++) {
        const line_table *table = &s->lines[line];
        const line_info *info = &table->info[s->current[s->at_lines + line]];
        for (int k = 0; info->posted != 0 && k < (int)table->nature_count; k++)
            if (table->actions[k].what == LAND && (info->nature >> k & 1) &&
                lands_first(s, line, table->actions[k].host))
                return (chosen_move){.thread = -1, .line = line, .nature = k};
    }
    for (int host = 0; s->w.lazy && host < s->w.hosts; host++)
        if (host_first(s, (uint8_t)host)) return (chosen_move){-1, -1, -1, (host_set)(1u << host)};
    return (chosen_move){-1, -1, -1, ALL_HOSTS};
}
