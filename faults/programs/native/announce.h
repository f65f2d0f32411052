/* Assembler macros that `cxlemu cc` includes before every C and C++ file: flushes, fences and non-temporal stores
 * become calls, whether they come from a compiler's builtin or from inline assembly. */
#ifndef CXLEMU_ANNOUNCE_H
#define CXLEMU_ANNOUNCE_H
#pragma GCC system_header
#if defined(__x86_64__) && !defined(__ASSEMBLER__)

/* These macros leave the red zone as it is. They compute wrong addresses for operands on the stack, where no pool is. Code may be in
 * either syntax, and no macro can ask in which, so instructions of their own are bytes; an operand in brackets is Intel's. */
__asm__(
    ".macro __cxlemu_call hook\n" /* call *hook@GOTPCREL(%rip) */
    " .byte 0xff, 0x15\n .long __cxlemu_asm_\\hook@GOTPCREL - 4\n"
    ".endm\n"
    ".macro __cxlemu_plain hook\n"
    " .byte 0x48, 0x8d, 0x64, 0x24, 0x80, 0x57\n" /* leaq -128(%rsp), %rsp; pushq %rdi */
    " __cxlemu_call \\hook\n"
    " .byte 0x5f, 0x48, 0x8d, 0xa4, 0x24\n .long 128\n" /* popq %rdi; leaq 128(%rsp), %rsp */
    ".endm\n"
    ".macro __cxlemu_syntax args:vararg\n"
    " .set __cxlemu_intel, 0\n"
    " .irpc c, \\args\n  .ifc \"\\c\",\"[\"\n .set __cxlemu_intel, 1\n .endif\n .endr\n"
    ".endm\n"
    ".macro __cxlemu_at hook, at:vararg\n"
    " __cxlemu_syntax \\at\n"
    " .byte 0x48, 0x8d, 0x64, 0x24, 0x80, 0x57\n"
    " .if __cxlemu_intel\n lea rdi, \\at\n .else\n leaq \\at, %rdi\n .endif\n"
    " __cxlemu_call \\hook\n"
    " .byte 0x5f, 0x48, 0x8d, 0xa4, 0x24\n .long 128\n"
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
    ".macro pause\n __cxlemu_plain pause\n .byte 0xf3, 0x90\n.endm\n"
    ".set __cxlemu_locked, 0\n" /* whether the instruction that comes is an xchg behind this prefix */
    ".macro lock rest:vararg\n"
    " __cxlemu_plain lock\n .byte 0xf0\n .set __cxlemu_locked, 1\n"
    " .ifnb \\rest\n \\rest\n .set __cxlemu_locked, 0\n .endif\n"
    ".endm\n"
    /* With an operand in memory it is locked, with or without the prefix. */
    ".macro __cxlemu_exchange name, args:vararg\n"
    " .set __cxlemu_memory, 0\n"
    " .irpc c, \\args\n"
    "  .ifc \"\\c\",\"(\"\n .set __cxlemu_memory, 1\n .endif\n"
    "  .ifc \"\\c\",\"[\"\n .set __cxlemu_memory, 1\n .endif\n"
    " .endr\n"
    " .if __cxlemu_memory && !__cxlemu_locked\n __cxlemu_plain lock\n .endif\n"
    " .set __cxlemu_locked, 0\n {load} \\name \\args\n"
    ".endm\n"
    ".irp name, xchg,xchgb,xchgw,xchgl,xchgq\n"
    " .macro \\name args:vararg\n  __cxlemu_exchange \\name, \\args\n .endm\n"
    ".endr\n"
    ".macro __cxlemu_movnti source, at:vararg\n"
    " .set __cxlemu_wide, 1\n"
    " .irp narrow, %eax,%ebx,%ecx,%edx,%esi,%edi,%ebp,%r8d,%r9d,%r10d,%r11d,%r12d,%r13d,%r14d,%r15d\n"
    "  .ifc \\source,\\narrow\n .set __cxlemu_wide, 0\n .endif\n"
    " .endr\n"
    " .if __cxlemu_wide\n __cxlemu_nt nt8, movq, \\source, \\at\n"
    " .else\n __cxlemu_nt nt4, movl, \\source, \\at\n .endif\n"
    ".endm\n"
    ".macro __cxlemu_movntiq source, at:vararg\n __cxlemu_nt nt8, movq, \\source, \\at\n.endm\n"
    ".macro __cxlemu_movntil source, at:vararg\n __cxlemu_nt nt4, movl, \\source, \\at\n.endm\n"
    ".macro __cxlemu_movntdq source, at:vararg\n __cxlemu_nt nt16, movups, \\source, \\at\n.endm\n"
    ".macro __cxlemu_movntps source, at:vararg\n __cxlemu_nt nt16, movups, \\source, \\at\n.endm\n"
    ".macro __cxlemu_movntpd source, at:vararg\n __cxlemu_nt nt16, movups, \\source, \\at\n.endm\n"
    ".macro __cxlemu_vmovntdq source, at:vararg\n"
    " .set __cxlemu_wide, 16\n"
    " .irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
    "  .ifc \\source,%ymm\\n\n .set __cxlemu_wide, 32\n .endif\n"
    "  .ifc \\source,%zmm\\n\n .set __cxlemu_wide, 64\n .endif\n"
    " .endr\n"
    " .if __cxlemu_wide == 64\n __cxlemu_nt nt64, vmovdqu64, \\source, \\at\n"
    " .elseif __cxlemu_wide == 32\n __cxlemu_nt nt32, vmovups, \\source, \\at\n"
    " .else\n __cxlemu_nt nt16, vmovups, \\source, \\at\n .endif\n"
    ".endm\n"
    ".macro __cxlemu_vmovntps source, at:vararg\n __cxlemu_vmovntdq \\source, \\at\n.endm\n"
    ".macro __cxlemu_vmovntpd source, at:vararg\n __cxlemu_vmovntdq \\source, \\at\n.endm\n"
    /* In Intel's syntax they stay, for a trap when the program runs. The prefix changes nothing, but keeps the name from being this
     * macro again. */
    ".irp name, movnti,movntiq,movntil,movntdq,movntps,movntpd,vmovntdq,vmovntps,vmovntpd\n"
    " .macro \\name args:vararg\n  __cxlemu_syntax \\args\n"
    "  .if __cxlemu_intel\n {load} \\name \\args\n .else\n __cxlemu_\\name \\args\n .endif\n .endm\n"
    ".endr\n"
    /* Accesses that compilers do not announce: those of the second list only with a mask. A constant is in no pool. */
    ".macro __cxlemu_elements name, masked, args:vararg\n"
    " .set __cxlemu_memory, 0\n .set __cxlemu_masked, \\masked\n .set __cxlemu_i, 0\n .set __cxlemu_rip, 0\n"
    " .irpc c, \\args\n"
    "  .ifc \"\\c\",\"(\"\n .set __cxlemu_memory, 1\n .endif\n"
    "  .ifc \"\\c\",\"[\"\n .set __cxlemu_memory, 1\n .endif\n"
    "  .ifc \"\\c\",\"{\"\n .set __cxlemu_masked, 1\n .endif\n"
    "  .ifc \"\\c\",\"p\"\n .set __cxlemu_rip, __cxlemu_rip | __cxlemu_i\n .endif\n"
    "  .ifc \"\\c\",\"i\"\n .set __cxlemu_i, 1\n .else\n .set __cxlemu_i, 0\n .endif\n"
    " .endr\n"
    " .if __cxlemu_memory && __cxlemu_masked && !__cxlemu_rip\n __cxlemu_plain elements\n .endif\n"
    " {load} \\name \\args\n"
    ".endm\n"
    ".irp name, movntdqa,vmovntdqa,lddqu,vlddqu,movhps,movlps,movhpd,movlpd,vmovhps,vmovlps,vmovhpd,vmovlpd,"
    "vbroadcastss,vbroadcastsd,vbroadcastf128,vbroadcasti128,vbroadcastf32x4,vbroadcasti32x4,vbroadcastf64x4,"
    "vbroadcasti64x4,vpmaskmovd,vpmaskmovq,vmaskmovps,vmaskmovpd,vpgatherdd,vpgatherdq,vpgatherqd,vpgatherqq,"
    "vgatherdps,vgatherdpd,vgatherqps,vgatherqpd,vpscatterdd,vpscatterdq,vpscatterqd,vpscatterqq,vscatterdps,"
    "vscatterdpd,vscatterqps,vscatterqpd,vpcompressb,vpcompressw,vpcompressd,vpcompressq,vcompressps,vcompresspd,"
    "vmovdqu8,vmovdqu16,vmovdqu32,vmovdqu64,vmovdqa32,vmovdqa64,vpexpandb,vpexpandw,vpexpandd,vpexpandq,vexpandps,"
    "vexpandpd\n"
    " .macro \\name args:vararg\n  __cxlemu_elements \\name, 1, \\args\n .endm\n"
    ".endr\n"
#if defined(__clang__) /* which announces nothing of more than 16 bytes, and no long double */
    ".macro __cxlemu_moves name, args:vararg\n"
    " .set __cxlemu_wide, 0\n"
    " .irpc c, \\args\n"
    "  .ifc \"\\c\",\"y\"\n .set __cxlemu_wide, 1\n .endif\n"
    "  .ifc \"\\c\",\"z\"\n .set __cxlemu_wide, 1\n .endif\n"
    " .endr\n"
    " .if __cxlemu_wide\n __cxlemu_elements \\name, 1, \\args\n"
    " .else\n __cxlemu_elements \\name, 0, \\args\n .endif\n"
    ".endm\n"
    ".irp name, fldt,fstpt\n"
    " .macro \\name args:vararg\n  __cxlemu_elements \\name, 1, \\args\n .endm\n"
    ".endr\n"
    ".irp name, vmovups,vmovupd,vmovaps,vmovapd,vmovdqu,vmovdqa\n"
    " .macro \\name args:vararg\n  __cxlemu_moves \\name, \\args\n .endm\n"
    ".endr\n");
#else
    ".irp name, vmovups,vmovupd,vmovaps,vmovapd\n"
    " .macro \\name args:vararg\n  __cxlemu_elements \\name, 0, \\args\n .endm\n"
    ".endr\n");
#endif

#endif
#endif
