/* A set of equally long rows of 16-bit numbers, each kept once and numbered in the order in which they came.
 *
 * A row that comes from another one is much like it, so a row is kept as a tree (Laarman, van de Pol, Weber: Parallel
 * recursive state compression for free, 2011). A leaf is four numbers of the row, every other node is the pair of its
 * children's places, and equal nodes of two rows are kept once. Most rows cost the pair at the root, 8 bytes, and its place
 * in a hash table. The pairs themselves are compared, so that a set never takes one row for another.
 */
#ifndef CXLEMU_ROWS_H
#define CXLEMU_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IN_A_LEAF = 4 };

typedef struct {
    uint64_t *items; /* in the order in which they came */
    uint32_t *slots; /* open addressing: the item's number + 1 */
    uint32_t count, capacity, slot_count;
} item_set;

typedef struct {
    item_set *nodes; /* the root first; the children of node k are 2k + 1 and 2k + 2 */
    uint32_t *places; /* by node: its place, for the row that is added */
    uint32_t *
        got_places; /* the same for the row that was got last, which the next one is much like: NO_ROW if there is none */
    uint64_t *got_items;
    uint32_t *order; /* where in a row the leaves' numbers stand */
    uint32_t leaves, node_count;
    uint32_t width; /* of a row, rounded up to a multiple of IN_A_LEAF; the numbers beyond are 0 */
    uint32_t count;
} row_set;

#define NO_ROW UINT32_MAX

bool rows_begin(row_set *rows, uint32_t width); /* an empty set; false without memory */
void rows_end(row_set *rows);
void rows_clear(row_set *rows); /* make it empty again */
size_t rows_bytes(const row_set *rows);

/* Find the pair at a row's root; false without memory. Of several rows this is done first, so that their places come into the
 * cache at the same time. */
bool rows_root(row_set *rows, const uint16_t *row, uint64_t *root);
void rows_expect(const row_set *rows, uint64_t root);
uint32_t rows_add_root(row_set *rows, uint64_t root, bool *fresh); /* returns as rows_add does */

/* Return a row's number, NO_ROW without memory. *fresh: whether it is new. */
uint32_t rows_add(row_set *rows, const uint16_t *row, bool *fresh);
void rows_get(row_set *rows, uint32_t number, uint16_t *row);

#endif
