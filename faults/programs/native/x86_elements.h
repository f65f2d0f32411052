/* The elements that an instruction accesses where it names more than one, or only some: masked moves, gathers, scatters, and vector
 * moves that compilers do not announce. announce.h lists them. */
#ifndef CXLEMU_X86_ELEMENTS_H
#define CXLEMU_X86_ELEMENTS_H

#include "x86.h"

enum x86_mask { X86_ALL, X86_BY_OPMASK, X86_BY_VECTOR };

typedef struct {
    bool stores; /* else it loads */
    uint8_t count, nbytes; /* its elements, and how many bytes each has */
    enum x86_mask
        mask; /* which of them: all, those with a bit in register `by`, those whose highest bit is set in vector `by` */
    uint8_t by;
    bool packed; /* those elements lie one behind the other, without gaps */
    uint8_t index_bytes,
        index; /* each element has an address of its own: how wide its index is in which vector; 0: it has none */
    uint8_t scale;
    uint8_t displaced; /* EVEX: in which unit its displacement of one byte counts; 0: it has none */
} x86_elements;

/* Describe an instruction of announce.h that x86_decode understands, from its bytes; false for any other one. */
bool x86_elements_of(const uint8_t *code, x86_elements *into);

#endif
