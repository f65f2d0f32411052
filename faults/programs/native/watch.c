/* The choice of the watcher of a run. */
#include "self.h"

#include "record.h"

#include <stdio.h>
#include <stdlib.h>

extern const program_watcher checker; /* check.c */

/* Follow this process's code; NULL where it is not built in. */
__attribute__((weak)) void preload_begin(bool recompiled);

void watcher_choose(void) {
    program_watcher_now = here.area->options.check ? &checker : NULL;
    if (here.area->options.every) program_watcher_now = record_around(program_watcher_now);
}

void code_follow(void) {
    if (preload_begin) preload_begin(process_recompiled());
    if (preload_begin || process_recompiled()) return;
    fprintf(
        stderr,
        "cxlemu: a program opens the pool that was not compiled with cxlemu cc: its loads and stores are not seen\n");
    exit(2);
}
