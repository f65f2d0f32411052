/* A canary for each way to load or to store: `put NAME` stores 64 bytes without a flush and publishes, `nt NAME` stores past the cache
 * without a fence; `get NAME` waits, and loads them without an invalidate. These are mistakes, so each is found where the access is
 * seen. `flush NAME` and `fence NAME` are right, where they are seen. */
#define _GNU_SOURCE
#include <cxl.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <wchar.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SIZE = 64 };
typedef struct {
    volatile uint64_t ready;
    uint8_t pad[56], text[SIZE], beside[SIZE];
} box;
typedef struct {
    char bytes[SIZE];
} whole;
typedef struct {
    uint64_t low : 7, high : 20;
} bits;

static uint8_t mine[2 * SIZE] __attribute__((aligned(64)));
static volatile uint64_t kept, atomic;
static void keep(const void *at) { kept += *(const volatile uint64_t *)at; }

static void printed(char *to, const char *format, ...) {
    va_list values;
    va_start(values, format);
    kept += (uint64_t)vsnprintf(to, SIZE, format, values);
    va_end(values);
}

/* Let the system store to two parts of a pool. */
static void received(uint8_t *to, bool message) {
    struct iovec parts[2] = {{to, 16}, {to + 16, 16}};
    struct msghdr its = {.msg_iov = parts, .msg_iovlen = 2};
    int pair[2];
    uint8_t sent[32] = {1, 2, 3};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || send(pair[0], sent, sizeof sent, 0) < 0) abort();
    kept += (uint64_t)(message ? recvmsg(pair[1], &its, 0) : readv(pair[1], parts, 2));
}

typedef struct {
    const char *way;
    void (*does)(uint8_t *to, const uint8_t *from);
} canary;
extern const canary __start_canaries[], __stop_canaries[];
#define CANARY(way, how)                                                             \
    static void way(uint8_t *to, const uint8_t *from) { (void)to, (void)from, how; } \
    static const canary canary_##way __attribute__((section("canaries"), used)) = {#way, way};
#define PUT(way, how) CANARY(put_##way, how)
#define GET(way, how) CANARY(get_##way, how)
#define NT(way, how) CANARY(nt_##way, how)
#define FLUSH(way, how) CANARY(flush_##way, (*to = 1, how))
#define FENCE(way, how) CANARY(fence_##way, (*to = 1, cxl_flush(to, 1), how))
#define AVX __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl")))
#define ASM(...) ({ __asm__ volatile(__VA_ARGS__); })
#define LINE_OF(at) "r"(at) : "memory" /* in templates, {one syntax|the other} */

/* What compilers make vectors of: plain loads and stores, in functions of their own. */
typedef const int64_t *words;
#define PLAIN __attribute__((noinline, used)) static int64_t
PLAIN sums(words at) { return at[0] + at[1] + at[2] + at[3]; }
PLAIN sums_all(words at) {
    int64_t sum = 0;
    for (int k = 0; k < 8; k++) sum += at[k];
    return sum;
}
PLAIN compares(const uint8_t *at, const uint8_t *other) {
    int64_t differ = 0;
    for (int k = 0; k < SIZE; k++) differ |= at[k] ^ other[k];
    return differ;
}
PLAIN adds(int64_t *restrict to, words from) {
    for (int k = 0; k < 8; k++) to[k] = from[k] + k;
    return 0;
}
PLAIN pairs(words at, int count) {
    int64_t sum = 0;
#if defined(__clang__)
#pragma clang loop vectorize(enable)
#endif
    for (int k = 0; k < count; k++) sum += at[2 * k] ^ at[2 * k + 1];
    return sum;
}
PLAIN wide(words at, int count) {
    int64_t sum = 0;
#if defined(__clang__)
#pragma clang loop vectorize_width(4)
#endif
    for (int k = 0; k < count; k++) sum += at[k];
    return sum;
}
PLAIN simd(words at, int count) {
    int64_t sum = 0;
#pragma omp simd simdlen(8) reduction(+ : sum)
    for (int k = 0; k < count; k++) sum += at[k];
    return sum;
}
__attribute__((no_sanitize("thread"))) PLAIN exempt(words at) { return *at; }
__attribute__((__no_sanitize_thread__)) PLAIN exempt_too(words at) { return *at; }
#if !defined(__clang__)
__attribute__((optimize("O3,tree-vectorize"))) PLAIN optimized(words at) { return at[0] + at[1] + at[2] + at[3]; }
#else
__attribute__((optnone)) PLAIN optimized(words at) { return at[0] + at[1] + at[2] + at[3]; }
#endif

