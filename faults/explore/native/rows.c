#include <stdlib.h>
#include <string.h>

#include "rows.h"

bool rows_begin(row_set *rows, uint32_t width) {
    *rows = (row_set){.width = (width + 3) / 4 * 4, .capacity = 1024, .slot_count = 4096};
    rows->rows = malloc((size_t)rows->capacity * rows->width * sizeof *rows->rows);
    rows->slots = calloc(rows->slot_count, sizeof *rows->slots);
    return rows->rows != NULL && rows->slots != NULL;
}

void rows_end(row_set *rows) {
    free(rows->rows);
    free(rows->slots);
}

void rows_clear(row_set *rows) {
    memset(rows->slots, 0, rows->slot_count * sizeof *rows->slots);
    rows->count = 0;
}

size_t rows_bytes(const row_set *rows) {
    return (size_t)rows->capacity * rows->width * sizeof *rows->rows + (size_t)rows->slot_count * sizeof *rows->slots;
}

static inline uint64_t hash(const uint16_t *row, uint32_t width) {
    uint64_t h = 0x9E3779B97F4A7C15u;
    for (uint32_t k = 0; k < width; k += 4) {
        uint64_t four;
        memcpy(&four, row + k, sizeof four);
        h = (h ^ four) * 0xFF51AFD7ED558CCDu;
        h ^= h >> 32;
    }
    h *= 0xC4CEB9FE1A85EC53u;
    return h ^ h >> 29;
}

static const uint64_t HIGH = 0xFFFFFFFF00000000u;

static bool more_slots(row_set *rows) {
    uint32_t slots = rows->slot_count * 2;
    uint64_t *fresh = calloc(slots, sizeof *fresh);
    if (fresh == NULL)
        return false;
    for (uint32_t k = 0; k < rows->count; k++) {
        uint64_t h = hash(rows_at(rows, k), rows->width);
        uint32_t at = (uint32_t)h & (slots - 1);
        while (fresh[at] != 0)
            at = (at + 1) & (slots - 1);
        fresh[at] = (h & HIGH) | (k + 1);
    }
    free(rows->slots);
    rows->slots = fresh;
    rows->slot_count = slots;
    return true;
}

static bool more_rows(row_set *rows) {
    size_t capacity = (size_t)rows->capacity * 2;
    uint16_t *larger = capacity > UINT32_MAX / 2 ? NULL : realloc(rows->rows, capacity * rows->width * sizeof *larger);
    if (larger == NULL)
        return false;
    rows->rows = larger;
    rows->capacity = (uint32_t)capacity;
    return true;
}

uint32_t rows_add(row_set *rows, const uint16_t *row, bool *fresh) {
    uint64_t h = hash(row, rows->width);
    uint32_t mask = rows->slot_count - 1, at = (uint32_t)h & mask;
    *fresh = false;
    for (uint64_t slot; (slot = rows->slots[at]) != 0; at = (at + 1) & mask)
        if (((slot ^ h) & HIGH) == 0) {
            uint32_t number = (uint32_t)slot - 1;
            if (memcmp(rows_at(rows, number), row, rows->width * sizeof *row) == 0)
                return number;
        }
    if (rows->count == rows->capacity && !more_rows(rows))
        return NO_ROW;
    uint32_t number = rows->count++;
    memcpy(rows->rows + (size_t)number * rows->width, row, rows->width * sizeof *row);
    rows->slots[at] = (h & HIGH) | (number + 1);
    if (rows->count > rows->slot_count / 2 && !more_slots(rows))
        return NO_ROW;
    *fresh = true;
    return number;
}
