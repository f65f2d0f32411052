/* Numbers the states that a line has been seen in. What an action makes of a state is found once, and then looked up, so that a
 * search goes from number to number. */
#ifndef CXLEMU_TABLE_H
#define CXLEMU_TABLE_H

#include <stddef.h>

#include "line.h"

enum { LINE_STATES_MAX = 0xFFFF, ACTIONS_MAX = 1 << 14 };

/* Why a search stopped before its end. */
enum trouble {
    NO_TROUBLE,
    NO_MEMORY,
    LINE_TOO_FULL,
    TOO_MANY_LINE_STATES,
    TOO_MANY_VALUES,
    TOO_MANY_NODES,
    INTERRUPTED
};

typedef struct {
    host_set away; /* hosts that retired, and have not crashed */
    host_set dirty, posted, stored_nt; /* stored_nt: hosts with ranks that have non-temporal stores here */
    rank_set holds_fence, meets_fence;
    uint64_t nature; /* nature's actions that are possible: a bit for each number */
    uint16_t pool; /* the number of the content that the pool holds */
} line_info;

typedef struct {
    uint16_t state;
    uint8_t seen;
    int8_t age;
} successor;

typedef struct {
    const world *w;
    uint8_t words;
    line_state *states;
    line_info *info;
    uint32_t *slots, *pool_slots; /* hash tables of states and of pool contents: number + 1 */
    uint32_t state_count, state_capacity, slot_count;
    content *pools;
    uint32_t pool_count;
    line_action *actions; /* nature's come first */
    uint32_t action_count, action_capacity, nature_count;
    uint32_t *known; /* [state][action]: 0 if not found yet; else 1 + (place in successors * 64 + how many they are) */
    successor *successors;
    uint32_t successor_count, successor_capacity;
    enum trouble trouble;
} line_table;

/* Make room for `count` items in *pointer; false leaves it as it is. */
bool table_grow(void *pointer, size_t count, size_t size);

bool table_begin(line_table *t, const world *w, const content initial, uint8_t words);
void table_end(line_table *t);
size_t table_bytes(const line_table *t);

/* Return the number of an action, -1 in trouble. */
int table_action(line_table *t, line_action a);

/* Find what an action makes of a state, and return the entry of `known`; 0 in trouble. */
uint32_t table_find(line_table *t, uint16_t state, uint32_t number);

/* Return what an action makes of a state: `count` successors. In trouble `count` is 0, and t->trouble is set. */
static inline const successor *table_next(line_table *t, uint16_t state, uint32_t number, int *count) {
    uint32_t entry = t->known[(size_t)state * t->action_capacity + number];
    if (entry == 0) entry = table_find(t, state, number);
    if (entry == 0) {
        *count = 0;
        return t->successors;
    }
    *count = (int)((entry - 1) % 64);
    return t->successors + (entry - 1) / 64;
}

#endif
