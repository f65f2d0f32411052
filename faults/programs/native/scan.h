/* Where a module says something to the machine's caches: its functions, decoded where they may hold such an instruction. */
#ifndef CXLEMU_SCAN_H
#define CXLEMU_SCAN_H

#include "functions.h"
#include "x86.h"

/* `code` is the instruction's first byte. Stop by returning false. */
typedef bool (*site_visitor)(const uint8_t *code, const x86_instruction *instruction, void *context);

typedef struct {
    function_count table;
    int64_t decoded; /* functions that were walked */
    int64_t undecoded; /* of these, with bytes that are no instruction known here: what comes after them was not seen */
    int64_t sites[X86_KINDS];
} scan_count;

/* Without `locked`, functions are left out that hold no other kind, and locked instructions are not counted. */
scan_count scan_module(const loaded_module *module, bool locked, site_visitor visit, void *context);

#endif
