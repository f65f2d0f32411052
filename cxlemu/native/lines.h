/* The machine's own cache-line instructions, chosen at run time from the table in docs/memory-model.md. */
#ifndef CXLEMU_LINES_H
#define CXLEMU_LINES_H

#include <stdint.h>

/* Start writing back all dirty lines of a range, and drop the lines or, with `keep` and where the machine can, keep them. The
 * next lines_fence completes this. */
void lines_flush(const void *at, int64_t nbytes, int keep);

/* Fence for a writer: what was flushed or stored non-temporally before is in the pool. */
void lines_fence(void);

/* Flush and drop a range, and fence for a reader: later loads fetch it anew. */
void lines_invalidate(const void *at, int64_t nbytes);

/* Copy whole lines by non-temporal stores, a head and a tail by ordinary stores and a flush. The next lines_fence completes
 * this. width: bytes of a store, 0 for the widest that the machine has. The ranges do not overlap. */
void lines_copy_nt(void *to, const void *from, int64_t nbytes, int width);

/* The same for a source that another core will write again: its lines, too, are to stay in none of this core's caches,
 * from which that core would have to fetch them back. */
void lines_copy_past(void *to, const void *from, int64_t nbytes);

/* Store a word of 8 bytes non-temporally, where the machine can. The next lines_fence completes this. */
void lines_store_nt(void *word, uint64_t value);

/* Return whether the machine has non-temporal stores of that many bytes. */
int lines_has_width(int width);

/* Return where loads and stores go for a card that was mapped at `pages`, and the reverse. Both are the same pages, except on
 * a test's host, which keeps an image of the card to show which instructions are missing. */
uint8_t *lines_mapped(uint8_t *pages, int64_t nbytes);
uint8_t *lines_unmapped(uint8_t *used);

/* Return the names of the instructions in use; "" on a machine whose instructions are unknown. */
const char *lines_instructions(void);

#endif
