/* Threads with branches and loops, each alone on its host: steps that concern no other thread are made at once, so that a
 * state is kept only where it matters which thread goes next. Three rules, all of them for lazy lines:
 *
 * *Free steps.* A step that has one result is made as soon as it can be, if every move that others and nature can make
 * before it can as well be made after it. Each rule below says why. In every state that is kept, all moves are tried, and a
 * chain of free steps between two such states is finite. So no cycle leaves a move out; and a free step, which will happen
 * at some time, takes no end out of reach and brings none into it.
 *
 * *Renewal.* A thread that is about to load a line which is not in its cache may see any version that the pool has had
 * since the line left that cache. The versions before the newest one could have been loaded before that one came: all that
 * happened in between touches other caches, and an earlier load of an older version leaves no less to be seen later. So when
 * a version arrives, it is the only one that is left to see. (A copy that was seen before stays, as a loop may read it for
 * ever.) What a wait may still see is renewed likewise, because it looks again until it sees enough.
 *
 * *Retirement.* Where a thread will flush and fence a line before it looks at it again, it does not matter which version its
 * copy could hold: that is forgotten at once.
 *
 * Retirement depends on all that a thread can still do, and some free steps on which threads ever store to a line. Neither
 * is known in advance where a generator makes the steps. Both are taken for granted until the search meets the opposite:
 * then it begins again, knowing better. If there is an execution that shows the opposite, the search meets it, because all
 * that was taken for granted holds up to the first wrong moment.
 */
#include <stdlib.h>
#include <string.h>

#include "search.h"

enum { CHAIN_MAX = 4096, LIVE_MAX = 64 };

static bool stores(const node *n) { return n->what == STORE || n->what == STORE_NT || n->what == SIGNAL; }

static uint64_t bit(int line) { return line < LIVE_MAX ? (uint64_t)1 << line : 0; }

/* -- what is taken for granted */

/* Return the line that a step looks at, or NO_LINE. A store looks at the words that it does not overwrite. */
static int looked_at(const search *s, const node *n) {
    bool in_part = (n->what == STORE || n->what == SIGNAL) && s->lines[n->line].words > 1;
    return n->what == LOAD || in_part ? n->line : NO_LINE;
}

static uint64_t of_step(const search *s, const node *n) {
    int line = looked_at(s, n);
    return line == NO_LINE ? 0 : bit(line);
}

void settle_expanded(search *s, const thread *t, const node *n) {
    settling *how = &s->settling;
    ((node *)n)->live = of_step(s, n);
    if (!stores(n)) return;
    host_set host = (host_set)(1u << t->host);
    how->writers[n->line] |= host;
    how->wrong |= (how->trusting[n->line] & ~host) != 0;
}

/* Whether no other host is known to store to the line; from here on that is taken for granted. */
static bool is_only_writer(settling *how, int line, uint8_t host) {
    if (how->writers[line] & ~(1u << host)) return false;
    how->trusting[line] |= (host_set)(1u << host);
    return true;
}

/* Find, backwards along all that a thread is known to do, which lines it looks at before it flushes and fences them. */
static void find_live(search *s, thread *t) {
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t k = t->node_count; k-- > 0;) {
            node *n = &t->nodes[k];
            uint64_t after = n->next != NO_NODE ? t->nodes[n->next].live : 0;
            for (int value = 0; n->seen_next != NULL && value <= VALUES_MAX; value++)
                after |= n->seen_next[value] != NO_NODE ? t->nodes[n->seen_next[value]].live : 0;
            uint64_t live = of_step(s, n) | (after & ~(two_moves(n->what) ? bit(n->line) : 0));
            changed |= live != n->live;
            n->live = live;
        }
    }
}

