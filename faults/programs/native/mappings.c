/* Which addresses of this process are a pool's. Every access looks it up without a lock, while mmap and munmap of any thread
 * may change it. */
#define _GNU_SOURCE
#include "self.h"

#include <sys/syscall.h>
#include <unistd.h>

typedef struct {
    uintptr_t from, to;
    int64_t offset; /* of `from` in the pool */
    int pool;
} mapping;

static struct {
    _Atomic uintptr_t from, to;
    _Atomic int64_t offset;
    _Atomic int pool;
} table[MAPPINGS];
_Atomic int mapping_count;
struct pools_span pools_span;
bool pools_closed;

/* A sequence lock: odd while a thread changes the table. A reader looks again where this has moved on, but not for ever: it may
 * be a signal's handler, in the middle of its own thread's change. */
static _Atomic uint32_t changes;
enum { LOOKS = 1 << 16 };

static void begin_change(void) {
    for (;;) {
        uint32_t even = changes & ~1u;
        if (atomic_compare_exchange_weak(&changes, &even, even + 1)) return;
        syscall(SYS_sched_yield);
    }
}

static mapping at_index(int k) { return (mapping){table[k].from, table[k].to, table[k].offset, table[k].pool}; }

static void set(int k, mapping its) {
    table[k].from = its.from;
    table[k].to = its.to;
    table[k].offset = its.offset;
    table[k].pool = its.pool;
}

/* End a change. The span is set in an order in which it never leaves out what stays mapped. */
static void end_change(void) {
    uintptr_t from = UINTPTR_MAX, to = 0;
    for (int k = 0; k < mapping_count; k++) {
        if (table[k].from < from) from = table[k].from;
        if (table[k].to > to) to = table[k].to;
    }
    pools_span.from = mapping_count ? from : 0;
    pools_span.to = to;
    changes++;
}

bool mapping_add(int pool, int64_t offset, uint8_t *at, size_t nbytes) {
    begin_change();
    const bool room = mapping_count < MAPPINGS;
    if (room) { set(mapping_count++, (mapping){(uintptr_t)at, (uintptr_t)at + nbytes, offset, pool}); }
    end_change();
    return room;
}

void mapping_remove(uint8_t *at, size_t nbytes) {
    const uintptr_t from = (uintptr_t)at, to = from + nbytes;
    begin_change();
    for (int k = 0; k < mapping_count; k++) {
        const mapping m = at_index(k);
        if (to <= m.from || m.to <= from) continue;
        const mapping before = {m.from, from, m.offset, m.pool};
        const mapping behind = {to, m.to, m.offset + (int64_t)(to - m.from), m.pool};
        const bool rest = to < m.to;
        if (m.from < from) {
            set(k, before);
            if (rest && mapping_count < MAPPINGS) set(mapping_count++, behind);
        } else if (rest) {
            set(k, behind);
        } else {
            set(k--, at_index(--mapping_count));
        }
    }
    end_change();
}

static bool find(uintptr_t from, uintptr_t to, pool_range *found) {
    for (int k = 0; k < mapping_count; k++) {
        const mapping m = at_index(k);
        if (from < m.from || from >= m.to) continue; /* the range begins outside */
        const uintptr_t high = to < m.to ? to : m.to;
        *found = (pool_range){m.pool, m.offset + (int64_t)(from - m.from), (int64_t)(high - from)};
        return true;
    }
    return false;
}

bool range_in_pool(const void *at, size_t nbytes, pool_range *found) {
    const uintptr_t from = (uintptr_t)at, to = from + nbytes;
    if (to <= pools_span.from || from >= pools_span.to) return false;
    for (int looks = 0;; looks++) {
        const uint32_t before = changes;
        const bool inside = find(from, to, found);
        if ((before % 2 == 0 && changes == before) || looks == LOOKS) return inside;
    }
}

size_t in_one_of_many(const void *at, size_t nbytes) {
    pool_range r;
    return range_in_pool(at, nbytes, &r) ? (size_t)r.nbytes : nbytes;
}

void *in_image(const void *at) {
    pool_range r;
    if (!range_in_pool(at, 1, &r)) return (void *)(uintptr_t)at;
    return image_of(here.host, r.pool)->cache.data + r.offset;
}

void mappings_after_fork(void) {
    if (changes % 2) end_change(); /* the change of a thread that the child does not have */
}
