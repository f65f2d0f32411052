/* Records without what they leave at zero, 16 to 112 bytes each: large worlds have millions, of which most name one operand. */
#ifndef CXLEMU_VIRTUAL_PACKED_H
#define CXLEMU_VIRTUAL_PACKED_H

#include "../core.h"

typedef struct {
    uint8_t op, dtype, redop, flags;
    int32_t arg;
    uint16_t there; /* bits: which of the 8-byte words that follow these fields in a record come behind this head */
    uint16_t heads; /* how many times as large as a head it is with them */
    int32_t pad;
} packed;

/* How many bytes records take packed. */
int64_t packed_bytes(const record *records, int64_t count);

/* Pack records, one behind the other, into as many bytes. */
void packed_fill(const record *records, int64_t count, packed *into);

/* The record that a packed one stands for. */
record packed_record(const packed *its);

/* The one behind it. */
static inline const packed *next_packed(const packed *its) { return its + its->heads; }

#endif
