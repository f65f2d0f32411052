/* The decoder over bytes of a file, and the scan of modules that this process has loaded, for tests through ctypes. */
#define _GNU_SOURCE
#include "scan.h"
#include "x86_access.h"

#include <string.h>

/* Of each of `count` instructions that begin at starts[k]: its length (0 if it is none), kind and stored bytes. */
void probe_decode(const uint8_t *code, int64_t nbytes, const int64_t *starts, int64_t count, uint8_t *lengths,
                  uint8_t *kinds, uint8_t *stored) {
    for (int64_t k = 0; k < count; k++) {
        x86_instruction instruction;
        lengths[k] = kinds[k] = stored[k] = 0;
        if (!x86_decode(code + starts[k], (size_t)(nbytes - starts[k]), &instruction)) continue;
        lengths[k] = instruction.length, kinds[k] = (uint8_t)instruction.kind, stored[k] = instruction.nbytes;
    }
}

typedef struct {
    uintptr_t inside;
    bool locked;
    int64_t room, found;
    uint64_t *addresses;
    uint8_t *kinds;
    uint64_t base;
    scan_count *count;
} probe;

static bool note(const uint8_t *code, const x86_instruction *instruction, void *context) {
    probe *p = context;
    if (p->found == p->room) return false;
    p->addresses[p->found] = (uintptr_t)code - p->base;
    p->kinds[p->found++] = (uint8_t)instruction->kind;
    return true;
}

static int look(struct dl_phdr_info *info, size_t size, void *context) {
    probe *p = context;
    bool is_it = false;
    loaded_module module;
    (void)size;
    if (!loaded_module_from(info->dlpi_addr, info->dlpi_phdr, info->dlpi_phnum, &module)) return 0;
    for (int k = 0; k < module.segment_count; k++)
        is_it |= ((uintptr_t)module.segments[k].begin & ~(uintptr_t)4095) <= p->inside &&
                 p->inside < (uintptr_t)module.segments[k].end;
    if (!is_it) return 0;
    p->base = info->dlpi_addr;
    *p->count = scan_module(&module, p->locked, note, p);
    return 1;
}

/* Sites of the module that has this address, relative to where it was loaded; returns how many. */
int64_t probe_scan(uint64_t inside, bool locked, uint64_t *addresses, uint8_t *kinds, int64_t room, scan_count *count) {
    probe p = {
        .inside = inside, .locked = locked, .room = room, .addresses = addresses, .kinds = kinds, .count = count};
    memset(count, 0, sizeof *count);
    dl_iterate_phdr(look, &p);
    return p.found;
}

/* The functions of a made-up module: one readable segment that holds its table, its entries and its code. */
int64_t probe_functions(const uint8_t *image, int64_t nbytes, int64_t table_at, int64_t table_bytes,
                        function_count *count) {
    const loaded_module module = {.segments = {{image, image + nbytes, true, true}},
                                  .segment_count = 1,
                                  .table = image + table_at,
                                  .table_bytes = (size_t)table_bytes};
    scan_count scanned = {0};
    probe p = {.room = 0, .count = &scanned};
    scanned = scan_module(&module, true, note, &p);
    *count = scanned.table;
    return scanned.table.functions;
}

/* Bytes of the memory operands at `starts`, 0 where there are none. */
void probe_access(const uint8_t *code, int64_t nbytes, const int64_t *starts, int64_t count, uint8_t *operands) {
    for (int64_t k = 0; k < count; k++) {
        x86_instruction instruction;
        if (!x86_decode(code + starts[k], (size_t)(nbytes - starts[k]), &instruction)) continue;
        const x86_access access = x86_access_of(code + starts[k], &instruction);
        operands[k] = instruction.has_memory || access.string ? access.nbytes : 0;
    }
}
