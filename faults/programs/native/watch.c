/* The choice of the watcher of a run. */
#include "self.h"

#include <stdio.h>
#include <stdlib.h>

extern const program_watcher checker; /* check.c */

/* Begin the preloaded mode; NULL where it is not built in. */
__attribute__((weak)) void preload_begin(void);

void watcher_choose(void) { program_watcher_now = here.area->options.check ? &checker : NULL; }

void pages_choose(void) {
    if (preload_begin) {
        preload_begin();
        return;
    }
    fprintf(
        stderr,
        "cxlemu: a program opens the pool that was not compiled with cxlemu cc: its loads and stores are not seen\n");
    exit(2);
}
