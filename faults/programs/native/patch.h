/* Traps in the code of loaded modules, in place of the instructions that the run must see: flushes, fences, non-temporal
 * stores and, in modules that flush, locked instructions. */
#ifndef CXLEMU_PATCH_H
#define CXLEMU_PATCH_H

#include "scan.h"

typedef struct {
    const uint8_t *at; /* of the original, whose first byte is a trap now */
    const uint8_t *slot; /* where it is executed out of line: see patch_aside */
    x86_instruction instruction;
} patch_site;

typedef struct {
    int modules; /* with sites */
    int64_t sites, undecoded,
        without_table; /* undecoded: functions; without_table: modules in which nothing was sought */
    int64_t microseconds;
} patch_totals;

/* Patch all modules that are loaded and were not looked at before. Not inside of a signal's handler. */
void patch_loaded(void);

patch_totals patch_total(void);

/* The site whose trap ended at `after`, NULL for a trap that is not ours. `aside`: it is the one at the end of a copy that
 * was begun by patch_stopping. */
const patch_site *patch_find(const uint8_t *after, bool *aside);

/* Where a copy of the instruction begins, which then goes on behind the original. */
static inline const uint8_t *patch_aside(const patch_site *site) { return site->slot; }

/* The same, which ends in a trap instead. */
const uint8_t *patch_stopping(const patch_site *site);

#endif
