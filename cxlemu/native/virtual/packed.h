/* Records without their words that are zero, in 16 to 112 bytes each: large worlds have millions of them, and most name
 * one operand. */
#ifndef CXLEMU_VIRTUAL_PACKED_H
#define CXLEMU_VIRTUAL_PACKED_H

#include "../core.h"

typedef struct {
    uint8_t op, dtype, redop, flags;
    int32_t arg;
    uint16_t there; /* a bit for each 8-byte word of a record behind these fields: whether it follows this head */
    uint16_t heads; /* the size of head and words, in heads */
    int32_t pad;
} packed;

/* Return how many bytes records take when packed. */
int64_t packed_bytes(const record *records, int64_t count);

/* Pack records, one behind the other, into packed_bytes bytes. */
void packed_fill(const record *records, int64_t count, packed *into);

/* Return the record that a packed one stands for. */
record packed_record(const packed *its);

/* Return the packed record behind this one. */
static inline const packed *next_packed(const packed *its) { return its + its->heads; }

#endif
