/* Assembler macros that `cxlemu cc` includes before every C and C++ file: flushes, fences and non-temporal stores
 * become calls, whether they come from a compiler's builtin or from inline assembly. */
#ifndef CXLEMU_ANNOUNCE_H
#define CXLEMU_ANNOUNCE_H
#if defined(__x86_64__) && !defined(__ASSEMBLER__)

/* These macros leave the red zone as it is. They compute wrong addresses for operands on the stack, where no pool
 * is. */
__asm__(".macro __cxlemu_call hook\n"
        " call *__cxlemu_asm_\\hook@GOTPCREL(%rip)\n"
        ".endm\n"
        ".macro __cxlemu_at hook, at:vararg\n"
        " leaq -128(%rsp), %rsp\n pushq %rdi\n leaq \\at, %rdi\n"
        " __cxlemu_call \\hook\n"
        " popq %rdi\n leaq 128(%rsp), %rsp\n"
        ".endm\n"
        ".macro __cxlemu_plain hook\n"
        " leaq -128(%rsp), %rsp\n pushq %rdi\n"
        " __cxlemu_call \\hook\n"
        " popq %rdi\n leaq 128(%rsp), %rsp\n"
        ".endm\n"
        ".macro __cxlemu_nt hook, move, source, at:vararg\n"
        " leaq -192(%rsp), %rsp\n \\move \\source, (%rsp)\n pushq %rdi\n leaq \\at, %rdi\n"
        " __cxlemu_call \\hook\n"
        " popq %rdi\n leaq 192(%rsp), %rsp\n"
        ".endm\n"
        ".macro clflush at:vararg\n __cxlemu_at clflush, \\at\n.endm\n"
        ".macro clflushopt at:vararg\n __cxlemu_at clflushopt, \\at\n.endm\n"
        ".macro clwb at:vararg\n __cxlemu_at clwb, \\at\n.endm\n"
        ".macro xsaveopt at:vararg\n __cxlemu_at clwb, \\at\n.endm\n" /* behind .byte 0x66 it is clwb */
        ".macro sfence\n __cxlemu_plain sfence\n.endm\n"
        ".macro lfence\n __cxlemu_plain lfence\n.endm\n"
        ".macro mfence\n __cxlemu_plain mfence\n.endm\n"
        ".macro lock rest:vararg\n __cxlemu_plain lock\n .byte 0xf0\n \\rest\n.endm\n"
        ".macro movnti source, at:vararg\n"
        " .set __cxlemu_wide, 1\n"
        " .irp narrow, %eax,%ebx,%ecx,%edx,%esi,%edi,%ebp,%r8d,%r9d,%r10d,%r11d,%r12d,%r13d,%r14d,%r15d\n"
        "  .ifc \\source,\\narrow\n .set __cxlemu_wide, 0\n .endif\n"
        " .endr\n"
        " .if __cxlemu_wide\n __cxlemu_nt nt8, movq, \\source, \\at\n"
        " .else\n __cxlemu_nt nt4, movl, \\source, \\at\n .endif\n"
        ".endm\n"
        ".macro movntiq source, at:vararg\n __cxlemu_nt nt8, movq, \\source, \\at\n.endm\n"
        ".macro movntil source, at:vararg\n __cxlemu_nt nt4, movl, \\source, \\at\n.endm\n"
        ".macro movntdq source, at:vararg\n __cxlemu_nt nt16, movups, \\source, \\at\n.endm\n"
        ".macro movntps source, at:vararg\n __cxlemu_nt nt16, movups, \\source, \\at\n.endm\n"
        ".macro movntpd source, at:vararg\n __cxlemu_nt nt16, movups, \\source, \\at\n.endm\n"
        ".macro vmovntdq source, at:vararg\n"
        " .set __cxlemu_wide, 16\n"
        " .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
        "  .ifc \\source,%ymm\\n\n .set __cxlemu_wide, 32\n .endif\n"
        "  .ifc \\source,%zmm\\n\n .set __cxlemu_wide, 64\n .endif\n"
        " .endr\n"
        " .if __cxlemu_wide == 64\n __cxlemu_nt nt64, vmovdqu64, \\source, \\at\n"
        " .elseif __cxlemu_wide == 32\n __cxlemu_nt nt32, vmovups, \\source, \\at\n"
        " .else\n __cxlemu_nt nt16, vmovups, \\source, \\at\n .endif\n"
        ".endm\n"
        ".macro vmovntps source, at:vararg\n vmovntdq \\source, \\at\n.endm\n"
        ".macro vmovntpd source, at:vararg\n vmovntdq \\source, \\at\n.endm\n");

#endif
#endif
