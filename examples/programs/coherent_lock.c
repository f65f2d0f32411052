/* Hosts take turns by a lock of compare-and-swap in the pool's first page, which hardware keeps coherent; what the lock guards lies
 * in the second page, which is not, so it is flushed and invalidated. Every host adds ROUNDS to the sum. */
#include <cxl.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

enum { ROUNDS = 10, PAGE = 4096, POOL = 2 << 20 };
typedef struct {
    _Atomic uint64_t lock;
    uint8_t pad[PAGE - sizeof(uint64_t)];
    volatile uint64_t sum;
} shared;

static void add(shared *s, uint64_t value) {
    uint64_t nobody = 0;
    while (!atomic_compare_exchange_weak(&s->lock, &nobody, 1)) nobody = 0;
    cxl_invalidate((void *)&s->sum, sizeof s->sum);
    s->sum += value;
    cxl_flush((void *)&s->sum, sizeof s->sum);
    cxl_fence();
    atomic_store_explicit(&s->lock, 0, memory_order_release);
}

int main(int count, char **words) {
    const int file = open(count > 1 ? words[1] : "", O_RDWR);
    shared *s = mmap(NULL, POOL, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (s == MAP_FAILED) {
        perror("usage: coherent_lock POOL");
        return 2;
    }
    for (int k = 0; k < ROUNDS; k++) add(s, 1);
    return 0;
}
