/* Where the assembler macros of announce.h lead: all registers are as they were when the program goes on. */
#include "self.h"

#if defined(__x86_64__)

#define HOOK(name, body)                                                                                \
    __attribute__((used, visibility("hidden"))) void cxlemu_hook_##name(const void *at, const void *pc, \
                                                                        const uint8_t *data);           \
    void cxlemu_hook_##name(const void *at, const void *pc, const uint8_t *data) {                      \
        (void)at, (void)pc, (void)data;                                                                 \
        body;                                                                                           \
    }                                                                                                   \
    __asm__(".text\n.globl __cxlemu_asm_" #name "\n.type __cxlemu_asm_" #name ", @function\n"           \
            "__cxlemu_asm_" #name ":\n"                                                                 \
            "pushfq\n pushq %rax\n pushq %r11\n"                                                        \
            "leaq cxlemu_hook_" #name "(%rip), %r11\n"                                                  \
            "jmp cxlemu_asm_common\n");

HOOK(clflush, prog_flush(at, FLUSH_DROP_ORDERED, pc))
HOOK(clflushopt, prog_flush(at, FLUSH_DROP, pc))
HOOK(clwb, prog_flush(at, FLUSH_KEEP, pc))
HOOK(sfence, prog_fence(FENCE_STORES, pc))
HOOK(lfence, prog_fence(FENCE_LOADS, pc))
HOOK(mfence, prog_fence(FENCE_FULL, pc))
HOOK(lock, prog_fence(FENCE_LOCKED, pc))
HOOK(nt4, prog_nt_store((void *)(uintptr_t)at, data, 4, pc))
HOOK(nt8, prog_nt_store((void *)(uintptr_t)at, data, 8, pc))
HOOK(nt16, prog_nt_store((void *)(uintptr_t)at, data, 16, pc))
HOOK(nt32, prog_nt_store((void *)(uintptr_t)at, data, 32, pc))
HOOK(nt64, prog_nt_store((void *)(uintptr_t)at, data, 64, pc))

/* On the stack above what is saved: the return address, the program's %rdi, and what a non-temporal store stores. Of the
 * vector state all that C may use is saved, 0xe7: everything but tiles. */
__asm__(".text\n"
        "cxlemu_asm_common:\n"
        "pushq %rcx\n pushq %rdx\n pushq %rsi\n pushq %rdi\n pushq %r8\n pushq %r9\n pushq %r10\n pushq %rbp\n"
        "movq %rsp, %rbp\n cld\n"
        "subq $2880, %rsp\n andq $-64, %rsp\n"
        "xorl %eax, %eax\n xorl %edx, %edx\n"
        "movq %rax, 512(%rsp)\n movq %rax, 520(%rsp)\n movq %rax, 528(%rsp)\n movq %rax, 536(%rsp)\n"
        "movq %rax, 544(%rsp)\n movq %rax, 552(%rsp)\n movq %rax, 560(%rsp)\n movq %rax, 568(%rsp)\n"
        "movl $0xe7, %eax\n xsave64 (%rsp)\n"
        "movq 88(%rbp), %rsi\n leaq 104(%rbp), %rdx\n"
        "call *%r11\n"
        "movl $0xe7, %eax\n xorl %edx, %edx\n xrstor64 (%rsp)\n"
        "movq %rbp, %rsp\n"
        "popq %rbp\n popq %r10\n popq %r9\n popq %r8\n popq %rdi\n popq %rsi\n popq %rdx\n popq %rcx\n"
        "popq %r11\n popq %rax\n popfq\n ret\n");

#endif