/* clang-format off */
PUT(plain_adds, adds((int64_t *)to, (words)from))
GET(plain_sums, kept += (uint64_t)sums((words)from))
GET(plain_sums_all, kept += (uint64_t)sums_all((words)from))
GET(plain_compares, kept += (uint64_t)compares(from, to))
GET(plain_adds, adds((int64_t *)to, (words)from))
GET(plain_pairs, kept += (uint64_t)pairs((words)from, 4))
GET(plain_wide, kept += (uint64_t)wide((words)from, 8))
GET(plain_simd, kept += (uint64_t)simd((words)from, 8))
GET(plain_exempt, kept += (uint64_t)exempt((words)from))
GET(plain_exempt_too, kept += (uint64_t)exempt_too((words)from))
GET(plain_optimized, kept += (uint64_t)optimized((words)from))
PUT(byte, *to = 1)
PUT(word, *(uint64_t *)to = 1)
PUT(struct, *(whole *)to = *(const whole *)from)
PUT(bits, ((bits *)to)->high = 3)
PUT(int128, *(__int128 *)to = 3)
PUT(float, *(float *)to = 3)
PUT(long_double, *(long double *)to = 3)
PUT(complex, *(_Complex double *)to = 3)
PUT(memcpy, memcpy(to, from, SIZE))
PUT(memcpy_8, memcpy(to, from, 8))
PUT(memcpy_builtin, __builtin_memcpy(to, from, 16))
PUT(memcpy_checked, __builtin___memcpy_chk(to, from, 16, 64))
PUT(memmove, memmove(to, from, SIZE))
PUT(mempcpy, mempcpy(to, from, SIZE))
PUT(mempcpy_builtin, __builtin_mempcpy(to, from, 8))
PUT(memccpy, memccpy(to, from, 'k', SIZE))
PUT(bcopy, bcopy(from, to, SIZE))
PUT(bcopy_builtin, __builtin_bcopy(from, to, 8))
PUT(memset, memset(to, 7, SIZE))
PUT(memset_builtin, __builtin_memset(to, 7, 8))
PUT(bzero, bzero(to, SIZE))
PUT(bzero_builtin, __builtin_bzero(to, 8))
PUT(explicit_bzero, explicit_bzero(to, SIZE))
PUT(strcpy, strcpy((char *)to, (const char *)from))
PUT(strncpy, strncpy((char *)to, (const char *)from, 20))
PUT(stpcpy, stpcpy((char *)to, (const char *)from))
PUT(stpncpy, stpncpy((char *)to, (const char *)from, 20))
PUT(strcat, strcat((char *)to + 8, (const char *)from))
PUT(strncat, strncat((char *)to + 8, (const char *)from, 5))
PUT(strcpy_checked, __builtin___strcpy_chk((char *)to, "abc", 64))
PUT(sprintf, sprintf((char *)to, "%s", "text"))
PUT(snprintf, snprintf((char *)to, 9, "%s", "text"))
PUT(vsnprintf, printed((char *)to, "text"))
PUT(fgets, kept += fgets((char *)to, 20, fmemopen((void *)(uintptr_t)from, SIZE, "r")) != NULL)
PUT(readv, received(to, false))
PUT(recvmsg, received(to, true))
PUT(swab, swab(from, to, SIZE))
PUT(strxfrm, kept += strxfrm((char *)to, (const char *)from, SIZE))
PUT(wmemcpy, wmemcpy((wchar_t *)to, (const wchar_t *)from, 8))
PUT(wmemset, wmemset((wchar_t *)to, 7, 8))
PUT(exchange, __atomic_exchange_n((uint64_t *)to, 3, __ATOMIC_SEQ_CST))
PUT(or, __atomic_or_fetch((uint32_t *)to, 3, __ATOMIC_RELAXED))
PUT(sync, __sync_fetch_and_add((uint32_t *)to, 3))
PUT(cleared, __atomic_test_and_set(to, __ATOMIC_SEQ_CST))
#if defined(__x86_64__)
PUT(sse, _mm_storeu_si128((__m128i *)to, _mm_set1_epi8(3)))
PUT(high_half, _mm_storeh_pd((double *)to, _mm_set1_pd(3)))
PUT(low_half, _mm_storel_pi((__m64 *)to, _mm_set1_ps(3)))
AVX PUT(avx, _mm256_storeu_si256((__m256i *)to, _mm256_set1_epi8(3)))
AVX PUT(masked_avx, _mm256_maskstore_epi32((int *)to, _mm256_set1_epi32(-1), _mm256_set1_epi32(3)))
AVX512 PUT(avx512, _mm512_storeu_si512(to, _mm512_set1_epi8(3)))
AVX512 PUT(masked, _mm512_mask_storeu_epi8(to, 0xFF, _mm512_set1_epi8(3)))
AVX512 PUT(compressed, _mm512_mask_compressstoreu_epi64(to, 0xF, _mm512_set1_epi64(3)))
AVX512 PUT(scatter, _mm512_i64scatter_epi64(to, _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_epi64(3), 8))

