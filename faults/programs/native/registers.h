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

/* Find the bytes that an NT_STORE stores, and for each whether it is stored. False where they are in a register that the
 * signal's frame does not have. */
bool registers_stored(const ucontext_t *context, const x86_instruction *instruction, uintptr_t next, uint8_t bytes[64],
                      bool stored[64]);

#endif
