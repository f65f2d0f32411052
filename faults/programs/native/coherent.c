/* Ranges of pools in which caches are coherent between hosts and locked instructions reach across them, as CXL 3 has them by
 * back-invalidation. Every host's image of such a range is the pool's own memory, so hardware keeps it coherent. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "real.h"
#include "self.h"

int coherent_range(int pool, int64_t offset) {
    const program_options *o = &here.area->options;
    for (int k = 0; k < PROGRAM_COHERENT && o->coherent[k].end; k++)
        if (o->coherent[k].pool == pool && offset >= o->coherent[k].begin && offset < o->coherent[k].end) return k;
    return -1;
}

bool program_coherent_anywhere;
bool program_coherent(int pool, int64_t line) { return is_coherent(pool, line); }

REAL(int, open, const char *, int, ...)
REAL(void *, mmap, void *, size_t, int, int, int, off_t)

bool coherent_map(int pool, const char *path, uint8_t *at, int64_t offset, int64_t nbytes, int prot) {
    const program_options *o = &here.area->options;
    bool ok = true;
    for (int k = 0; ok && k < PROGRAM_COHERENT && o->coherent[k].end; k++) {
        const int64_t from = o->coherent[k].begin > offset ? o->coherent[k].begin : offset;
        const int64_t to = o->coherent[k].end < offset + nbytes ? o->coherent[k].end : offset + nbytes;
        if (o->coherent[k].pool != pool || from >= to) continue;
        const int file = real_open()(path, O_RDWR | O_CLOEXEC);
        ok = file >= 0 && real_mmap()(at + (from - offset), (size_t)(to - from), prot,
                                      MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file, from) != MAP_FAILED;
        if (file >= 0) close(file);
    }
    return ok;
}
