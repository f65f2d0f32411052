/* The size of an instruction's memory operand, and whether the instruction does the same with another address in its
 * base register: enough to announce an access of code that was not recompiled, and then to execute it elsewhere. */
#ifndef CXLEMU_X86_ACCESS_H
#define CXLEMU_X86_ACCESS_H

#include "x86.h"

enum x86_string { X86_NO_STRING, X86_MOVS, X86_STOS, X86_CMPS, X86_SCAS, X86_LODS };

typedef struct {
    uint8_t nbytes; /* of the operand; of one element for a string */
    bool loads; /* also for a store that changes the bytes that are there */
    bool movable; /* only the address depends on the base register */
    bool replaces_base; /* it loads into the base register */
    enum x86_string string;
    bool repeats;
} x86_access;

/* Describe the access of an instruction that x86_decode decoded from `code`; it has a memory operand or is a string
 * instruction. */
x86_access x86_access_of(const uint8_t *code, const x86_instruction *instruction);

#endif
