/* Handles patched instructions (SIGTRAP), and first touches of a pool's page (SIGSEGV). */
#ifndef CXLEMU_TRAPS_H
#define CXLEMU_TRAPS_H

void traps_begin(void);

#endif