NT(movnti, _mm_stream_si32((int *)to, 3))
NT(movntiq, _mm_stream_si64((long long *)to, 3))
NT(movntdq, _mm_stream_si128((__m128i *)to, _mm_set1_epi8(3)))
NT(movntps, _mm_stream_ps((float *)to, _mm_set1_ps(3)))
NT(movntpd, _mm_stream_pd((double *)to, _mm_set1_pd(3)))
AVX NT(vmovntdq, _mm256_stream_si256((__m256i *)to, _mm256_set1_epi8(3)))
AVX NT(vmovntps, _mm256_stream_ps((float *)to, _mm256_set1_ps(3)))
AVX512 NT(vmovntdq_64, _mm512_stream_si512((__m512i *)to, _mm512_set1_epi8(3)))

FLUSH(clflush, _mm_clflush(to))
__attribute__((target("clflushopt"))) FLUSH(clflushopt, _mm_clflushopt(to))
__attribute__((target("clwb"))) FLUSH(clwb, _mm_clwb(to))
FLUSH(clwb_asm, ASM("clwb {(%0)|[%0]}" :: LINE_OF(to)))
FLUSH(clwb_bytes, ASM(".byte 0x66\n xsaveopt {(%0)|[%0]}" :: LINE_OF(to)))
FLUSH(clwb_other_syntax, ASM("{.intel_syntax noprefix\n clwb [%0]\n .att_syntax prefix|clwb [%0]}" :: LINE_OF(to)))
FENCE(sfence, _mm_sfence())
FENCE(mfence, _mm_mfence())
FENCE(mfence_asm, ASM("mfence" ::: "memory"))
FENCE(locked, __atomic_fetch_add(&atomic, 1, __ATOMIC_SEQ_CST))
FENCE(locked_asm, ASM("lock; or{q $0, (%%rsp)| QWORD PTR [rsp], 0}" ::: "memory", "cc"))
#endif

