#include "rows.h"

#include <stdlib.h>
#include <string.h>

enum { FEW = 16 };

static bool begin(item_set *set) {
    *set = (item_set){.capacity = FEW, .slot_count = 2 * FEW};
    set->items = malloc(set->capacity * sizeof *set->items);
    set->slots = calloc(set->slot_count, sizeof *set->slots);
    return set->items != NULL && set->slots != NULL;
}

/* Deal the numbers out to the leaves in turn: neighbours in a row are often of one kind, and change each by itself. */
static void set_order(row_set *rows) {
    for (uint32_t k = 0; k < rows->width; k++) rows->order[k % rows->leaves * IN_A_LEAF + k / rows->leaves] = k;
}

static void forget_got(row_set *rows) { memset(rows->got_places, 0xFF, rows->node_count * sizeof *rows->got_places); }

bool rows_begin(row_set *rows, uint32_t width) {
    uint32_t leaves = (width + IN_A_LEAF - 1) / IN_A_LEAF;
    *rows = (row_set){.leaves = leaves, .node_count = 2 * leaves - 1, .width = leaves * IN_A_LEAF};
    rows->nodes = calloc(rows->node_count, sizeof *rows->nodes);
    rows->places = calloc(rows->node_count, sizeof *rows->places);
    rows->got_places = malloc(rows->node_count * sizeof *rows->got_places);
    rows->got_items = calloc(rows->node_count, sizeof *rows->got_items);
    rows->order = calloc(rows->width, sizeof *rows->order);
    bool fine = rows->nodes != NULL && rows->places != NULL && rows->order != NULL && rows->got_places != NULL &&
                rows->got_items != NULL;
    if (fine) set_order(rows);
    if (fine) forget_got(rows);
    for (uint32_t k = 0; fine && k < rows->node_count; k++) fine = begin(&rows->nodes[k]);
    return fine;
}

void rows_end(row_set *rows) {
    for (uint32_t k = 0; rows->nodes != NULL && k < rows->node_count; k++) {
        free(rows->nodes[k].items);
        free(rows->nodes[k].slots);
    }
    free(rows->nodes);
    free(rows->places);
    free(rows->got_places);
    free(rows->got_items);
    free(rows->order);
}

void rows_clear(row_set *rows) {
    for (uint32_t k = 0; k < rows->node_count; k++) {
        memset(rows->nodes[k].slots, 0, rows->nodes[k].slot_count * sizeof *rows->nodes[k].slots);
        rows->nodes[k].count = 0;
    }
    rows->count = 0;
    forget_got(rows);
}

size_t rows_bytes(const row_set *rows) {
    size_t sum = rows->node_count * (sizeof *rows->nodes + sizeof *rows->places);
    for (uint32_t k = 0; k < rows->node_count; k++)
        sum += rows->nodes[k].capacity * sizeof(uint64_t) + rows->nodes[k].slot_count * sizeof(uint32_t);
    return sum;
}

static inline uint32_t hash(uint64_t item) {
    item = (item ^ item >> 32) * 0xFF51AFD7ED558CCDu;
    item = (item ^ item >> 32) * 0xC4CEB9FE1A85EC53u;
    return (uint32_t)(item >> 32);
}

static bool more_items(item_set *set) {
    uint64_t capacity = set->capacity + set->capacity / 2;
    uint64_t *larger = capacity >= NO_ROW ? NULL : realloc(set->items, capacity * sizeof *larger);
    if (larger == NULL) return false;
    set->items = larger;
    set->capacity = (uint32_t)capacity;
    return true;
}

static bool more_slots(item_set *set) {
    uint32_t mask = set->slot_count * 2 - 1,
             *fresh = mask == UINT32_MAX ? NULL : calloc((size_t)mask + 1, sizeof *fresh);
    if (fresh == NULL) return false;
    for (uint32_t k = 0; k < set->count; k++) {
        uint32_t at = hash(set->items[k]) & mask;
        while (fresh[at] != 0) at = (at + 1) & mask;
        fresh[at] = k + 1;
    }
    free(set->slots);
    set->slots = fresh;
    set->slot_count = mask + 1;
    return true;
}

/* Return an item's number, and give it one if it is new; NO_ROW without memory. */
static uint32_t add(item_set *set, uint64_t item) {
    uint32_t mask = set->slot_count - 1, at = hash(item) & mask;
    for (; set->slots[at] != 0; at = (at + 1) & mask)
        if (set->items[set->slots[at] - 1] == item) return set->slots[at] - 1;
    if (set->count == set->capacity && !more_items(set)) return NO_ROW;
    uint32_t number = set->count++;
    set->items[number] = item;
    set->slots[at] = number + 1;
    return set->count <= set->slot_count / 4 * 3 || more_slots(set) ? number : NO_ROW;
}

static uint64_t leaf(const uint16_t *row, const uint32_t *order) {
    uint64_t item = 0;
    for (int k = 0; k < IN_A_LEAF; k++) item |= (uint64_t)row[order[k]] << 16 * k;
    return item;
}

static uint64_t item_of(const row_set *rows, const uint16_t *row, uint32_t node) {
    uint32_t first_leaf = rows->leaves - 1;
    if (node >= first_leaf) return leaf(row, rows->order + (size_t)IN_A_LEAF * (node - first_leaf));
    return (uint64_t)rows->places[2 * node + 1] << 32 | rows->places[2 * node + 2];
}

bool rows_root(row_set *rows, const uint16_t *row, uint64_t *root) {
    for (uint32_t k = rows->node_count; k-- > 1;) {
        uint64_t item = item_of(rows, row, k);
        rows->places[k] = item == rows->got_items[k] ? rows->got_places[k] : NO_ROW;
        if (rows->places[k] == NO_ROW) rows->places[k] = add(&rows->nodes[k], item);
        if (rows->places[k] == NO_ROW) return false;
    }
    *root = item_of(rows, row, 0);
    __builtin_prefetch(&rows->nodes->slots[hash(*root) & (rows->nodes->slot_count - 1)]);
    return true;
}

void rows_expect(const row_set *rows, uint64_t root) {
    const item_set *set = &rows->nodes[0];
    uint32_t slot = set->slots[hash(root) & (set->slot_count - 1)];
    if (slot != 0) __builtin_prefetch(&set->items[slot - 1]);
}

uint32_t rows_add_root(row_set *rows, uint64_t root, bool *fresh) {
    uint32_t number = add(&rows->nodes[0], root);
    *fresh = number == rows->count;
    rows->count = rows->nodes[0].count;
    return number;
}

uint32_t rows_add(row_set *rows, const uint16_t *row, bool *fresh) {
    uint64_t root;
    return rows_root(rows, row, &root) ? rows_add_root(rows, root, fresh) : NO_ROW;
}

void rows_get(row_set *rows, uint32_t number, uint16_t *row) {
    uint32_t first_leaf = rows->leaves - 1, *places = rows->got_places;
    places[0] = number;
    for (uint32_t k = 0; k < rows->node_count; k++) {
        uint64_t item = rows->got_items[k] = rows->nodes[k].items[places[k]];
        if (k >= first_leaf) {
            for (uint32_t n = 0; n < IN_A_LEAF; n++)
                row[rows->order[IN_A_LEAF * (k - first_leaf) + n]] = (uint16_t)(item >> 16 * n);
        } else {
            places[2 * k + 1] = (uint32_t)(item >> 32);
            places[2 * k + 2] = (uint32_t)item;
        }
    }
}
