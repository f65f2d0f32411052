/* Lines that leave a cache in the middle of a store, which is several ones to a processor. */
#ifndef CXLEMU_TEARS_H
#define CXLEMU_TEARS_H

#include "image.h"

/* Whether a store of so many bytes is several ones to a processor: copies are, and of vectors only an aligned one of 16 bytes is not. */
bool store_tears(int64_t offset, int64_t nbytes);

void tears_note(const program_step *store,
                pool_lines lines); /* before these of its lines are told; it may be torn until the next call */
void tears_forget(int thread); /* at its thread's next step */

/* Let a line have left the cache when only `count` of the words that the store changes were there, the first or the `last` ones, and
 * come back for the others. Returns whether that was possible. */
bool tear_make(int host, int pool, int64_t line, bool last, int count);

void tears_moved(const program_move *move);
void tears_loaded(const program_step *load); /* a finding where words had not arrived of a line with words that had */

#endif
