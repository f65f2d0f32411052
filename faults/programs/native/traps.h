/* What happens at a patched instruction (SIGTRAP), and at a page of a pool that nobody touched before (SIGSEGV). */
#ifndef CXLEMU_TRAPS_H
#define CXLEMU_TRAPS_H

void traps_begin(void);

#endif
