/* Mappings of pools in a process that was not recompiled: pages are fetched when they are touched first. */
#ifndef CXLEMU_PAGES_H
#define CXLEMU_PAGES_H

#include <stdbool.h>
#include <stddef.h>

void pages_begin(void);

/* A fault at an address: true if it was a page that was not here yet, and now is. */
bool pages_fault(void *at, bool writes);

void pages_after_fork(void); /* in the child */

/* Whether it lies in a mapping that the program may read, or write. */
bool pages_allow(const void *at, bool writes);

/* What lies in pools of a range is here, before the kernel or this library looks there. */
void pages_touch(const void *at, size_t nbytes);

#endif
