/* Traps in the code of loaded modules, in place of the instructions that the run must see: flushes, fences, non-temporal
 * stores and, in modules that flush, locked instructions. Recompiled modules announce their locked instructions. */
#ifndef CXLEMU_PATCH_H
#define CXLEMU_PATCH_H

#include "scan.h"

typedef struct {
    const uint8_t *at; /* the original, whose first byte is a trap now */
    const uint8_t *slot; /* the copy that is executed instead: see patch_aside */
    x86_instruction instruction;
} patch_site;

typedef struct {
    int modules; /* those with sites */
    int64_t sites;
    int64_t undecoded; /* functions that could not be decoded */
    int64_t without_table; /* modules in which nothing was sought */
    int64_t microseconds;
} patch_totals;

/* Patch all loaded modules that were not looked at before. Not to be called in a signal's handler. */
void patch_loaded(void);

patch_totals patch_total(void);

bool module_recompiled(const struct dl_phdr_info *info); /* whether it calls what tsan.c defines: sites.c */

/* Return the site whose trap ended at `after`; NULL where this library did not set it. *aside: whether it is the trap at the
 * end of a copy that patch_stopping returned. */
const patch_site *patch_find(const uint8_t *after, bool *aside);

/* Return a copy of the instruction, which goes on behind the original. */
static inline const uint8_t *patch_aside(const patch_site *site) { return site->slot; }

/* Return a copy of the instruction that ends in a trap instead. */
const uint8_t *patch_stopping(const patch_site *site);

#endif
