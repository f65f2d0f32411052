/* For the programs here: map a pool, and give up with a sentence. */
#include <cxl.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static inline void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static inline void *map_pool(const char *path, size_t nbytes) {
    const int file = open(path, O_RDWR | O_CREAT, 0600), is_device = strncmp(path, "/dev/dax", 8) == 0;
    if (file < 0 || (!is_device && ftruncate(file, (off_t)nbytes))) fail("the pool cannot be opened");
    if (is_device) nbytes = (nbytes + (2 << 20) - 1) >> 21 << 21; /* it is mapped in whole pages of 2 MiB */
    void *at = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) fail("the pool cannot be mapped");
    close(file);
    return at;
}

/* The store before is in the pool when this returns. */
static inline void publish(const volatile void *at, size_t nbytes) {
    cxl_flush((const void *)(uintptr_t)at, nbytes);
    cxl_fence();
}

/* The load behind sees what is in the pool. */
static inline void refresh(const volatile void *at, size_t nbytes) {
    cxl_invalidate((const void *)(uintptr_t)at, nbytes);
}
