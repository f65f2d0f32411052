/* Reads and writes of files that may be pools, or have bytes of pools in memory. */
#ifndef CXLEMU_FILES_H
#define CXLEMU_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Do what pread does or, with `writes`, pwrite: a step of the place `pc`. */
ssize_t file_at(int file, void *bytes, size_t nbytes, off_t at, bool writes, const void *pc);

#endif
