#define _GNU_SOURCE
#include "elements.h"

#if defined(__x86_64__)

#include <string.h>

#include "registers.h"

static int64_t signed_at(const uint8_t *vector, unsigned nbytes, unsigned k) {
    int64_t wide;
    int32_t narrow;
    memcpy(&wide, vector + (nbytes == 8 ? 8 * k : 0), sizeof wide);
    memcpy(&narrow, vector + 4 * k, sizeof narrow);
    return nbytes == 8 ? wide : narrow;
}

static void add(element_runs *into, uint64_t begin, uint64_t end) {
    if (into->count && into->runs[into->count - 1].end == begin) into->runs[into->count - 1].end = end;
    else into->runs[into->count].begin = begin, into->runs[into->count++].end = end;
}

static uint64_t base_of(const uint8_t *code, uint64_t at, const uint64_t general[16], const x86_instruction *its,
                        const x86_elements *e) {
    const x86_address *memory = &its->memory;
    uint64_t from = (uint64_t)(int64_t)memory->displacement;
    if (e->displaced) from = (uint64_t)(int64_t)(int8_t)code[its->length - 1] * e->displaced;
    if (memory->base == X86_RIP) from += at + its->length;
    else if (memory->base != X86_NO_REGISTER) from += general[memory->base];
    if (!e->index_bytes && memory->index != X86_NO_REGISTER) from += general[memory->index] * memory->scale;
    return from;
}

bool elements_find(const uint8_t *code, uint64_t at, const uint64_t general[16], const uint8_t *area, size_t area_bytes,
                   element_runs *into) {
    uint8_t mask[64] = {0}, index[64] = {0};
    uint64_t bits = UINT64_MAX;
    x86_instruction its;
    x86_elements e;
    if (!x86_decode(code, X86_LONGEST, &its) || !its.has_memory || its.memory.segment || its.memory.narrow)
        return false;
    if (!x86_elements_of(code, &e)) return false;
    const uint64_t from = base_of(code, at, general, &its, &e);
    if (e.mask == X86_BY_OPMASK) bits = registers_opmask(area, area_bytes, e.by);
    if (e.mask == X86_BY_VECTOR && !registers_vector(area, area_bytes, e.by, 32, mask)) return false;
    if (e.index_bytes && !registers_vector(area, area_bytes, e.index, sizeof index, index)) return false;
    into->stores = e.stores, into->count = 0;
    for (unsigned k = 0, chosen = 0; k < e.count; k++) {
        if (!(e.mask == X86_BY_VECTOR ? mask[(k + 1) * e.nbytes - 1] >> 7 : bits >> k & 1)) continue;
        const uint64_t place = e.index_bytes ? from + (uint64_t)signed_at(index, e.index_bytes, k) * e.scale
                                             : from + (uint64_t)(e.packed ? chosen++ : k) * e.nbytes;
        add(into, place, place + e.nbytes);
    }
    return true;
}

#endif
