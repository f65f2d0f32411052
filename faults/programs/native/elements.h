/* Which bytes an instruction of x86_elements.h accesses, computed from the registers before it runs. */
#ifndef CXLEMU_ELEMENTS_H
#define CXLEMU_ELEMENTS_H

#include "x86_elements.h"

enum { ELEMENTS_MOST = 64 };
typedef struct {
    bool stores;
    int count;
    struct {
        uint64_t begin, end; /* of elements that lie one behind the other */
    } runs[ELEMENTS_MOST];
} element_runs;

/* Decode `code`, which stands at the address `at`. `general` has the registers by their numbers in machine code, `area` the vector
 * registers, as xsave lays them out. Return false where it is no such instruction. */
bool elements_find(const uint8_t *code, uint64_t at, const uint64_t general[16], const uint8_t *area, size_t area_bytes,
                   element_runs *into);

#endif
