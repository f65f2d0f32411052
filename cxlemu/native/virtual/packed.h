/* Records in little memory: large worlds have tens of millions of them, and most streams do the same again and again at
 * other places. A block of records stands for itself and for repeats of it, in which each 8-byte word grows by what is
 * the same each time. Words that are zero, or do not grow, are left out. */
#ifndef CXLEMU_VIRTUAL_PACKED_H
#define CXLEMU_VIRTUAL_PACKED_H

#include "../core.h"

/* A stream's next record. At the stream's end it names none. */
typedef struct {
    const int64_t *block, *entry; /* the block, and the record in it */
    int32_t at, turn; /* the record's number in the block, and the repeat */
} packed_place;

/* Pack records into words, which the caller frees; *bytes: how many bytes these take. NULL without memory. */
int64_t *packed_make(const record *records, int64_t count, int64_t *bytes);

/* Return the place of the first record. */
static inline packed_place packed_begin(const int64_t *words) { return (packed_place){words, words + 1, 0, 0}; }

/* Return the record at a place. */
record packed_record(const packed_place *its);

/* Go to the next record. */
void packed_next(packed_place *its);

#endif
