/* setjmp and longjmp: a thread returns past calls whose ends are never told. How many calls it was in when it set the mark stands in the
 * gap of its buffer before the signals, which the shorter buffers of pthread_cleanup_push have as well. */
#define _GNU_SOURCE
#include "real.h"
#include "self.h"

#if defined(__x86_64__)

#include <string.h>

#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wbuiltin-declaration-mismatch"
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

enum { DEPTH_AT = 68 };

/* The real function goes on in the caller's frame, to which it will return twice. */
#define MARKS(name)                                                                           \
    REAL(int, name, void *, int)                                                              \
    __attribute__((used)) static name##_function *marked_##name(uint8_t *mark) {              \
        const uint32_t depth = self ? self->depth : 0;                                        \
        memcpy(mark + DEPTH_AT, &depth, sizeof depth);                                        \
        return real_##name();                                                                 \
    }                                                                                         \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n"               \
            ".cfi_startproc\npushq %rdi\n.cfi_adjust_cfa_offset 8\n"                          \
            "pushq %rsi\n.cfi_adjust_cfa_offset 8\nsubq $8, %rsp\n.cfi_adjust_cfa_offset 8\n" \
            "call marked_" #name "\naddq $8, %rsp\n.cfi_adjust_cfa_offset -8\n"               \
            "popq %rsi\n.cfi_adjust_cfa_offset -8\npopq %rdi\n.cfi_adjust_cfa_offset -8\n"    \
            "jmpq *%rax\n.cfi_endproc\n.size " #name ", . - " #name "\n");
MARKS(setjmp)
MARKS(_setjmp)
MARKS(__sigsetjmp)

#define RETURNS(name)                                                        \
    REAL(void, name, uint8_t *, int)                                         \
    PROGRAM_EXPORT _Noreturn void name(uint8_t *mark, int value) {           \
        if (self) memcpy(&self->depth, mark + DEPTH_AT, sizeof self->depth); \
        real_##name()(mark, value);                                          \
        __builtin_unreachable();                                             \
    }
RETURNS(longjmp)
RETURNS(_longjmp)
RETURNS(siglongjmp)

#endif
