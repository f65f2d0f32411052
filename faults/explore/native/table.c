#include "table.h"

#include <stdlib.h>
#include <string.h>

enum { ENOUGH = 16 };

static const uint8_t OF_HOSTS[] = {LAND, DROPPED, EVICT, DROP, PREFETCH, LOSE};
enum { OF_HOSTS_COUNT = sizeof OF_HOSTS };

bool table_grow(void *pointer, size_t count, size_t size) {
    void *array;
    memcpy(&array, pointer, sizeof array);
    array = realloc(array, count * size);
    if (array != NULL) memcpy(pointer, &array, sizeof array);
    return array != NULL;
}

static uint64_t hash(const void *data, size_t size) { /* FNV-1a, which is good enough for few line states */
    const uint8_t *bytes = data;
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t k = 0; k < size; k++) h = (h ^ bytes[k]) * 0x100000001b3u;
    return h ^ h >> 29;
}

/* Enlarge t->known for more states or more actions. Return false without memory. */
static bool resize(line_table *t, uint32_t states, uint32_t actions) {
    uint32_t *known = calloc((size_t)states * actions, sizeof *known);
    if (known == NULL) return false;
    for (uint32_t s = 0; s < t->state_count; s++)
        memcpy(known + (size_t)s * actions, t->known + (size_t)s * t->action_capacity, t->action_count * sizeof *known);
    free(t->known);
    t->known = known;
    t->state_capacity = states;
    t->action_capacity = actions;
    return true;
}

static bool rehash(line_table *t, uint32_t slots) {
    uint32_t *fresh = calloc(slots, sizeof *fresh);
    if (fresh == NULL) return false;
    for (uint32_t s = 0; s < t->state_count; s++) {
        uint32_t at = (uint32_t)hash(&t->states[s], sizeof t->states[s]) & (slots - 1);
        while (fresh[at] != 0) at = (at + 1) & (slots - 1);
        fresh[at] = s + 1;
    }
    free(t->slots);
    t->slots = fresh;
    t->slot_count = slots;
    return true;
}

static uint16_t pool_number(line_table *t, const content data) {
    for (uint32_t p = 0; p < t->pool_count; p++) /* a search over all: there are at most as many as stores */
        if (memcmp(t->pools[p], data, sizeof(content)) == 0) return (uint16_t)p;
    memcpy(t->pools[t->pool_count], data, sizeof(content));
    return (uint16_t)t->pool_count++;
}

static host_set hosts_of(const world *w, rank_set ranks) {
    unsigned hosts = 0;
    for (int r = 0; r < w->ranks; r++) hosts |= (unsigned)(ranks >> r & 1) << w->host_of[r];
    return (host_set)hosts;
}

static line_info describe(line_table *t, const line_state *s) {
    const world *w = t->w;
    line_info info = {
        .away = line_away(s),
        .dirty = line_dirty(w, s),
        .posted = line_posted(w, s),
        .stored_nt = hosts_of(w, line_stored_nt(w, s)),
        .holds_fence = line_holds_fence(w, s),
        .meets_fence = line_meets_fence(w, s),
        .pool = pool_number(t, s->version[s->versions - 1]),
    };
    line_result ignored[CHOICES_MAX];
    for (uint32_t k = 0; k < t->nature_count; k++)
        if (line_apply(w, s, t->actions[k], ignored) != 0) info.nature |= (uint64_t)1 << k;
    return info;
}

/* Return a state's number, and give it one if it is new; -1 in trouble. */
static int state_number(line_table *t, const line_state *s) {
    uint32_t at = (uint32_t)hash(s, sizeof *s) & (t->slot_count - 1);
    for (; t->slots[at] != 0; at = (at + 1) & (t->slot_count - 1))
        if (memcmp(&t->states[t->slots[at] - 1], s, sizeof *s) == 0) return (int)t->slots[at] - 1;
    if (t->state_count == LINE_STATES_MAX) {
        t->trouble = TOO_MANY_LINE_STATES;
        return -1;
    }
    if (t->state_count == t->state_capacity) {
        uint32_t more = t->state_capacity * 2;
        if (!table_grow(&t->states, more, sizeof *t->states) || !table_grow(&t->info, more, sizeof *t->info) ||
            !table_grow(&t->pools, more, sizeof *t->pools) || !resize(t, more, t->action_capacity)) {
            t->trouble = NO_MEMORY;
            return -1;
        }
    }
    uint32_t number = t->state_count++;
    t->states[number] = *s;
    t->slots[at] = number + 1;
    t->info[number] = describe(t, s);
    if (t->state_count * 2 > t->slot_count && !rehash(t, t->slot_count * 2)) {
        t->trouble = NO_MEMORY;
        return -1;
    }
    return (int)number;
}

