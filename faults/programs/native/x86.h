/* The lengths of x86-64 instructions, and which of them move cache lines: enough to walk a function and to find the
 * places where a program controls the machine's caches. The tables do not tell what other instructions do. */
#ifndef CXLEMU_X86_H
#define CXLEMU_X86_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { X86_LONGEST = 15 };

enum x86_kind {
    X86_OTHER,
    X86_CLFLUSH,
    X86_CLFLUSHOPT,
    X86_CLWB,
    X86_SFENCE,
    X86_MFENCE,
    X86_LFENCE,
    X86_LOCKED, /* an atomic read-modify-write of memory, which is also a fence; xchg needs no prefix */
    X86_NT_STORE,
    X86_SYSTEM_CALL, /* one that asynchronous.c may follow: x86_decode has them among the others */
    X86_KINDS
};

/* Where the bytes of an NT_STORE come from. */
enum x86_source {
    X86_FROM_GENERAL, /* register `reg` */
    X86_FROM_MMX,
    X86_FROM_VECTOR,
    X86_FROM_MEMORY, /* movdir64b: `memory` is loaded, and `reg` holds the address to store to */
    X86_MASKED, /* maskmovdqu, maskmovq: bytes of `reg` where those of `rm` have their highest bit set */
};

enum x86_branch { X86_NEXT, X86_REL8, X86_REL32 }; /* REL: its last bytes say how far it jumps */

/* Registers are numbered as machine code does (0 rax, 1 rcx, ..., 15 r15). */
enum { X86_NO_REGISTER = -1, X86_RDI = 7, X86_RIP = 16 };

typedef struct {
    int8_t base, index; /* base X86_RIP: the address of the next instruction */
    uint8_t scale;
    bool narrow; /* the sum is cut to 32 bits */
    uint8_t segment; /* the prefix 0x64 or 0x65 (fs, gs), or 0 */
    int32_t displacement;
} x86_address;

typedef struct {
    uint8_t length;
    uint8_t displacement_at; /* of the four bytes relative to rip; 0 if there are none */
    enum x86_kind kind;
    enum x86_branch branch;
    bool has_memory;
    bool compares; /* LOCKED: stores only if the zero flag is set afterwards (cmpxchg) */
    x86_address memory; /* if has_memory */
    uint8_t nbytes; /* how many LOCKED and NT_STORE store */
    enum x86_source source; /* of NT_STORE */
    uint8_t reg, rm; /* of NT_STORE: numbers of registers */
} x86_instruction;

/* Decode an instruction. Return false where the bytes are no instruction of 64-bit mode, or it goes on after `room`. */
bool x86_decode(const uint8_t *code, size_t room, x86_instruction *into);

/* Return whether these bytes may contain a flush, a fence or a non-temporal store, or with `locked` an instruction of
 * kind LOCKED. This is a quick look with false alarms. */
bool x86_candidate(const uint8_t *code, size_t nbytes, bool locked);

#endif
