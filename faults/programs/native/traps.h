/* Handles patched instructions (SIGTRAP), and first touches of a pool's page (SIGSEGV). */
#ifndef CXLEMU_TRAPS_H
#define CXLEMU_TRAPS_H

#include <stdbool.h>

void traps_begin(bool faults); /* faults: of closed pools, or of pages */

#endif
