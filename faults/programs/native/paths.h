/* Files of the program that are pools. */
#ifndef CXLEMU_PATHS_H
#define CXLEMU_PATHS_H

#include <stdbool.h>

/* Return the pool that a file is; -1 where it is not a pool, or this process has not opened one. */
int pool_of_file(int file);

/* Return whether a pool stands for a device-DAX, for which Linux refuses `what`. If so, print that, and set errno to
 * EINVAL. */
bool device_refuses(int pool, const char *what);

#endif
