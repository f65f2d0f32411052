/* What an instruction would touch, computed from the registers that a signal saved before it ran. */
#ifndef CXLEMU_REGISTERS_H
#define CXLEMU_REGISTERS_H

#include "x86.h"

#include <ucontext.h>

/* Return the address that the instruction's memory operand names. `next`: where the code goes on behind it. */
uintptr_t registers_address(const ucontext_t *context, const x86_instruction *instruction, uintptr_t next);

/* Return the index, among a signal's saved registers, of a register that has this number in machine code. */
int registers_index(int number);

/* Return the address to which an NT_STORE stores. */
uintptr_t registers_target(const ucontext_t *context, const x86_instruction *instruction, uintptr_t next);

/* Copy the first bytes of a vector register from an area of xsave; false where they are not in it. */
bool registers_vector(const uint8_t *area, size_t area_bytes, int number, size_t nbytes, uint8_t bytes[64]);

/* Return how many bytes the area of xsave in a signal's frame has. */
size_t registers_area_bytes(const uint8_t *frame);

/* Return a mask register from an area of xsave; 0 where it is not in it. */
uint64_t registers_opmask(const uint8_t *area, size_t area_bytes, int number);

/* Find the bytes that an NT_STORE stores, and for each whether it is stored. False where they are in a register that the
 * signal's frame does not have. */
bool registers_stored(const ucontext_t *context, const x86_instruction *instruction, uintptr_t next, uint8_t bytes[64],
                      bool stored[64]);

#endif
