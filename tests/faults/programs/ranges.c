/* Random copies, flushes and fences of two hosts: `ranges POOL HOST range|line` flushes ranges as a whole, or line by line. */
#include <cxl.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LINE = 64, BYTES = 64 * LINE, ROUNDS = 150, WAYS = 8 };
static int by_line;

static void flushed(char *at, size_t nbytes, void (*flush)(const void *, size_t)) {
    for (size_t piece; nbytes; at += piece, nbytes -= piece) {
        piece = by_line ? LINE - (uintptr_t)at % LINE : nbytes;
        if (piece > nbytes) piece = nbytes;
        flush(at, piece);
    }
}
static void drop(const void *at, size_t nbytes) { cxl_flush(at, nbytes); }
static void keep(const void *at, size_t nbytes) { cxl_writeback(at, nbytes); }

int main(int count, char **words) {
    const int file = count < 4 ? -1 : open(words[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, BYTES) != 0) return 2;
    char *pool = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0), copy[BYTES];
    if (pool == MAP_FAILED) return 2;
    uint32_t random = (uint32_t)atoi(words[2]) + 1;
    by_line = words[3][0] == 'l';
    for (int k = 0; k < ROUNDS; k++) {
        random = random * 1664525u + 1013904223u;
        const size_t first = (random >> 8) % BYTES, most = BYTES - first, nbytes = 1 + (random >> 16) % most;
        switch (random >> 24 & (WAYS - 1)) {
        case 0:
        case 1: memset(copy, k, nbytes), memcpy(pool + first, copy, nbytes); break;
        case 2: memcpy(copy, pool + first, nbytes); break;
        case 3: flushed(pool + first, nbytes, keep); break;
        case 4: cxl_fence(); break;
        case 5: cxl_invalidate(pool + first, 1); break;
        default: flushed(pool + first, nbytes, drop);
        }
    }
    return 0;
}
