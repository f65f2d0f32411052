#include "scan.h"

#include <sys/syscall.h>

typedef struct {
    bool locked;
    site_visitor visit;
    void *context;
    scan_count count;
} scan;

/* Whether an instruction gives %eax the number of a system call that asynchronous.c follows. */
static bool names_call(const uint8_t *at, const x86_instruction *instruction) {
    if (at[0] != 0xB8 || instruction->length != 5) return false;
    const uint32_t number = at[1] | (uint32_t)at[2] << 8 | (uint32_t)at[3] << 16 | (uint32_t)at[4] << 24;
    return number == SYS_io_submit || (number >= SYS_io_uring_setup && number <= SYS_io_uring_register);
}

static bool scan_function(const uint8_t *begin, const uint8_t *end, void *context) {
    scan *s = context;
    if (!x86_candidate(begin, (size_t)(end - begin), s->locked)) return true;
    s->count.decoded++;
    x86_instruction instruction;
    bool calls = false;
    for (const uint8_t *at = begin; at < end; at += instruction.length) {
        if (!x86_decode(at, (size_t)(end - at), &instruction)) {
            s->count.undecoded++;
            return true;
        }
        calls |= names_call(at, &instruction);
        if (calls && at[0] == 0x0F && at[1] == 0x05) instruction.kind = X86_SYSTEM_CALL;
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
