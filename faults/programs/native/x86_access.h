/* How many bytes an instruction's memory operand has, and whether the instruction does the same when its base register
 * leads elsewhere: what is needed to announce an access of code that announces nothing, and to let it happen. */
#ifndef CXLEMU_X86_ACCESS_H
#define CXLEMU_X86_ACCESS_H

#include "x86.h"

enum x86_string { X86_NO_STRING, X86_MOVS, X86_STOS, X86_CMPS, X86_SCAS, X86_LODS };

typedef struct {
    uint8_t nbytes; /* of the operand; of one element for a string */
    bool loads; /* also where it stores: it changes what is there */
    bool movable; /* nothing but the address depends on the base register */
    bool replaces_base; /* what it loads goes to the base register */
    enum x86_string string;
    bool repeats;
} x86_access;

/* `code` is what x86_decode took for `instruction`, which has a memory operand or is a string's. */
x86_access x86_access_of(const uint8_t *code, const x86_instruction *instruction);

#endif
