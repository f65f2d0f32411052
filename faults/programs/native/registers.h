/* What an instruction would touch, from the registers that a signal saved in front of it. */
#ifndef CXLEMU_REGISTERS_H
#define CXLEMU_REGISTERS_H

#include "x86.h"

#include <ucontext.h>

/* The address that the instruction's memory operand names. `next`: where the code goes on after it. */
uintptr_t registers_address(const ucontext_t *context, const x86_instruction *instruction, uintptr_t next);

/* Which of a signal's saved registers a number of machine code is. */
int registers_index(int number);

/* Where an NT_STORE stores. */
uintptr_t registers_target(const ucontext_t *context, const x86_instruction *instruction, uintptr_t next);

/* The bytes that it stores, and of each whether it does. False for a machine state that is not in the signal's frame. */
bool registers_stored(const ucontext_t *context, const x86_instruction *instruction, uintptr_t next, uint8_t bytes[64],
                      bool stored[64]);

#endif
