/* Every form of instruction that is followed, on a pool and beside it: each does to its bytes what it does untouched. */
#include <fcntl.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static uint8_t beside[4096] __attribute__((aligned(4096)));
static uint64_t near_word, near_pair[2] __attribute__((aligned(16)));
static int wrong;
static void check(const char *what, int right) {
    if (!right) printf("wrong: %s\n", what), wrong++;
}
#define FLUSHES(at) \
    __asm__ volatile("clflush (%0)\n clflushopt (%0)\n clwb (%0)\n sfence\n lfence\n mfence" ::"r"(at) : "memory")

static void stores(uint8_t *at) {
    uint8_t expected[64];
    for (int k = 0; k < 64; k++) expected[k] = (uint8_t)(k * 3 + 1);
    memset(at, 0, 256);
    uint64_t word;
    memcpy(&word, expected, 8);
    __asm__ volatile("movnti %0, 8(%1)\n sfence" ::"r"(word), "r"(at) : "memory");
    check("movnti", !memcmp(at + 8, expected, 8) && at[7] == 0 && at[16] == 0);
    __asm__ volatile("movnti %k0, 20(%1,%2,4)\n sfence" ::"r"(word), "r"(at), "r"(3l) : "memory");
    check("movnti of 4, indexed", !memcmp(at + 32, expected, 4) && at[36] == 0);
    __asm__ volatile("movdqu (%0), %%xmm9\n movntdq %%xmm9, 64(%1)\n sfence" ::"r"(expected), "r"(at)
                     : "memory", "xmm9");
    check("movntdq", !memcmp(at + 64, expected, 16) && at[80] == 0);
    __asm__ volatile("movups (%0), %%xmm3\n movntps %%xmm3, 80(%1)\n sfence" ::"r"(expected), "r"(at)
                     : "memory", "xmm3");
    check("movntps", !memcmp(at + 80, expected, 16));
    __asm__ volatile("movq (%0), %%mm2\n movntq %%mm2, 96(%1)\n sfence\n emms" ::"r"(expected), "r"(at) : "memory");
    check("movntq", !memcmp(at + 96, expected, 8) && at[104] == 0);
    uint8_t mask[16] = {0x80, 0, 0, 0xFF, [15] = 0x80},
            masked[16] = {expected[0], 0, 0, expected[3], [15] = expected[15]};
    __asm__ volatile("movdqu (%0), %%xmm1\n movdqu (%1), %%xmm2\n maskmovdqu %%xmm2, %%xmm1\n sfence" ::"r"(expected),
                     "r"(mask), "D"(at + 112)
                     : "memory", "xmm1", "xmm2");
    check("maskmovdqu", !memcmp(at + 112, masked, 16));
    if (__builtin_cpu_supports("avx2")) {
        __asm__ volatile("vmovdqu (%0), %%ymm12\n vmovntdq %%ymm12, 128(%1)\n sfence\n vzeroupper" ::"r"(expected),
                         "r"(at)
                         : "memory", "xmm12");
        check("vmovntdq of 32", !memcmp(at + 128, expected, 32) && at[160] == 0);
    }
    if (__builtin_cpu_supports("avx512f")) {
        __asm__ volatile("vmovdqu64 (%0), %%zmm5\n vmovntdq %%zmm5, 192(%1)\n sfence\n vzeroupper" ::"r"(expected),
                         "r"(at)
                         : "memory", "xmm5");
        check("vmovntdq of 64", !memcmp(at + 192, expected, 64));
        memset(at + 192, 0, 64);
        __asm__ volatile(
            "clflush 192(%1)\n mfence\n vmovdqu64 (%0), %%zmm21\n vmovntdq %%zmm21, 192(%1)\n sfence" ::"r"(expected),
            "r"(at)
            : "memory");
        check("vmovntdq of the upper registers", !memcmp(at + 192, expected, 64));
    }
}

static void locks(uint8_t *at) {
    uint64_t *w = (uint64_t *)at, old = 7, zero;
    memset(at, 0, 64);
    __asm__ volatile("lock addq $5, (%0)" ::"r"(w) : "memory", "cc");
    check("lock add", *w == 5);
    __asm__ volatile("lock xaddq %0, (%1)" : "+r"(old) : "r"(w) : "memory", "cc");
    check("lock xadd", old == 5 && *w == 12);
    __asm__ volatile("xchgq %0, (%1)" : "+r"(old) : "r"(w) : "memory");
    check("xchg", old == 12 && *w == 5);
    uint8_t carry;
    __asm__ volatile("lock btsq $3, (%1)\n setc %0" : "=q"(carry) : "r"(w) : "memory", "cc");
    check("lock bts, and its flag", *w == 13 && !carry);
    uint64_t wanted = 13;
    __asm__ volatile("lock cmpxchgq %2, (%1)\n sete %b0\n movzbl %b0, %k0"
                     : "=&r"(zero), "+r"(w), "+r"(old), "+a"(wanted)::"memory", "cc");
    check("lock cmpxchg that stores", zero == 1 && *w == 12);
    wanted = 99;
    __asm__ volatile("lock cmpxchgq %2, (%1)\n sete %b0\n movzbl %b0, %k0"
                     : "=&r"(zero), "+r"(w), "+r"(old), "+a"(wanted)::"memory", "cc");
    check("lock cmpxchg that does not", zero == 0 && wanted == 12 && *w == 12);
    __asm__ volatile("lock incb 9(%0)\n lock orw $0x300, 10(%0)\n lock notl 12(%0)" ::"r"(at) : "memory", "cc");
    check("lock of 1, 2 and 4 bytes", at[9] == 1 && at[11] == 3 && at[12] == 255);
    uint64_t low = 12, high = 0xFFFFFFFF03000100ull;
    __asm__ volatile("lock cmpxchg16b (%1)\n sete %b0\n movzbl %b0, %k0"
                     : "=&r"(zero), "+r"(w), "+a"(low), "+d"(high)
                     : "b"(1ul), "c"(2ul)
                     : "memory", "cc");
    check("lock cmpxchg16b", zero == 1 && w[0] == 1 && w[1] == 2);
}

int main(int argc, char **argv) {
    const int f = open(argv[argc - 1], O_RDWR | O_CREAT, 0600);
    if (f < 0 || ftruncate(f, 1 << 20)) return 3;
    uint8_t *pool = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
    if (pool == MAP_FAILED) return 3;
    FLUSHES(pool + 64);
    FLUSHES(beside);
    stores(pool + 4096), stores(beside);
    locks(pool + 8192), locks(beside + 1024);
    __asm__ volatile("lock addq $3, %0\n movnti %1, %2\n clflush %0"
                     : "+m"(near_word)
                     : "r"(41ul), "m"(near_pair[0])
                     : "memory", "cc");
    check("operands relative to rip", near_word == 3 && near_pair[0] == 41);
    uint64_t local = 1;
    __asm__ volatile("lock incq %0" : "+m"(local)::"cc");
    check("operands on the stack", local == 2);
    if (!wrong) puts("all forms are right");
    return wrong != 0;
}
