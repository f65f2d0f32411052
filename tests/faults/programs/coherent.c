/* Two hosts take a lock by compare-and-swap, which lies with a counter in the pool's first page; what it guards lies in the second
 * one. Where the first page is coherent this is right. NO_FLUSH and NO_INVALIDATE leave a step out; PAST stores past
 * the cache. */
#define _GNU_SOURCE
#include <cxl.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 10, SIZE = 2 << 20, PAGE = 4096 };
typedef struct {
    _Atomic uint64_t lock, count, ready;
    uint8_t pad[PAGE - 24];
    volatile uint64_t guarded;
} box;

static int changed(box *b) {
    const uint64_t count = atomic_load_explicit(&b->count, memory_order_relaxed);
#ifndef NO_INVALIDATE
    cxl_invalidate((void *)&b->guarded, 8);
#endif
    if (b->guarded != count) return 5;
#ifdef PAST /* the cache */
    const uint64_t line[8] = {count + 1};
    cxl_store_nt((void *)&b->guarded, line, sizeof line);
    cxl_fence();
#else
    b->guarded = count + 1;
#endif
#if !defined(NO_FLUSH) && !defined(PAST)
    cxl_flush((void *)&b->guarded, 8);
    cxl_fence();
#endif
    atomic_store_explicit(&b->count, count + 1, memory_order_relaxed);
    return 0;
}

int main(int count, char **words) {
    const int file = open(words[1], O_RDWR);
    box *b = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (count < 2 || b == MAP_FAILED) return 4;
#ifdef OUTSIDE /* a store, and then a system call that nobody sees: `publish` and `read` */
    if (words[2][0] == 'p') {
        b->guarded = 1;
        cxl_flush((void *)&b->guarded, 8);
        cxl_fence();
        atomic_store_explicit(&b->ready, 1, memory_order_release);
        return (int)syscall(SYS_nanosleep, &(struct timespec){.tv_nsec = 400000000}, NULL);
    }
    while (!atomic_load_explicit(&b->ready, memory_order_acquire)) continue;
    return b->guarded != 1;
#endif
    for (int k = 0; k < ROUNDS; k++) {
        uint64_t nobody = 0;
        while (!atomic_compare_exchange_strong(&b->lock, &nobody, 1)) nobody = 0;
        const int code = changed(b);
        if (code) return code;
        atomic_store_explicit(&b->lock, 0, memory_order_release);
    }
    atomic_fetch_add(&b->ready, 1);
    while (atomic_load_explicit(&b->ready, memory_order_acquire) != 2) continue;
    return b->count == 2 * ROUNDS ? 0 : 6;
}
