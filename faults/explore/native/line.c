#include "line.h"

#include <string.h>

/* -- versions and copies */

static uint8_t newest(const line_state *s) { return (uint8_t)(s->versions - 1); }

static bool same(const content a, const content b) { return memcmp(a, b, sizeof(content)) == 0; }

/* Let data arrive in the pool; false where there is no room for another version. */
static bool arrive(const world *w, line_state *s, const content data) {
    if (same(s->version[newest(s)], data)) return true;
    if (!w->lazy) {
        memcpy(s->version[0], data, sizeof(content));
        return true;
    }
    if (s->versions == VERSIONS_MAX) return false;
    memcpy(s->version[s->versions++], data, sizeof(content));
    return true;
}

static void absent(line_state *s, int host) {
    cached_line *c = &s->host[host];
    c->presence = ABSENT;
    c->dropping = 0;
    c->floor = newest(s);
    memset(c->data, 0, sizeof c->data);
}

static void shift(content *versions, unsigned by, unsigned count) {
    memmove(versions, versions + by, (count - by) * sizeof(content));
    memset(versions + count - by, 0, by * sizeof(content));
}

/* Forget versions that no host can see any more, so that states are equal which cannot differ later. */
static void forget(const world *w, line_state *s) {
    uint8_t oldest = newest(s);
    for (int h = 0; h < w->hosts; h++) {
        cached_line *c = &s->host[h];
        if (c->presence == DIRTY || c->posted_count > 0 || (s->away >> h & 1)) c->floor = newest(s);
        if (s->away >> h & 1) c->fresh = false;
        if (c->presence == CLEAN && (c->posted_count > 0 || (s->away >> h & 1))) absent(s, h);
        for (unsigned v = c->floor; v < s->versions && c->presence == CLEAN; v++)
            if (same(s->version[v],
                     c->data)) { /* as good as a copy that nature may fetch, which is as little flushed */
                uint8_t floor = c->floor;
                absent(s, h);
                c->floor = floor;
            }
        if (c->floor < oldest) oldest = c->floor;
    }
    for (int r = 0; r < w->ranks; r++) {
        uint8_t *at = &s->rank[r].flushed_at, floor = s->host[w->host_of[r]].floor;
        *at = *at > floor ? (uint8_t)(*at - oldest) : 0;
    }
    for (int h = 0; h < w->hosts; h++) s->host[h].floor = (uint8_t)(s->host[h].floor - oldest);
    shift(s->version, oldest, s->versions);
    s->versions = (uint8_t)(s->versions - oldest);
}

/* -- what a host finds when it looks */

typedef struct {
    content data;
    rank_set dropping;
    int8_t age;
} choice;

static rank_set flushed_since(const world *w, const line_state *s, int host, unsigned version) {
    rank_set ranks = 0;
    for (int r = 0; r < w->ranks; r++)
        if (w->host_of[r] == host && s->rank[r].flushed_at > version) ranks |= (rank_set)(1u << r);
    return ranks;
}

/* Find what a host may see in a line when it looks; each content once, from the copy that the fewest flushes would drop. */
static int look(const world *w, const line_state *s, int host, choice *out) {
    const cached_line *c = &s->host[host];
    int n = 0;
    if (c->presence != ABSENT) {
        out[n] = (choice){.dropping = c->dropping, .age = c->presence == DIRTY ? OWN : COPY};
        memcpy(out[n++].data, c->data, sizeof(content));
        if (!w->lazy || c->presence == DIRTY) return n;
    } else if (c->posted_count > 0) {
        out[0] = (choice){.age = NO_CHOICE};
        memcpy(out[0].data, c->posted[c->posted_count - 1].data, sizeof(content));
        return 1;
    }
    for (int v = newest(s); v >= c->floor; v--) {
        bool known = false;
        for (int k = 0; k < n; k++) known |= same(out[k].data, s->version[v]);
        if (known) continue;
        out[n] = (choice){.dropping = flushed_since(w, s, host, (unsigned)v), .age = (int8_t)(newest(s) - v)};
        memcpy(out[n++].data, s->version[v], sizeof(content));
    }
    return n;
}

/* Bring the chosen line into the cache. In lazy mode, a line from a pending write-back stays one. */
static void hold(const world *w, line_state *s, int host, const choice *chosen) {
    cached_line *c = &s->host[host];
    if (c->presence == DIRTY || (w->lazy && c->posted_count > 0)) return;
    c->presence = CLEAN;
    memcpy(c->data, chosen->data, sizeof(content));
    c->dropping = chosen->dropping;
    c->floor = newest(s);
}

/* -- what leaves a host */

static bool post(line_state *s, int host, rank_set ranks) {
    cached_line *c = &s->host[host];
    if (c->posted_count == POSTED_MAX) return false;
    write_back *back = &c->posted[c->posted_count++];
    memcpy(back->data, c->data, sizeof(content));
    back->ranks = ranks;
    c->presence = CLEAN;
    return true;
}

