/* Which pool a file is. */
#ifndef CXLEMU_PATHS_H
#define CXLEMU_PATHS_H

#include <stdbool.h>

/* -1: none, or this process has not opened a pool. */
int pool_of_file(int file);

/* Whether a pool passes for a device-DAX, for which Linux refuses `what`: says so, and sets errno to EINVAL. */
bool device_refuses(int pool, const char *what);

#endif
