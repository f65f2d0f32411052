/* Accesses of code that was not compiled with cxlemu cc, one by one: pools stay closed to the program, so that each load
 * and store faults. The fault is announced as recompiled code announces it, and the instruction then executed with its
 * base register leading into the host's image, where these bytes are. A trap behind it gives the register back. */
#ifndef CXLEMU_ACCESS_H
#define CXLEMU_ACCESS_H

#include <signal.h>
#include <ucontext.h>

#include "x86.h"

/* Handle a fault of the program; false where it is not an access to a pool. */
bool access_fault(const siginfo_t *info, ucontext_t *context);

/* Handle the trap behind an instruction; false where this library did not set it. */
bool access_trap(ucontext_t *context);

/* For an instruction of which the turn is taken already, and which the caller follows: `code` is what it was decoded
 * from, `at` what it accesses. */
void access_open(ucontext_t *context, const uint8_t *code, const x86_instruction *instruction, void *at);
void access_close(ucontext_t *context);

#endif
