/* Equally long rows of 16-bit numbers, each kept once and numbered in the order they came.
 *
 * Rows that come from one another are alike, so a row is kept as a tree (Laarman, van de Pol, Weber: Parallel recursive
 * state compression for free, 2011): its leaves are four numbers of the row, every other node is the pair of its
 * children's places, and what is the same in two rows is kept once. Most rows cost the pair at the root, 8 bytes, and
 * its place in a hash table. Pairs themselves are compared, so a set never takes one row for another.
 */
#ifndef CXLEMU_ROWS_H
#define CXLEMU_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IN_A_LEAF = 4 };

typedef struct {
    uint64_t *items; /* in the order they came */
    uint32_t *slots; /* open addressing: the item's number + 1 */
    uint32_t count, capacity, slot_count;
} item_set;

typedef struct {
    item_set *nodes; /* the root first; the children of node k are 2k + 1 and 2k + 2 */
    uint32_t *places; /* of one row, node by node */
    uint32_t *order; /* where the leaves' numbers stand in the row */
    uint32_t leaves, node_count;
    uint32_t width; /* of a row, a multiple of IN_A_LEAF; what is left over is 0 */
    uint32_t count;
} row_set;

#define NO_ROW UINT32_MAX

/* The first numbers of a row are most of what tells rows apart: as many as `spread` says stand far from one another. */
bool rows_begin(row_set *rows, uint32_t width, uint32_t spread);
void rows_end(row_set *rows);
void rows_clear(row_set *rows); /* it is empty again */
size_t rows_bytes(const row_set *rows);

/* The row's number, NO_ROW without memory. */
uint32_t rows_add(row_set *rows, const uint16_t *row, bool *fresh);
void rows_get(const row_set *rows, uint32_t number, uint16_t *row);

#endif
