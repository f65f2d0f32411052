/* Atomic operations on 16 bytes in a pool, in C and in C++: `w` makes them all, and publishes the word that the last one leaves;
 * `r` waits for the flag and reads it. NOT_FLUSHED leaves the flush out; SHARED lets both hosts count, in no order. */
#include <cxl.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/mman.h>

__extension__ typedef unsigned __int128 wide;
#ifdef __cplusplus
#include <atomic>
typedef std::atomic<wide> cell;
#define LOAD(c) (c)->load(std::memory_order_acquire)
#define STORE(c, v) (c)->store(v, std::memory_order_release)
#define SWAP(c, old, v) (c)->compare_exchange_strong(old, v)
#define EXCHANGE(c, v) (c)->exchange(v)
#define ADD(c, v) add(c, v)
static wide add(cell *c, wide value) {
    wide old = c->load();
    while (!c->compare_exchange_weak(old, old + value)) continue;
    return old;
}
#else
#include <stdatomic.h>
typedef _Atomic wide cell;
#define LOAD(c) atomic_load_explicit(c, memory_order_acquire)
#define STORE(c, v) atomic_store_explicit(c, v, memory_order_release)
#define SWAP(c, old, v) atomic_compare_exchange_strong(c, &(old), v)
#define EXCHANGE(c, v) atomic_exchange(c, v)
#define ADD(c, v) atomic_fetch_add(c, v)
#endif
#define HIGH ((wide)1 << 64)

typedef struct {
    volatile uint64_t ready;
    uint64_t apart[7];
    cell value;
} box;

static int changed(cell *c) {
    wide old = 5;
    STORE(c, HIGH + 3);
    if (SWAP(c, old, HIGH) || old != HIGH + 3) return 2;
    if (!SWAP(c, old, 2 * HIGH)) return 3;
    if (EXCHANGE(c, 3 * HIGH + 1) != 2 * HIGH || ADD(c, HIGH) != 3 * HIGH + 1) return 4;
#if defined(__x86_64__)
    uint64_t low = 1, high = 4, to_low = 7, to_high = 8;
    __asm__ volatile("lock cmpxchg16b %0"
                     : "+m"(*(char (*)[16])c), "+a"(low), "+d"(high)
                     : "b"(to_low), "c"(to_high)
                     : "cc", "memory");
    if (low != 1 || high != 4) return 5;
#else
    STORE(c, 8 * HIGH + 7);
#endif
    return LOAD(c) == 8 * HIGH + 7 ? 0 : 6;
}

int main(int count, char **words) {
    box *b = (box *)mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[1], O_RDWR), 0);
    if (count < 3 || b == MAP_FAILED) return 9;
    if (words[2][0] == 'w') {
        const int code = changed(&b->value);
        if (code) return code;
#ifndef NOT_FLUSHED
        cxl_flush(&b->value, 16);
#endif
        cxl_fence();
        b->ready = 1;
        cxl_flush((void *)&b->ready, 8);
        cxl_fence();
        return 0;
    }
#ifdef SHARED
    (void)ADD(&b->value, 1);
#endif
    while (!b->ready) cxl_invalidate((void *)&b->ready, 8);
    cxl_invalidate(&b->value, 16);
    return LOAD(&b->value) != 8 * HIGH + 7;
}