bool settle_begin(search *s) {
    settling *how = &s->settling;
    uint8_t threads[HOSTS_MAX] = {0};
    *how = (settling){.on = true, .rounds = 1};
    for (int t = 0; t < s->thread_count; t++) {
        threads[s->threads[t].host]++;
        how->thread_of[s->threads[t].host] = (uint8_t)t;
    }
    for (int host = 0; host < s->w.hosts; host++) how->alone |= (host_set)((threads[host] == 1) << host);
    for (int t = 0; t < s->thread_count; t++) {
        for (uint32_t k = 0; k < s->threads[t].node_count; k++)
            if (s->threads[t].nodes[k].known) settle_expanded(s, &s->threads[t], &s->threads[t].nodes[k]);
        find_live(s, &s->threads[t]);
    }
    how->numbers = calloc((size_t)s->line_count + 1, sizeof *how->numbers);
    for (int line = 0; how->numbers != NULL && line < s->line_count; line++)
        for (uint8_t host = 0; host < s->w.hosts; host++)
            for (int way = 0; way < FORGETTING && (how->alone >> host & 1); way++) {
                static const uint8_t WAYS[FORGETTING] = {RETIRE, RENEW, RENEW_FRESH};
                line_action a = {.what = WAYS[way], .host = host, .rank = s->threads[how->thread_of[host]].rank};
                if ((how->numbers[line][host][way] = table_action(&s->lines[line], a)) < 0) return false;
            }
    return how->numbers != NULL;
}

void settle_end(search *s) { free(s->settling.numbers); }

void settle_again(search *s) {
    settling *how = &s->settling;
    how->wrong = false;
    how->rounds++;
    memset(how->trusting, 0, sizeof how->trusting);
    for (int t = 0; t < s->thread_count; t++) find_live(s, &s->threads[t]);
}

/* -- free steps */

static bool is_new(const search *s, int line) { return s->next[s->at_lines + line] != s->current[s->at_lines + line]; }

static const line_info *info_of(const search *s, int line) { return &s->lines[line].info[s->next[s->at_lines + line]]; }

/* Change a line by an action that leads to one state; false if it leads to several, or none. */
static bool act(search *s, int line, int32_t number, uint8_t *seen, int8_t *age) {
    uint16_t *state = &s->next[s->at_lines + line];
    int count;
    const successor *found = table_next(&s->lines[line], *state, (uint32_t)number, &count);
    for (int k = 1; k < count; k++)
        if (found[k].state != found[0].state) return false;
    if (count == 0) return false;
    *state = found[0].state;
    *seen = found[0].seen;
    *age = found[0].age;
    return true;
}

enum way { RETIRED, RENEWED, RENEWED_IF_FRESH };

static bool forget(search *s, int line, uint8_t host, enum way way) {
    uint8_t seen;
    int8_t age;
    return act(s, line, s->settling.numbers[line][host][way], &seen, &age) || search_fail(s, s->lines[line].trouble);
}

bool settle_begun(search *s, int t, int line) {
    return !(s->settling.alone >> s->threads[t].host & 1) || forget(s, line, s->threads[t].host, RENEWED);
}

/* Make a fence if nothing is left that it waits for: it changes only its own host's caches. */
static bool fence(search *s, int t) {
    const thread *self = &s->threads[t];
    for (int line = 0; line < s->line_count; line++)
        if (info_of(s, line)->holds_fence >> self->rank & 1) return false;
    for (int line = 0; line < s->line_count; line++)
        if (info_of(s, line)->meets_fence >> self->rank & 1)
            if (!search_change(s, line, (line_action){.what = FENCE, .host = self->host, .rank = self->rank}))
                return false;
    return true;
}

