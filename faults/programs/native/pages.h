/* Mappings of pools in a process that was not recompiled: a page is fetched when it is first touched. */
#ifndef CXLEMU_PAGES_H
#define CXLEMU_PAGES_H

#include <stdbool.h>
#include <stddef.h>

void pages_begin(void);

/* Handle a fault at an address; true where the page had not been fetched yet, and now is. */
bool pages_fault(void *at, bool writes);

void pages_after_fork(void); /* in the child */

/* Return whether an address lies in a mapping that the program may read or, where it `writes`, write. */
bool pages_allow(const void *at, bool writes);

/* Raise the SIGSEGV of an access that this library makes in the program's place, until the program allows it. */
void pages_demand(const void *at, size_t nbytes, bool writes);

/* Return whether a SIGSEGV is one of these, and whether the access `writes`; it is asked once. */
bool pages_demanded(bool *writes);

/* Fetch what a range has of pools, before the kernel or this library looks there. */
void pages_touch(const void *at, size_t nbytes);

#endif
