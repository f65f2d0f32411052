#include "scan.h"

typedef struct {
    bool locked;
    site_visitor visit;
    void *context;
    scan_count count;
} scan;

static bool scan_function(const uint8_t *begin, const uint8_t *end, void *context) {
    scan *s = context;
    if (!x86_candidate(begin, (size_t)(end - begin), s->locked)) return true;
    s->count.decoded++;
    x86_instruction instruction;
    for (const uint8_t *at = begin; at < end; at += instruction.length) {
        if (!x86_decode(at, (size_t)(end - at), &instruction)) {
            s->count.undecoded++;
            return true;
        }
        if (instruction.kind == X86_OTHER || (instruction.kind == X86_LOCKED && !s->locked)) continue;
        s->count.sites[instruction.kind]++;
        if (!s->visit(at, &instruction, s->context)) return false;
    }
    return true;
}

scan_count scan_module(const loaded_module *module, bool locked, site_visitor visit, void *context) {
    scan s = {.locked = locked, .visit = visit, .context = context};
    s.count.table = functions_visit(module, scan_function, &s);
    return s.count;
}