static bool flush(const world *w, line_state *s, line_action a) {
    cached_line *c = &s->host[a.host];
    rank_set rank = (rank_set)(1u << a.rank);
    if (c->presence == DIRTY && !post(s, a.host, rank)) return false;
    for (int k = 0; k < c->posted_count; k++) c->posted[k].ranks |= rank;
    if (a.what != FLUSH_KEEP) {
        if (c->presence != ABSENT) c->dropping |= rank;
        if (w->lazy) s->rank[a.rank].flushed_at = newest(s);
    }
    return true;
}

static rank_set posting(const cached_line *c) {
    rank_set ranks = 0;
    for (int k = 0; k < c->posted_count; k++) ranks |= c->posted[k].ranks;
    return ranks;
}

/* Whether the rank's fence is over as far as this line goes: its flushes have landed, and the line has left the cache, unless
 * nature fetched it again. In lazy mode the line is dropped now. */
static bool fenced(const world *w, line_state *s, line_action a) {
    cached_line *c = &s->host[a.host];
    rank_set rank = (rank_set)(1u << a.rank);
    if (posting(c) & rank) return false;
    if (!w->lazy || c->presence == DIRTY) return !(c->dropping & rank);
    uint8_t *at = &s->rank[a.rank].flushed_at, floor = *at > c->floor ? *at : c->floor;
    if (c->dropping & rank) absent(s, a.host);
    c->floor = floor;
    *at = 0;
    return true;
}

static void oldest_posted_leaves(cached_line *c) {
    c->posted_count--;
    memmove(c->posted, c->posted + 1, c->posted_count * sizeof c->posted[0]);
    memset(&c->posted[c->posted_count], 0, sizeof c->posted[0]);
}

static void oldest_nt_leaves(rank_line *r) {
    r->count--;
    memmove(r->word, r->word + 1, r->count);
    memmove(r->value, r->value + 1, r->count);
    r->word[r->count] = r->value[r->count] = 0;
}

/* -- actions */

static uint8_t sees(const line_state *s, line_action a, const content data) {
    const rank_line *own = &s->rank[a.rank];
    for (int k = own->count - 1; k >= 0; k--)
        if (own->word[k] == a.word) return own->value[k];
    return data[a.word];
}

/* Apply an action that looks at the line: one result for each content that it may see. */
static int on_what_it_finds(const world *w, const line_state *before, line_action a, line_result *out) {
    line_state s = *before;
    choice choices[CHOICES_MAX];
    if (a.what == WAIT && !fenced(w, &s, a)) return 0;
    int n = 0, count = look(w, &s, a.host, choices);
    for (int k = 0; k < count; k++) {
        line_result *r = &out[n];
        *r = (line_result){.state = s, .seen = sees(&s, a, choices[k].data), .age = choices[k].age};
        cached_line *c = &r->state.host[a.host];
        if (a.what == WAIT && w->values[r->seen] < w->values[a.value]) continue;
        if (a.what != PEEK) {
            hold(w, &r->state, a.host, &choices[k]);
            c->fresh = false;
        }
        if (a.what == STORE || a.what == SIGNAL) {
            memcpy(c->data, choices[k].data, sizeof(content));
            c->data[a.word] = a.value;
            c->presence = DIRTY;
            r->state.away = (host_set)((s.away & ~(1u << a.host)) | s.crashed);
        }
        if (a.what == SIGNAL && !flush(w, &r->state, a)) return TOO_MUCH;
        n++;
    }
    return n;
}

/* Whether a wait looked in vain, and so flushes its line again. In lazy mode that changes only a dirty line. */
static bool looked_in_vain(const world *w, line_state *s, line_action a) {
    const cached_line *c = &s->host[a.host];
    bool may = w->lazy ? c->presence == DIRTY : c->presence != ABSENT;
    return may && fenced(w, s, a) && w->values[sees(s, a, c->data)] < w->values[a.value];
}