bool table_begin(line_table *t, const world *w, const content initial, uint8_t words) {
    *t = (line_table){.w = w, .words = words};
    uint32_t nature = (uint32_t)(OF_HOSTS_COUNT * w->hosts + w->ranks);
    t->action_capacity = nature + ENOUGH;
    t->actions = calloc(t->action_capacity, sizeof *t->actions);
    if (t->actions == NULL || !table_grow(&t->states, ENOUGH, sizeof *t->states) ||
        !table_grow(&t->info, ENOUGH, sizeof *t->info) || !table_grow(&t->pools, ENOUGH, sizeof *t->pools) ||
        !resize(t, ENOUGH, t->action_capacity) || !rehash(t, 4 * ENOUGH) ||
        !table_grow(&t->successors, ENOUGH, sizeof *t->successors))
        return false;
    t->successor_capacity = ENOUGH;
    for (uint32_t k = 0; k < OF_HOSTS_COUNT; k++)
        for (uint8_t h = 0; h < w->hosts; h++)
            t->actions[t->action_count++] = (line_action){.what = OF_HOSTS[k], .host = h};
    for (uint8_t r = 0; r < w->ranks; r++)
        t->actions[t->action_count++] = (line_action){.what = LAND_NT, .host = w->host_of[r], .rank = r};
    t->nature_count = t->action_count;
    line_state s = {.versions = 1};
    memcpy(s.version[0], initial, sizeof(content));
    return state_number(t, &s) == 0;
}

void table_end(line_table *t) {
    free(t->states);
    free(t->info);
    free(t->slots);
    free(t->pools);
    free(t->actions);
    free(t->known);
    free(t->successors);
}

size_t table_bytes(const line_table *t) {
    size_t a_state = sizeof *t->states + sizeof *t->info + sizeof *t->pools + t->action_capacity * sizeof *t->known;
    return t->state_capacity * a_state + t->successor_capacity * sizeof *t->successors +
           t->slot_count * sizeof *t->slots;
}

int table_action(line_table *t, line_action a) {
    for (uint32_t k = 0; k < t->action_count; k++)
        if (memcmp(&t->actions[k], &a, sizeof a) == 0) return (int)k;
    if (t->action_count == t->action_capacity) {
        uint32_t more = t->action_capacity * 2;
        if (more > ACTIONS_MAX || !resize(t, t->state_capacity, more) ||
            !table_grow(&t->actions, more, sizeof *t->actions)) {
            t->trouble = NO_MEMORY;
            return -1;
        }
    }
    t->actions[t->action_count] = a;
    return (int)t->action_count++;
}

uint32_t table_find(line_table *t, uint16_t state, uint32_t number) {
    line_result found[CHOICES_MAX];
    line_state s = t->states[state];
    int count = line_apply(t->w, &s, t->actions[number], found);
    if (count == TOO_MUCH) {
        t->trouble = LINE_TOO_FULL;
        return 0;
    }
    uint32_t place = t->successor_count;
    if (place + CHOICES_MAX > t->successor_capacity) {
        uint32_t more = 2 * t->successor_capacity + CHOICES_MAX;
        if (more > UINT32_MAX / 64 || !table_grow(&t->successors, more, sizeof *t->successors)) {
            t->trouble = NO_MEMORY;
            return 0;
        }
        t->successor_capacity = more;
    }
    for (int k = 0; k < count; k++) {
        int after = state_number(t, &found[k].state);
        if (after < 0) return 0;
        bool known = false;
        for (uint32_t other = place; other < t->successor_count; other++)
            known |= t->successors[other].state == after && t->successors[other].seen == found[k].seen;
        if (known) continue;
        successor *next = &t->successors[t->successor_count++];
        *next = (successor){.state = (uint16_t)after, .seen = found[k].seen, .age = found[k].age};
    }
    return t->known[(size_t)state * t->action_capacity + number] = 1 + place * 64 + (t->successor_count - place);
}
