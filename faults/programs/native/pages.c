#define _GNU_SOURCE
#include "pages.h"
#include "real.h"
#include "self.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096 };
enum {
    WHOLE_BYTES = 4 << 20
}; /* smaller mappings are fetched at once, so that the kernel never meets a page that is missing */
enum {
    CHUNKS = 8192,
    SMALLEST_CHUNK = 64 << 10
}; /* of larger mappings; the kernel may keep a mapping for each chunk */

/* A mapping of a pool in this process; `opened` has a byte for each chunk. */
typedef struct {
    uint8_t *at, *opened;
    size_t nbytes, chunk;
    int64_t offset;
    int pool, prot;
} page_mapping;
static page_mapping known[MAPPINGS]; /* guarded by the lock */
static int known_most; /* from here on, none was ever known */

/* The lock: which thread holds it. A signal may come while a thread holds it, and fault in its handler. */
static _Atomic uintptr_t holder;

static bool lock(void) {
    const uintptr_t me = (uintptr_t)&self;
    if (holder == me) return false;
    for (uintptr_t nobody = 0; !atomic_compare_exchange_weak(&holder, &nobody, me); nobody = 0)
        syscall(SYS_sched_yield);
    return true;
}

static void unlock(bool locked) {
    if (locked) holder = 0;
}

void pages_after_fork(void) { holder = 0; }

static bool protect(uint8_t *at, size_t nbytes, int prot) { return syscall(SYS_mprotect, at, nbytes, prot) == 0; }

/* Fetch pages. Called with the turn, or inside a step of this thread. */
static void fetch(const page_mapping *m, size_t from, size_t nbytes) {
    const int64_t first = (m->offset + (int64_t)from) / PAGE;
    for (int64_t page = first; page < first + (int64_t)(nbytes / PAGE); page++) image_open_page(m->pool, page);
}

static void open_chunk(const page_mapping *m, size_t chunk) {
    const size_t from = chunk * m->chunk, nbytes = m->nbytes - from < m->chunk ? m->nbytes - from : m->chunk;
    const bool took_turn = prog_page_begin();
    if (!__atomic_load_n(&m->opened[chunk], __ATOMIC_ACQUIRE)) {
        fetch(m, from, nbytes);
        if (!protect(m->at + from, nbytes, m->prot)) {
            fprintf(stderr,
                    "cxlemu: a page of a pool cannot be mapped: too many mappings, see /proc/sys/vm/max_map_count\n");
            _exit(2);
        }
        __atomic_store_n(&m->opened[chunk], 1, __ATOMIC_RELEASE);
    }
    if (took_turn) prog_page_end();
}

/* Return the mapping in which an address lies; its nbytes are 0 where there is none. */
static page_mapping mapping_at(const uint8_t *at) {
    page_mapping found = {0};
    const bool locked = lock();
    for (int k = 0; k < known_most; k++)
        if (known[k].nbytes && (size_t)(at - known[k].at) < known[k].nbytes) found = known[k];
    unlock(locked);
    return found;
}

static bool allows(const page_mapping *m, bool writes) {
    return m->nbytes && m->prot & (writes ? PROT_WRITE : PROT_READ | PROT_WRITE);
}

bool pages_allow(const void *at, bool writes) {
    const page_mapping m = mapping_at(at);
    return allows(&m, writes);
}

bool pages_fault(void *at, bool writes) {
    const page_mapping m = mapping_at(at);
    if (!allows(&m, writes)) return false;
    /* Another thread may have been faster, and have fetched it already. */
    open_chunk(&m, (size_t)((uint8_t *)at - m.at) / m.chunk);
    return true;
}

static _Thread_local struct {
    bool raised, writes;
} demanded __attribute__((tls_model("initial-exec")));

void pages_demand(const void *at, size_t nbytes, bool writes) {
    for (const uint8_t *from = at, *end = from + nbytes; from < end;) {
        const page_mapping m = mapping_at(from);
        if (!m.nbytes) return;
        if (allows(&m, writes)) {
            from = m.at + m.nbytes;
            continue;
        }
        siginfo_t info = {.si_signo = SIGSEGV, .si_code = SEGV_ACCERR};
        info.si_addr = (void *)(uintptr_t)from;
        demanded.raised = true, demanded.writes = writes;
        syscall(SYS_rt_tgsigqueueinfo, getpid(), (pid_t)syscall(SYS_gettid), SIGSEGV, &info);
    }
}

bool pages_demanded(bool *writes) {
    const bool raised = demanded.raised;
    if (raised) *writes = demanded.writes;
    demanded.raised = false;
    return raised;
}