static int on_its_own(const world *w, line_state *s, line_action a) {
    cached_line *c = &s->host[a.host];
    rank_line *r = &s->rank[a.rank];
    switch (a.what) {
    case FLUSH:
    case FLUSH_KEEP: return flush(w, s, a) ? 1 : TOO_MUCH;
    case AGAIN: return !looked_in_vain(w, s, a) ? 0 : flush(w, s, a) ? 1 : TOO_MUCH;
    case FENCE: return r->count == 0 && fenced(w, s, a);
    case INVALIDATE: return fenced(w, s, a);
    case STORE_NT:
        if (r->count == NT_MAX || (c->presence == DIRTY && !post(s, a.host, (rank_set)(1u << a.rank)))) return TOO_MUCH;
        r->word[r->count] = a.word;
        r->value[r->count++] = a.value;
        return 1;
    case CRASH:
        absent(s, a.host);
        s->crashed |= (host_set)(1u << a.host);
        s->away |= s->crashed;
        for (int k = 0; k < w->ranks; k++)
            if (w->host_of[k] == a.host) memset(&s->rank[k], 0, sizeof s->rank[k]);
        return 1;
    case RETIRE: s->away |= (host_set)(1u << a.host); return 1;
    case RENEW:
    case RENEW_FRESH:
        if (c->presence == DIRTY || c->posted_count > 0 || (a.what == RENEW_FRESH && !c->fresh)) return 1;
        absent(s, a.host);
        c->fresh = true;
        s->rank[a.rank].flushed_at = 0;
        s->away = (host_set)((s->away & ~(1u << a.host)) | s->crashed);
        return 1;
    case LAND:
        if (c->posted_count == 0) return 0;
        if (!arrive(w, s, c->posted[0].data)) return TOO_MUCH;
        oldest_posted_leaves(c);
        c->floor = newest(s);
        return 1;
    case LAND_NT: {
        if (r->count == 0 || c->posted_count > 0) return 0;
        content data;
        memcpy(data, c->presence == DIRTY ? c->data : s->version[newest(s)], sizeof data);
        data[r->word[0]] = r->value[0];
        if (!arrive(w, s, data)) return TOO_MUCH;
        oldest_nt_leaves(r);
        absent(s, a.host);
        return 1;
    }
    case EVICT:
        if (c->presence != DIRTY || c->posted_count > 0) return 0;
        if (!arrive(w, s, c->data)) return TOO_MUCH;
        absent(s, a.host);
        return 1;
    case DROPPED: /* what was stored to it since the flush is written back as well */
        if (c->presence == ABSENT || !c->dropping || (w->lazy && c->presence != DIRTY)) return 0;
        if (c->presence == DIRTY && !post(s, a.host, c->dropping)) return TOO_MUCH;
        absent(s, a.host);
        return 1;
    case DROP:
        if (w->lazy || c->presence != CLEAN) return 0;
        absent(s, a.host);
        return 1;
    case PREFETCH: {
        choice found;
        if (w->lazy || c->presence != ABSENT || (s->crashed >> a.host & 1)) return 0;
        look(w, s, a.host, &found);
        hold(w, s, a.host, &found);
        return 1;
    }
    case LOSE:
        if (c->posted_count == 0 || !(s->crashed >> a.host & 1)) return 0;
        oldest_posted_leaves(c);
        return 1;
    default: return 0;
    }
}

int line_apply(const world *w, const line_state *s, line_action a, line_result *out) {
    int n;
    if (a.what == STORE || a.what == SIGNAL || a.what == LOAD || a.what == PEEK || a.what == WAIT) {
        if ((a.what == STORE || a.what == SIGNAL) && s->rank[a.rank].count > 0)
            return 0; /* a cached store waits for its rank's own non-temporal ones */
        n = on_what_it_finds(w, s, a, out);
    } else {
        out[0] = (line_result){.state = *s, .age = NO_CHOICE};
        n = on_its_own(w, &out[0].state, a);
    }
    for (int k = 0; w->lazy && k < n; k++) forget(w, &out[k].state);
    return n;
}

/* -- of a state */

host_set line_away(const line_state *s) { return s->away & (host_set)~s->crashed; }

host_set line_dirty(const world *w, const line_state *s) {
    unsigned hosts = 0;
    for (int h = 0; h < w->hosts; h++) hosts |= (unsigned)(s->host[h].presence == DIRTY) << h;
    return (host_set)hosts;
}

host_set line_posted(const world *w, const line_state *s) {
    unsigned hosts = 0;
    for (int h = 0; h < w->hosts; h++) hosts |= (unsigned)(s->host[h].posted_count > 0) << h;
    return (host_set)hosts;
}

rank_set line_stored_nt(const world *w, const line_state *s) {
    unsigned ranks = 0;
    for (int r = 0; r < w->ranks; r++) ranks |= (unsigned)(s->rank[r].count > 0) << r;
    return (rank_set)ranks;
}

rank_set line_holds_fence(const world *w, const line_state *s) {
    unsigned ranks = line_stored_nt(w, s);
    for (int r = 0; r < w->ranks; r++) {
        line_state copy = *s;
        ranks |= (unsigned)!fenced(w, &copy, (line_action){.host = w->host_of[r], .rank = (uint8_t)r}) << r;
    }
    return (rank_set)ranks;
}

rank_set line_meets_fence(const world *w, const line_state *s) {
    unsigned ranks = 0;
    for (int r = 0; w->lazy && r < w->ranks; r++) {
        const cached_line *c = &s->host[w->host_of[r]];
        ranks |= (unsigned)(s->rank[r].flushed_at > 0 || (c->presence == CLEAN && (c->dropping >> r & 1))) << r;
    }
    return (rank_set)ranks;
}
