/* Equally long rows of 16-bit numbers, each kept once and numbered in the order they came. The rows themselves are
 * compared, so a set never takes one row for another. */
#ifndef CXLEMU_ROWS_H
#define CXLEMU_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint16_t *rows;
    uint64_t *slots; /* open addressing: the high half of the hash, and the row's number + 1 */
    uint32_t width;  /* of a row, a multiple of 4; what is left over is 0 */
    uint32_t count, capacity, slot_count;
} row_set;

#define NO_ROW UINT32_MAX

bool rows_begin(row_set *rows, uint32_t width);
void rows_end(row_set *rows);
void rows_clear(row_set *rows); /* it is empty again */
size_t rows_bytes(const row_set *rows);

/* The row's number, NO_ROW without memory. */
uint32_t rows_add(row_set *rows, const uint16_t *row, bool *fresh);

static inline const uint16_t *rows_at(const row_set *rows, uint32_t number) {
    return rows->rows + (size_t)number * rows->width;
}

#endif
