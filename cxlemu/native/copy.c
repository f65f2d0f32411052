/* glibc before 2.39 copies by `rep movsb` from 2,112 bytes on. On AMD's Zen 3 that takes 15 to 30 times as long as any
 * other copy where the target lies 1 to 31 bytes further into its page than the source (glibc's bug 30994). A large
 * NumPy array, which begins 16 bytes into a page, and a slot, which begins a page, lie like that. This file copies them
 * by vectors, up to the size of the second-level cache: beyond it, vectors are no faster than memcpy.
 *
 * From that size on memcpy goes by vectors itself, whose stores fetch each line only to overwrite it. Where source and
 * target lie alike in their lines, `rep movsb` of a processor with fast short ones (FSRM) does not. */
#include "copy.h"
#include "lines.h"

#include <string.h>

enum { LINE = 64, PAGE = 4096, CRAWLS_FROM_BYTES = 2048, CRAWLS_BELOW_BYTES = 512 << 10, CRAWLS_WITHIN = 32 };
enum { STRING_FROM_BYTES = 512 << 10 };

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

#define LOAD(at) _mm256_loadu_si256((const __m256i *)(const void *)(at))
#define STORE(at, value) _mm256_store_si256((__m256i *)(void *)(at), value)
#define STREAM(at, value) _mm256_stream_si256((__m256i *)(void *)(at), value)
#define STORE_ANYWHERE(at, value) _mm256_storeu_si256((__m256i *)(void *)(at), value)

/* Copy the first 64 bytes at any alignment; then whole lines of the target, two at a time. */
__attribute__((target("avx2"))) static void by_avx2(uint8_t *to, const uint8_t *from, size_t nbytes) {
    size_t at = 0;
    if (nbytes >= LINE) {
        STORE_ANYWHERE(to, LOAD(from));
        STORE_ANYWHERE(to + 32, LOAD(from + 32));
        at = LINE - ((uintptr_t)to & (LINE - 1));
    }
    for (; at + 2 * LINE <= nbytes; at += 2 * LINE) {
        const __m256i a = LOAD(from + at), b = LOAD(from + at + 32), c = LOAD(from + at + 64), d = LOAD(from + at + 96);
        STORE(to + at, a);
        STORE(to + at + 32, b);
        STORE(to + at + 64, c);
        STORE(to + at + 96, d);
    }
    memcpy(to + at, from + at, nbytes - at);
}

static int has_avx2(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") != 0;
}

static int is_amd(void) {
    unsigned a, b, c, d;
    return __get_cpuid(0, &a, &b, &c, &d) && b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx;
}

__attribute__((target("avx2"))) static void twice_by_avx2(uint8_t *to, uint8_t *too, const uint8_t *from, size_t nbytes,
                                                          int past) {
    for (size_t at = 0; at < nbytes; at += LINE) {
        const __m256i a = LOAD(from + at), b = LOAD(from + at + 32);
        if (past) {
            STREAM(to + at, a);
            STREAM(to + at + 32, b);
        } else {
            STORE(to + at, a);
            STORE(to + at + 32, b);
        }
        STORE_ANYWHERE(too + at, a);
        STORE_ANYWHERE(too + at + 32, b);
    }
    if (past) _mm_sfence();
}

void copy_lines_twice(void *to, void *too, const void *from, int64_t nbytes, int past) {
    if (has_avx2() && (uintptr_t)to % 32 == 0) twice_by_avx2(to, too, from, (size_t)nbytes, past);
    else memcpy(to, from, (size_t)nbytes), memcpy(too, to, (size_t)nbytes);
}

static int has_fsrm(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 4 & 1;
}

/* Found when this is loaded: whether memcpy may be the slow one here, and whether strings are fast. */
static int may_crawl, fast_strings;

__attribute__((constructor)) static void choose(void) {
    may_crawl = is_amd() && has_avx2();
    fast_strings = has_fsrm();
}

static int crawls(const void *to, const void *from, int64_t nbytes) {
    const uintptr_t further = ((uintptr_t)to - (uintptr_t)from) % PAGE;
    return may_crawl && nbytes >= CRAWLS_FROM_BYTES && nbytes < CRAWLS_BELOW_BYTES && further &&
           further < CRAWLS_WITHIN;
}

void copy_by_vectors(void *to, const void *from, int64_t nbytes) {
    if (has_avx2()) by_avx2(to, from, (size_t)nbytes);
    else memcpy(to, from, (size_t)nbytes);
}

static int alike_in_lines(const void *to, const void *from) { return ((uintptr_t)to - (uintptr_t)from) % LINE == 0; }

static void by_string(void *to, const void *from, size_t nbytes) {
    __asm__ volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(nbytes) : : "memory");
}

static int suits_strings(const void *to, const void *from, int64_t nbytes) {
    return fast_strings && nbytes >= STRING_FROM_BYTES && alike_in_lines(to, from);
}

void copy_bytes(void *to, const void *from, int64_t nbytes) {
    if (crawls(to, from, nbytes)) by_avx2(to, from, (size_t)nbytes);
    else if (suits_strings(to, from, nbytes)) by_string(to, from, (size_t)nbytes);
    else memcpy(to, from, (size_t)nbytes);
}

void copy_bytes_past(void *to, const void *from, int64_t nbytes) {
    if (suits_strings(to, from, nbytes)) by_string(to, from, (size_t)nbytes);
    else lines_copy_past(to, from, nbytes);
}

#else

void copy_lines_twice(void *to, void *too, const void *from, int64_t nbytes, int past) {
    (void)past;
    memcpy(to, from, (size_t)nbytes);
    memcpy(too, to, (size_t)nbytes);
}

void copy_by_vectors(void *to, const void *from, int64_t nbytes) { memcpy(to, from, (size_t)nbytes); }

void copy_bytes(void *to, const void *from, int64_t nbytes) { memcpy(to, from, (size_t)nbytes); }

void copy_bytes_past(void *to, const void *from, int64_t nbytes) { lines_copy_past(to, from, nbytes); }

#endif