/* `went` is false where the step is not free, and has to wait its turn. False in trouble. */
static bool go(search *s, int t, bool *went) {
    *went = false;
    const node *n = search_node(s, s->next, t);
    if (n == NULL) return false;
    thread *self = &s->threads[t];
    host_set host = (host_set)(1u << self->host);
    if (n->what == 0 || n->what >= RECORD || !(s->settling.alone & host)) return true;
    uint16_t at = s->next[t] >> 1;
    uint8_t seen = 0;
    int8_t age = NO_CHOICE;
    bool begun = s->next[t] & 1, free = false;
    if (n->what == FENCE) {
        free = fence(s, t);
    } else {
        const line_info *info = info_of(s, n->line);
        bool alone = s->lines[n->line].words == 1 || !stores(n);
        if (looked_at(s, n) != NO_LINE && (info->away & host)) {
            s->settling.wrong = true;
            return false;
        }
        if (info->stored_nt & host) /* they arrive after what is posted, and take what is dirty along */
            return true;
        if ((info->posted & host) && (n->what == SIGNAL || (info->dirty & host))) /* no chain posts on and on */
            return true;
        switch (n->what) {
        case FLUSH: /* what is dirty may be evicted before; posted first, it may arrive then */
        case FLUSH_KEEP: free = act(s, n->line, n->action, &seen, &age); break;
        case INVALIDATE: /* flushed earlier, the line may show older versions, and those that it shows later, too */
        case WAIT:
            if (!begun) {
                if (!act(s, n->line, n->flush, &seen, &age) || !settle_begun(s, t, n->line))
                    return s->trouble == NO_TROUBLE;
                s->next[t] |= 1;
                *went = true;
                return search_note(s, (move){STORE, (uint8_t)t, false, NO_CHOICE, n->line});
            }
            free = n->what == INVALIDATE && act(s, n->line, n->action, &seen, &age);
            break;
        case LOAD: /* of what no other thread can change */
            free = n->reg < 0 && n->expect < 0 && is_only_writer(&s->settling, n->line, self->host) &&
                   act(s, n->line, n->action, &seen, &age);
            break;
        case STORE: /* not of a dirty line, which others might see as it was; onto nothing that others can change */
        case SIGNAL:
            free = n->source < 0 && !(info->dirty & host) &&
                   (alone || is_only_writer(&s->settling, n->line, self->host)) &&
                   act(s, n->line, n->action, &seen, &age);
            break;
        default: break;
        }
    }
    if (!free) return s->trouble == NO_TROUBLE;
    *went = true;
    move made = {STORE, (uint8_t)t, false, age, n->what == FENCE ? 0 : n->line};
    return search_note(s, made) && search_proceed(s, t, at, seen, n->what == FENCE ? NO_LINE : n->line);
}

/* Whether a step of a thread may be free that was not free in s->current, where all that is free was made. */
static bool may_go(const search *s, int t) {
    if (s->settling.cut || s->next[t] != s->current[t]) return true;
    const node *n = &s->threads[t].nodes[s->next[t] >> 1];
    if (s->next[t] == CRASHED || n->what == 0) return false;
    return n->what == FENCE || is_new(s, n->line);
}

/* -- what may be forgotten */

/* A version of the line has come: who looks at it next? */
static bool renew_lookers(search *s, int line) {
    for (int host = 0; host < s->w.hosts; host++) {
        if (!(s->settling.alone >> host & 1)) continue;
        int t = s->settling.thread_of[host];
        const node *n = search_node(s, s->next, t);
        if (n == NULL) return false;
        bool loads = n->what == LOAD, waits = n->what == WAIT && (s->next[t] & 1);
        if ((loads || waits) && n->line == line && !forget(s, line, (uint8_t)host, loads ? RENEWED_IF_FRESH : RENEWED))
            return false;
    }
    return true;
}

static bool retire(search *s, int t) {
    bool moved = s->next[t] != s->current[t];
    const node *n = search_node(s, s->next, t);
    if (n == NULL) return false;
    uint8_t host = s->threads[t].host;
    for (int line = 0; line < s->line_count && line < LIVE_MAX; line++) {
        if (!moved && !is_new(s, line)) continue; /* as it was in s->current, where it was found not to be forgotten */
        const line_info *info = info_of(s, line);
        bool looking = n->what != 0 && ((n->live & bit(line)) || ((s->next[t] & 1) && n->line == line));
        if (!looking && !((info->away | info->dirty | info->posted | info->stored_nt) >> host & 1) &&
            !forget(s, line, host, RETIRED))
            return false;
    }
    return true;
}

bool settle_first(search *s) {
    for (int t = 0; t < s->thread_count; t++)
        for (int line = 0; line < s->line_count && (s->settling.alone >> s->threads[t].host & 1); line++)
            if (!forget(s, line, s->threads[t].host, RENEWED)) return false;
    memset(s->current, 0xFF, s->states.width * sizeof *s->current); /* all is new */
    return settle_state(s, NO_LINE);
}

bool settle_state(search *s, int line) {
    bool moved = true;
    if (line != NO_LINE && !renew_lookers(s, line)) return false;
    for (int steps = 0; moved && steps < CHAIN_MAX;) {
        moved = false;
        for (int t = 0; t < s->thread_count; t++)
            for (bool went = may_go(s, t); went && steps < CHAIN_MAX; steps += went, moved |= went)
                if (!go(s, t, &went)) return false;
        s->settling.cut |= steps == CHAIN_MAX;
    }
    for (int host = 0; host < s->w.hosts; host++)
        if ((s->settling.alone >> host & 1) && !retire(s, s->settling.thread_of[host])) return false;
    return !s->settling.wrong;
}
