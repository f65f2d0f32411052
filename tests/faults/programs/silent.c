/* A message of eight lines, whose stores no compiler announces: WAY says who makes them. `w` writes it and publishes it; `r` waits,
 * and reads it. NOT_FLUSHED forgets the flush of its last line. */
#define _GNU_SOURCE
#include <cxl.h>
#include <fcntl.h>
#include <immintrin.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define OPENMP 1
#define MASKED 2
#define SCATTER 3
#define LIBRARY 4
#define KERNEL 5
#define BYTES 6
#define COPIED 7
enum { SIZE = 512, LINE = 64 };
typedef struct {
    volatile uint64_t ready;
    uint8_t pad[LINE - 8], text[SIZE];
} box;

#if WAY == OPENMP
static void put(box *b, const uint8_t *from) {
#pragma omp parallel for num_threads(3) schedule(static, 64)
    for (int k = 0; k < SIZE; k++) ((volatile uint8_t *)b->text)[k] = from[k];
}
#elif WAY == MASKED
__attribute__((target("avx512f,avx512bw"))) static void put(box *b, const uint8_t *from) {
    for (int k = 0; k < SIZE; k += 64) _mm512_mask_storeu_epi8(b->text + k, ~UINT64_C(0), _mm512_loadu_si512(from + k));
}
#elif WAY == SCATTER
__attribute__((target("avx512f"))) static void put(box *b, const uint8_t *from) {
    const __m512i at = _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0);
    for (int k = 0; k < SIZE; k += 64) _mm512_i64scatter_epi64(b->text + k, at, _mm512_loadu_si512(from + k), 8);
}
#elif WAY == LIBRARY /* loops that no cxlemu cc has built, which also flush: like libpmem */
void library_put(volatile uint8_t *to, const uint8_t *from, size_t nbytes);
static void put(box *b, const uint8_t *from) { library_put(b->text, from, SIZE); }
#elif WAY == KERNEL
static void put(box *b, const uint8_t *from) {
    const struct iovec to = {b->text, SIZE}, its = {(void *)(uintptr_t)from, SIZE};
    if (process_vm_readv(getpid(), &to, 1, &its, 1, 0) != SIZE) exit(8);
}
#else
static void put(box *b, const uint8_t *from) { memcpy(b->text, from, SIZE); }
#endif

static void flush(box *b, size_t nbytes) {
#if WAY == BYTES /* clwb (%rax), for assemblers that do not know it */
    for (size_t k = 0; k < nbytes; k += LINE)
        __asm__ volatile(".byte 0x66, 0x0f, 0xae, 0x30" : : "a"(b->text + k) : "memory");
#else
    cxl_flush(b->text, nbytes);
#endif
}

static void get(uint8_t *to, const box *b) {
#if WAY == COPIED
    extern void bcopy(const void *, void *, size_t);
    bcopy(b->text, to, SIZE);
#elif defined(LIBRARY_LOADS)
    extern void library_get(uint8_t *, const volatile uint8_t *, size_t);
    library_get(to, b->text, SIZE);
#else
    memcpy(to, b->text, SIZE);
#endif
}

int main(int count, char **words) {
    uint8_t mine[SIZE] __attribute__((aligned(64))), got[SIZE];
    const int file = open(words[1], O_RDWR);
    box *b = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (count != 3 || b == MAP_FAILED) return 3;
    for (int k = 0; k < SIZE; k++) mine[k] = (uint8_t)(k * 7 + 1);
    if (words[2][0] == 'w') {
        put(b, mine);
#if WAY != LIBRARY
#if defined(NOT_FLUSHED)
        flush(b, SIZE - LINE);
#else
        flush(b, SIZE);
#endif
        cxl_fence();
#endif
        b->ready = 1;
        cxl_flush((void *)&b->ready, 8), cxl_fence();
        return 0;
    }
    for (;; sched_yield()) {
        cxl_invalidate((void *)&b->ready, 8);
        if (b->ready) break;
    }
#if !defined(NO_INVALIDATE)
    cxl_invalidate(b->text, SIZE);
#endif
    get(got, b);
    return memcmp(got, mine, SIZE) ? 9 : 0;
}