void pages_touch(const void *at, size_t nbytes) {
    const uint8_t *first = at;
    if (pools_closed) return;
    for (int k = 0; k < known_most; k++) {
        const bool locked = lock();
        const page_mapping m = known[k];
        unlock(locked);
        if (!m.nbytes || first >= m.at + m.nbytes || first + nbytes <= m.at) continue;
        const size_t from = first > m.at ? (size_t)(first - m.at) : 0;
        const size_t end = first + nbytes < m.at + m.nbytes ? (size_t)(first + nbytes - m.at) : m.nbytes;
        for (size_t chunk = from / m.chunk; chunk * m.chunk < end; chunk++)
            if (!__atomic_load_n(&m.opened[chunk], __ATOMIC_ACQUIRE)) open_chunk(&m, chunk);
    }
}

static size_t chunk_bytes(size_t nbytes) {
    const size_t least = nbytes / CHUNKS;
    return nbytes <= WHOLE_BYTES ? nbytes : least < SMALLEST_CHUNK ? SMALLEST_CHUNK : (least / PAGE + 1) * PAGE;
}

/* Return whether one mapping goes on where another one ends: a program that protects page after page makes many. */
static bool goes_on(const page_mapping *a, const page_mapping *b) {
    return pools_closed && a->nbytes && b->nbytes && a->pool == b->pool && a->prot == b->prot &&
           a->at + a->nbytes == b->at && a->offset + (int64_t)a->nbytes == b->offset;
}

static void add(page_mapping its) {
    const bool locked = lock();
    int empty = 0;
    for (int k = 0; k < known_most; k++) {
        const bool before = goes_on(&known[k], &its);
        if (!before && !goes_on(&its, &known[k])) continue;
        its.nbytes += known[k].nbytes;
        if (before) its.at = known[k].at, its.offset = known[k].offset;
        known[k] = (page_mapping){0};
    }
    while (empty < known_most && known[empty].nbytes) empty++;
    if (empty == MAPPINGS) {
        fprintf(stderr, "cxlemu: the program has more than %d mappings of pools\n", MAPPINGS);
        _exit(2);
    }
    known[empty] = its;
    if (empty == known_most) known_most++;
    unlock(locked);
}

static void unmapped(uint8_t *at, size_t nbytes);

static void mapped(int pool, int64_t offset, uint8_t *at, size_t nbytes, int prot) {
    const bool locked = pools_closed && lock(); /* meanwhile no thread finds a page missing */
    unmapped(at, nbytes); /* MAP_FIXED replaces what was mapped there before */
    if (pools_closed) {
        add((page_mapping){.at = at, .nbytes = nbytes, .offset = offset, .pool = pool, .prot = prot});
        unlock(locked);
        return;
    }
    const size_t chunk = chunk_bytes(nbytes);
    uint8_t *opened = calloc((nbytes + chunk - 1) / chunk, 1);
    if (!opened) {
        fprintf(stderr, "cxlemu: no memory for a mapping of %zu bytes\n", nbytes);
        _exit(2);
    }
    const page_mapping m = {at, opened, nbytes, chunk, offset, pool, prot};
    add(m);
    if (nbytes <= WHOLE_BYTES) open_chunk(&m, 0);
}

/* Forget mappings in a range. What is left on either side becomes a mapping of its own, whose chunks are opened anew. */
static void unmapped(uint8_t *at, size_t nbytes) {
    for (int k = 0; k < known_most; k++) {
        const bool locked = lock();
        const page_mapping m = known[k];
        const bool meant = m.nbytes && at < m.at + m.nbytes && at + nbytes > m.at;
        if (meant) known[k] = (page_mapping){0};
        unlock(locked);
        if (!meant) continue;
        free(m.opened);
        if (at > m.at) mapped(m.pool, m.offset, m.at, (size_t)(at - m.at), m.prot);
        if (at + nbytes < m.at + m.nbytes)
            mapped(m.pool, m.offset + (at + nbytes - m.at), at + nbytes, (size_t)(m.at + m.nbytes - at) - nbytes,
                   m.prot);
    }
}

static const program_pages pages = {.mapped = mapped, .unmapped = unmapped, .touch = pages_touch};

REAL(int, mprotect, void *, size_t, int)

/* Pages that were not fetched yet must not become accessible. */
PROGRAM_EXPORT int mprotect(void *at, size_t nbytes, int prot) {
    pool_range range;
    if (program_pages_now && range_in_pool(at, nbytes, &range)) {
        if (pools_closed) {
            mapped(range.pool, range.offset, at, (nbytes + PAGE - 1) / PAGE * PAGE, prot);
            return 0;
        }
        pages_touch(at, nbytes);
    }
    return real_mprotect()(at, nbytes, prot);
}

void pages_begin(void) { program_pages_now = &pages; }
