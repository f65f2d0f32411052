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

/* A copy from a pool: two loads, between which a line of it leaves the cache. */
typedef struct {
    int64_t cut; /* where in the copy */
    bool down; /* the part behind that is loaded first */
    int pool, by; /* by: the host that has stored to the line */
    int64_t line;
    uint8_t before[LINE_BYTES]; /* the line when the first part was loaded */
} divided_load;

bool nature_divides(const void *from, size_t nbytes, divided_load *load); /* before the load; false: it is one */
void load_divided(divided_load *load); /* behind its first part */
void prog_load_rest(const void *at, size_t nbytes, const divided_load *load, const void *pc);
void tears_load(const divided_load *load,
                const program_step *rest); /* a finding where the line has changed meanwhile */

void tears_moved(const program_move *move);
void tears_loaded(const program_step *load); /* a finding where words had not arrived of a line with words that had */

#endif
