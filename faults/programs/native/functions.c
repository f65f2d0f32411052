#include "functions.h"

#include <elf.h>
#include <string.h>

/* The encodings of the table, the same for all linkers: its own place relative to itself, a count of four bytes, and
 * pairs of four bytes relative to its begin. */
enum { VERSION = 1, POINTER_PCREL_4 = 0x1B, COUNT_4 = 0x03, PAIRS_DATAREL_4 = 0x3B };
enum { HEADER_BYTES = 12, PAIR_BYTES = 8 };

bool loaded_module_from(uintptr_t base, const ElfW(Phdr) * headers, int count, loaded_module *into) {
    *into = (loaded_module){0};
    for (int k = 0; k < count; k++) {
        const ElfW(Phdr) *header = &headers[k];
        const uint8_t *begin = (const uint8_t *)(base + header->p_vaddr);
        if (header->p_type == PT_GNU_EH_FRAME) into->table = begin, into->table_bytes = header->p_memsz;
        if (header->p_type != PT_LOAD) continue;
        if (into->segment_count == MAX_SEGMENTS) return false;
        into->segments[into->segment_count++] = (segment){begin, begin + header->p_memsz, (header->p_flags & PF_R) != 0,
                                                          (header->p_flags & PF_X) != 0};
    }
    return true;
}

static const segment *segment_of(const loaded_module *module, const uint8_t *begin, size_t nbytes) {
    for (int32_t k = 0; k < module->segment_count; k++) {
        const segment *s = &module->segments[k];
        if (begin >= s->begin && begin < s->end && nbytes <= (size_t)(s->end - begin)) return s;
    }
    return NULL;
}

static int32_t signed_4(const uint8_t *at) {
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Return the size of the function that begins at `begin` according to the table, from its entry in .eh_frame: length,
 * CIE, begin, range. Its begin is relative to itself, in four bytes or, in the large code model, in eight: the form
 * that agrees with the table is the one in use. Return 0 if neither agrees. */
static size_t function_bytes(const loaded_module *module, const uint8_t *entry, const uint8_t *begin) {
    const uint8_t *field = entry + 8;
    const segment *s = segment_of(module, entry, 16);
    if (!s || !s->readable) return 0;
    if (field + signed_4(field) == begin) return (uint32_t)signed_4(field + 4);
    int64_t wide[2];
    if (s->end - entry < 24) return 0;
    memcpy(wide, field, sizeof wide);
    return (uintptr_t)field + (uint64_t)wide[0] == (uintptr_t)begin ? (size_t)wide[1] : 0;
}

function_count functions_visit(const loaded_module *module, function_visitor visit, void *context) {
    function_count count = {0};
    const uint8_t *table = module->table;
    const segment *home = table ? segment_of(module, table, HEADER_BYTES) : NULL;
    if (!home || !home->readable || module->table_bytes < HEADER_BYTES ||
        module->table_bytes > (size_t)(home->end - table))
        return count;
    const uint8_t wanted[] = {VERSION, POINTER_PCREL_4, COUNT_4, PAIRS_DATAREL_4};
    if (memcmp(table, wanted, sizeof wanted) != 0) return count;
    const size_t room = (module->table_bytes - HEADER_BYTES) / PAIR_BYTES, said = (uint32_t)signed_4(table + 8);
    if (said > room) return count;
    count.has_table = true;
    for (size_t k = 0; k < said; k++) {
        const uint8_t *pair = table + HEADER_BYTES + k * PAIR_BYTES;
        const uint8_t *begin = table + signed_4(pair);
        const size_t nbytes = function_bytes(module, table + signed_4(pair + 4), begin);
        const segment *code = nbytes ? segment_of(module, begin, nbytes) : NULL;
        if (!code || !code->executable || !code->readable) {
            count.unknown++;
            continue;
        }
        count.functions++;
        count.bytes += (int64_t)nbytes;
        if (!visit(begin, begin + nbytes, context)) break;
    }
    return count;
}
