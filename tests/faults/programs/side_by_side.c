/* Threads of one host that use a pool, and map and unmap it, all at once: for --free, and for a sanitizer of races. */
#include <cxl.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 50, BYTES = 1 << 16, LINE = 64 };

static const char *path;
static _Atomic int wrong;

static void use(char *pool, uint64_t me, uint64_t round) {
    volatile uint64_t *mine = (volatile uint64_t *)(void *)(pool + (1 + me) * 4096 + round % 8 * LINE);
    *mine = round;
    cxl_flush(mine, 8);
    cxl_fence();
    cxl_invalidate(mine, 8);
    if (*mine != round) wrong = 1;
    cxl_store_nt(mine, &round, sizeof round);
    cxl_fence();
    atomic_fetch_add((_Atomic uint64_t *)(void *)pool, 1);
}

static void *work(void *of) {
    const uint64_t me = (uint64_t)(uintptr_t)of;
    for (uint64_t k = 0; k < ROUNDS; k++) {
        const int file = open(path, O_RDWR);
        char *pool = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (file < 0 || pool == MAP_FAILED) return &wrong;
        close(file);
        use(pool, me, k);
        munmap(pool, BYTES);
    }
    return NULL;
}

int main(int count, char **words) {
    pthread_t threads[THREADS];
    void *failed = NULL;
    if (count != 2) return 2;
    path = words[1];
    const int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, BYTES)) return 2;
    char *pool = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (pool == MAP_FAILED) return 2;
    for (uintptr_t k = 0; k < THREADS; k++)
        if (pthread_create(&threads[k], NULL, work, (void *)k)) return 2;
    for (int k = 0; k < THREADS; k++) {
        void *result;
        pthread_join(threads[k], &result);
        if (result) failed = result;
    }
    if (failed || wrong) return 3;
    cxl_flush(pool, 8);
    cxl_fence();
    return *(volatile uint64_t *)(void *)pool == THREADS * ROUNDS ? 0 : 4;
}