GET(byte, kept += *from)
GET(word, kept += *(const uint64_t *)from)
GET(increment, ++*(uint64_t *)(uintptr_t)from)
GET(struct, *(whole *)to = *(const whole *)from)
GET(bits, kept += ((const bits *)from)->high)
GET(int128, kept += (uint64_t) * (const __int128 *)from)
GET(float, kept += (uint64_t) * (const float *)from)
GET(long_double, kept += *(const long double *)from > 1)
GET(complex, kept += *(const _Complex double *)from == 1)
GET(memcpy, memcpy(to, from, SIZE))
GET(memcpy_8, memcpy(to, from, 8))
GET(memcpy_builtin, __builtin_memcpy(to, from, 16))
GET(memmove, memmove(to, from, SIZE))
GET(mempcpy, mempcpy(to, from, SIZE))
GET(memccpy, memccpy(to, from, 'k', SIZE))
GET(bcopy, bcopy(from, to, SIZE))
GET(memcmp, kept += (uint64_t)memcmp(from, to, SIZE))
GET(memcmp_builtin, kept += (uint64_t)__builtin_memcmp(from, to, 8))
GET(bcmp, kept += (uint64_t)bcmp(from, to, SIZE))
GET(memchr, kept += memchr(from, 'k', SIZE) != NULL)
GET(strlen, kept += strlen((const char *)from))
GET(strlen_builtin, kept += __builtin_strlen((const char *)from))
GET(strnlen, kept += strnlen((const char *)from, SIZE))
GET(strcpy, strcpy((char *)to, (const char *)from))
GET(strncpy, strncpy((char *)to, (const char *)from, 9))
GET(stpcpy, stpcpy((char *)to, (const char *)from))
GET(strcat, strcat((char *)to, (const char *)from))
GET(strcmp, kept += (uint64_t)strcmp("abc", (const char *)from))
GET(strncmp, kept += (uint64_t)strncmp("abc", (const char *)from, 2))
GET(strcasecmp, kept += (uint64_t)strcasecmp("abc", (const char *)from))
GET(strchr, kept += strchr((const char *)from, 'k') != NULL)
GET(strrchr, kept += strrchr((const char *)from, 'k') != NULL)
GET(strstr, kept += strstr((const char *)from, "k") != NULL)
GET(strchrnul, kept += *strchrnul((const char *)from, 'k'))
GET(strcasestr, kept += strcasestr((const char *)from, "k") != NULL)
GET(strspn, kept += strspn((const char *)from, "k"))
GET(strcspn, kept += strcspn((const char *)from, "k"))
GET(strpbrk, kept += strpbrk((const char *)from, "k") != NULL)
GET(memrchr, kept += memrchr(from, 'k', SIZE) != NULL)
GET(memmem, kept += memmem(from, SIZE, "kk", 2) != NULL)
GET(strtol, kept += (uint64_t)strtol((const char *)from, NULL, 0))
GET(strtod, kept += strtod((const char *)from, NULL) > 1)
GET(atoi, kept += (uint64_t)atoi((const char *)from))
GET(fwrite, kept += fwrite(from, 1, SIZE, stderr))
GET(fputs, kept += (uint64_t)fputs((const char *)from, stderr))
GET(fputs_unlocked, kept += (uint64_t)fputs_unlocked((const char *)from, stderr))
GET(printf, kept += (uint64_t)printf("%s", (const char *)from))
GET(printf_values, kept += (uint64_t)printf("%% %-*d %ld %.2f %Lg %s", 3, 1, 2L, .5, 1.L, (const char *)from))
GET(printf_some, kept += (uint64_t)printf("%*.*s %.3s", 9, 4, (const char *)from + SIZE - 4, (const char *)from + SIZE - 3))
GET(fprintf, kept += (uint64_t)fprintf(stderr, "%s", (const char *)from))
GET(dprintf, kept += (uint64_t)dprintf(2, "%5s", (const char *)from))
GET(asprintf, kept += (uint64_t)asprintf(&(char *){NULL}, "%s", (const char *)from))
GET(snprintf, kept += (uint64_t)snprintf((char *)to, SIZE, "%s", (const char *)from))
GET(vsnprintf, printed((char *)to, "%s", (const char *)from))
GET(sscanf, kept += (uint64_t)sscanf((const char *)from, "%c", &(char){0}))
GET(strverscmp, kept += (uint64_t)strverscmp((const char *)from, "k"))
GET(rawmemchr, kept += rawmemchr(from, 'k') != NULL)
GET(strtoimax, kept += (uint64_t)strtoimax((const char *)from, NULL, 0))
GET(strtoumax, kept += strtoumax((const char *)from, NULL, 0))
GET(strxfrm, kept += strxfrm((char *)to, (const char *)from, SIZE))
GET(swab, swab(from, to, SIZE))
GET(mbstowcs, kept += mbstowcs((wchar_t *)to, (const char *)from, 4))
GET(wmemcpy, wmemcpy((wchar_t *)to, (const wchar_t *)from, 8))
GET(wmemcmp, kept += (uint64_t)wmemcmp((wchar_t *)to, (const wchar_t *)from, 8))
GET(wcsncmp, kept += (uint64_t)wcsncmp((const wchar_t *)from, L"k", 8))
GET(wcsnlen, kept += wcsnlen((const wchar_t *)from, 8))
GET(strtok, kept += strtok((char *)(uintptr_t)from, "k") != NULL)
GET(strdup, kept += strdup((const char *)from) != NULL)
GET(atomic, kept += __atomic_load_n((const uint64_t *)from, __ATOMIC_ACQUIRE))
#if defined(__x86_64__)
GET(sse, kept += (uint64_t)_mm_cvtsi128_si64(_mm_loadu_si128((const __m128i *)from)))
GET(high_half, _mm_storeu_pd((double *)to, _mm_loadh_pd(_mm_setzero_pd(), (const double *)from)))
GET(low_half, _mm_storeu_ps((float *)to, _mm_loadl_pi(_mm_set1_ps(3), (const __m64 *)from)))
__attribute__((target("sse3"))) GET(lddqu, _mm_storeu_si128((__m128i *)to, _mm_lddqu_si128((const __m128i *)from)))
__attribute__((target("sse4.1"))) GET(stream, _mm_storeu_si128((__m128i *)to, _mm_stream_load_si128((__m128i *)(uintptr_t)from)))
AVX GET(avx, _mm256_storeu_si256((__m256i *)to, _mm256_loadu_si256((const __m256i *)from)))
AVX GET(broadcast, _mm256_storeu_ps((float *)to, _mm256_broadcast_ss((const float *)from)))
AVX GET(masked_avx, _mm256_storeu_si256((__m256i *)to, _mm256_maskload_epi32((const int *)from, _mm256_set1_epi32(-1))))
AVX GET(gather_avx, _mm256_storeu_si256((__m256i *)to, _mm256_i32gather_epi32((const int *)from, _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0), 4)))
AVX512 GET(avx512, _mm512_storeu_si512(to, _mm512_loadu_si512(from)))
AVX512 GET(masked, _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(0xFF, from)))
AVX512 GET(masked_end, _mm512_storeu_si512(to, _mm512_maskz_loadu_epi8(0xF, from + SIZE - 4)))
AVX512 GET(gather_some, _mm512_storeu_si512(to, _mm512_mask_i64gather_epi64(_mm512_setzero_si512(), 3, _mm512_set1_epi64(-1), from + SIZE, 8)))
AVX512 GET(expanded, _mm512_storeu_si512(to, _mm512_maskz_expandloadu_epi64(0xF, from)))
AVX512 GET(gather, _mm512_storeu_si512(to, _mm512_i64gather_epi64(_mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0), from, 8)))
#endif
    /* clang-format on */

    static void make(const char *way, uint8_t *to, const uint8_t *from) {
    for (const canary *its = __start_canaries; its < __stop_canaries; its++)
        if (strcmp(its->way, way) == 0) its->does(to, from);
}

