/* Finds a module's instructions that act on the machine's caches: decodes those of its functions that may hold any. */
#ifndef CXLEMU_SCAN_H
#define CXLEMU_SCAN_H

#include "functions.h"
#include "x86.h"

/* Called for each site, with the instruction's first byte in `code`; returns false to stop. */
typedef bool (*site_visitor)(const uint8_t *code, const x86_instruction *instruction, void *context);

typedef struct {
    function_count table;
    int64_t decoded; /* functions that were decoded */
    int64_t undecoded; /* those of them with bytes that are no known instruction, behind which nothing was found */
    int64_t sites[X86_KINDS];
} scan_count;

/* Visit a module's sites. Without `locked`, locked instructions are neither visited nor counted. */
scan_count scan_module(const loaded_module *module, bool locked, site_visitor visit, void *context);

#endif
