/* The machine's own cache-line instructions, chosen at run time: the table in docs/memory-model.md. */
#ifndef CXLEMU_LINES_H
#define CXLEMU_LINES_H

#include <stdint.h>

/* Start writing back all lines of a range that are dirty; drop the lines, or keep them where the machine can. Complete
 * at the next lines_fence. */
void lines_flush(const void *at, int64_t nbytes, int keep);

/* The writer's fence: what was flushed or stored non-temporally before is in the pool. */
void lines_fence(void);

/* Flush and drop a range, then the reader's fence: later loads fetch. */
void lines_invalidate(const void *at, int64_t nbytes);

/* Whole lines by non-temporal stores, a head and a tail by ordinary stores and a flush; complete at lines_fence.
 * width: bytes of a store, 0 for the widest that the machine has. The regions do not overlap. */
void lines_copy_nt(void *to, const void *from, int64_t nbytes, int width);

/* One word of 8 bytes by a non-temporal store, complete at lines_fence; an ordinary one where there is none. */
void lines_store_nt(void *word, uint64_t value);

/* Whether the machine has non-temporal stores of that many bytes. */
int lines_has_width(int width);

/* Where loads and stores of a card go that was mapped at `pages`, and what was mapped there. Both are the same pages:
 * only a test's host keeps an image of the card instead, which shows what is missing. */
uint8_t *lines_mapped(uint8_t *pages, int64_t nbytes);
uint8_t *lines_unmapped(uint8_t *used);

/* The names of the instructions in use; empty on a machine whose instructions are not known here. */
const char *lines_instructions(void);

#endif