int main(int count, char **words) {
    box *b = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, open(words[1], O_RDWR), 0);
    if (count < 3 || b == MAP_FAILED) return 9;
    memset(mine, 'k', SIZE), mine[40] = 0;
    const int gets = strncmp(words[2], "get", 3) == 0;
    if (words[3][0] == 'w') {
        if (!gets) {
            memset(b->text, 'x', SIZE), b->text[12] = 0;
            cxl_flush(b->text, SIZE);
            cxl_fence();
            make(words[2], b->text, mine);
        } else {
            for (int k = 0; k < SIZE; k++) b->text[k] = mine[k];
            cxl_flush(b->text, SIZE);
            b->beside[0] = 1; /* which nobody loads */
        }
        if (words[2][0] != 'n' && strncmp(words[2], "fence", 5) != 0) cxl_fence();
        b->ready = 1;
        cxl_flush((void *)&b->ready, 8);
        cxl_fence();
        return 0;
    }
    while (!b->ready) cxl_invalidate((void *)&b->ready, 8);
    if (!gets) {
        cxl_invalidate(b->text, SIZE);
        for (int k = 0; k < SIZE; k++) keep(b->text + k / 8 * 8);
    } else {
        make(words[2], mine + SIZE, b->text);
    }
    return 0;
}
