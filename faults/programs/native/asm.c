/* The hooks that the assembler macros of announce.h call. They restore all registers before the program goes on. */
#include <string.h>

#include "elements.h"
#include "self.h"
#include "x86.h"

#if defined(__x86_64__)

#define HOOK(name, body)                                                                                           \
    __attribute__((used, visibility("hidden"))) void cxlemu_hook_##name(const void *at, const void *pc,            \
                                                                        const uint8_t *data, const uint8_t *area); \
    void cxlemu_hook_##name(const void *at, const void *pc, const uint8_t *data, const uint8_t *area) {            \
        (void)at, (void)pc, (void)data, (void)area;                                                                \
        body;                                                                                                      \
    }                                                                                                              \
    __asm__(".text\n.globl __cxlemu_asm_" #name "\n.type __cxlemu_asm_" #name ", @function\n"                      \
            "__cxlemu_asm_" #name ":\n"                                                                            \
            "pushfq\n pushq %rax\n pushq %r11\n"                                                                   \
            "leaq cxlemu_hook_" #name "(%rip), %r11\n"                                                             \
            "jmp cxlemu_asm_common\n");

/* Where the program's registers are saved, in bytes from the hook's `data` less DATA_AT; STACK: the stack pointer,
 * which is computed. */
enum { DATA_AT = 104, RED_ZONE = 128, STACK = -1 };
static const int SAVED_AT[16] = {72, 56, 48, -8, STACK, 0, 40, 96, 24, 16, 8, 64, -16, -24, -32, -40};

static uint64_t saved(const uint8_t *data, int number) {
    uint64_t value;
    if (SAVED_AT[number & 15] == STACK) return (uintptr_t)data + RED_ZONE;
    memcpy(&value, data - DATA_AT + SAVED_AT[number & 15], sizeof value);
    return value;
}

/* An instruction stands behind the popq and the leaq, 9 bytes, that its macro puts in front of it. */
enum { BEHIND_CALL = 9, AREA_BYTES = 2880 };

static void locked(const uint8_t *data, const void *pc) {
    const uint8_t *code = (const uint8_t *)pc + BEHIND_CALL;
    x86_instruction its;
    const bool known = x86_decode(code, X86_LONGEST, &its) && its.kind == X86_LOCKED;
    if (!known || its.memory.narrow || its.memory.segment) {
        prog_fence(FENCE_LOCKED, pc);
        return;
    }
    uint64_t at = (uint64_t)(int64_t)its.memory.displacement;
    if (its.memory.base == X86_RIP) at += (uintptr_t)code + its.length;
    else if (its.memory.base != X86_NO_REGISTER) at += saved(data, its.memory.base);
    if (its.memory.index != X86_NO_REGISTER) at += saved(data, its.memory.index) * its.memory.scale;
    /* Up to version 14, clang leaves an atomic load behind the call that replaces it: one of 16 bytes is a cmpxchg16b of zeros. */
    if (its.nbytes == 16 && !(saved(data, 0) | saved(data, 1) | saved(data, 2) | saved(data, 3)) &&
        prog_announced(false, (void *)(uintptr_t)at, 16))
        return;
    prog_locked((void *)(uintptr_t)at, its.nbytes, pc);
}

static void elements(const uint8_t *data, const uint8_t *area, const void *pc) {
    const uint8_t *code = (const uint8_t *)pc + BEHIND_CALL;
    uint64_t general[16];
    element_runs found;
    for (int k = 0; k < 16; k++) general[k] = saved(data, k);
    if (!elements_find(code, (uintptr_t)code, general, area, AREA_BYTES, &found)) return;
    for (int k = 0; k < found.count; k++) {
        void *at = (void *)(uintptr_t)found.runs[k].begin;
        const size_t nbytes = found.runs[k].end - found.runs[k].begin;
        if (outside_pools(at) || prog_announced(found.stores, at, nbytes)) continue;
        if (found.stores) prog_store(at, nbytes, pc);
        else prog_load(at, nbytes, pc);
    }
}

/* A loop that pauses and makes no step waits by loads in inline assembly, which are not seen: it passes the turn on now and then. */
static void pauses(void) {
    if (!self) return;
    if (self->paused_at != here.area->steps) self->spins = 0;
    self->paused_at = here.area->steps;
    atomic_spins(NULL);
}

HOOK(clflush, prog_flush(at, FLUSH_DROP_ORDERED, pc))
HOOK(clflushopt, prog_flush(at, FLUSH_DROP, pc))
HOOK(clwb, prog_flush(at, FLUSH_KEEP, pc))
HOOK(sfence, prog_fence(FENCE_STORES, pc))
HOOK(lfence, prog_fence(FENCE_LOADS, pc))
HOOK(mfence, prog_fence(FENCE_FULL, pc))
HOOK(pause, pauses())
HOOK(lock, locked(data, pc))
HOOK(elements, elements(data, area, pc))
HOOK(nt4, prog_nt_store((void *)(uintptr_t)at, data, 4, pc))
HOOK(nt8, prog_nt_store((void *)(uintptr_t)at, data, 8, pc))
HOOK(nt16, prog_nt_store((void *)(uintptr_t)at, data, 16, pc))
HOOK(nt32, prog_nt_store((void *)(uintptr_t)at, data, 32, pc))
HOOK(nt64, prog_nt_store((void *)(uintptr_t)at, data, 64, pc))

/* The stack holds, above the saved registers, the return address, the program's %rdi, and the bytes of a non-temporal
 * store. The mask 0xe7 saves all vector state that C may use: everything but tiles. */
__asm__(".text\n"
        "cxlemu_asm_common:\n"
        "pushq %rcx\n pushq %rdx\n pushq %rsi\n pushq %rdi\n pushq %r8\n pushq %r9\n pushq %r10\n pushq %rbp\n"
        "movq %rsp, %rbp\n cld\n"
        "pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n" /* for `saved` only: calls preserve these */
        "subq $2880, %rsp\n andq $-64, %rsp\n"
        "xorl %eax, %eax\n xorl %edx, %edx\n"
        "movq %rax, 512(%rsp)\n movq %rax, 520(%rsp)\n movq %rax, 528(%rsp)\n movq %rax, 536(%rsp)\n"
        "movq %rax, 544(%rsp)\n movq %rax, 552(%rsp)\n movq %rax, 560(%rsp)\n movq %rax, 568(%rsp)\n"
        "movl $0xe7, %eax\n xsave64 (%rsp)\n"
        "movq 88(%rbp), %rsi\n leaq 104(%rbp), %rdx\n movq %rsp, %rcx\n"
        "call *%r11\n"
        "movl $0xe7, %eax\n xorl %edx, %edx\n xrstor64 (%rsp)\n"
        "movq %rbp, %rsp\n"
        "popq %rbp\n popq %r10\n popq %r9\n popq %r8\n popq %rdi\n popq %rsi\n popq %rdx\n popq %rcx\n"
        "popq %r11\n popq %rax\n popfq\n ret\n");

#endif
