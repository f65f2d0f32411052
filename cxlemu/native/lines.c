/* The machine's instructions on cache lines. Each takes its address in a register that the loop advances, which
 * scripts/sanitize and test_lines.py look for in the disassembly. */
#include "lines.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { STORE_LINE = 64 };

#define LINE_OF(at, line) ((uintptr_t)(at) & ~((uintptr_t)(line) - 1))

/* Execute `instruction` on every line of a range, `line` bytes apart. The compiler moves no access to memory across
 * it. */
#define EACH_LINE(at, nbytes, line, instruction)                                                             \
    for (uintptr_t p = LINE_OF(at, line), end = (uintptr_t)(at) + (uintptr_t)(nbytes); p < end; p += (line)) \
    __asm__ volatile(instruction : : "r"(p) : "memory")

typedef void copier(uint8_t *to, const uint8_t *from, size_t lines);

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

enum { MACHINE_LINE = 64 };

static void clflush(const void *at, int64_t nbytes) { EACH_LINE(at, nbytes, MACHINE_LINE, "clflush (%0)"); }
static void clflushopt(const void *at, int64_t nbytes) { EACH_LINE(at, nbytes, MACHINE_LINE, "clflushopt (%0)"); }
static void clwb(const void *at, int64_t nbytes) { EACH_LINE(at, nbytes, MACHINE_LINE, "clwb (%0)"); }

/* Copy lines by eight stores of a word each: this also works where vector access to a device faults. */
static void copy_movnti(uint8_t *to, const uint8_t *from, size_t lines) {
    for (size_t k = 0; k < lines * STORE_LINE; k += sizeof(long long)) {
        long long word;
        memcpy(&word, from + k, sizeof word);
        _mm_stream_si64((long long *)(void *)(to + k), word);
    }
}

static void copy_sse2(uint8_t *to, const uint8_t *from, size_t lines) {
    for (size_t k = 0; k < lines * STORE_LINE; k += 16)
        _mm_stream_si128((__m128i *)(void *)(to + k), _mm_loadu_si128((const __m128i *)(const void *)(from + k)));
}

__attribute__((target("avx2"))) static void copy_avx2(uint8_t *to, const uint8_t *from, size_t lines) {
    for (size_t k = 0; k < lines * STORE_LINE; k += 32)
        _mm256_stream_si256((__m256i *)(void *)(to + k), _mm256_loadu_si256((const __m256i *)(const void *)(from + k)));
}

__attribute__((target("avx512f"))) static void copy_avx512(uint8_t *to, const uint8_t *from, size_t lines) {
    for (size_t k = 0; k < lines * STORE_LINE; k += 64)
        _mm512_stream_si512((__m512i *)(void *)(to + k), _mm512_loadu_si512((const void *)(from + k)));
}

static const struct {
    int width;
    copier *copy;
    const char *name;
} COPIERS[] = {
    {64, copy_avx512, "vmovntdq (64 bytes)"},
    {32, copy_avx2, "vmovntdq (32 bytes)"},
    {16, copy_sse2, "movntdq"},
    {8, copy_movnti, "movnti"},
};

int lines_has_width(int width) {
    __builtin_cpu_init();
    switch (width) {
    case 64: return __builtin_cpu_supports("avx512f") != 0;
    case 32: return __builtin_cpu_supports("avx2") != 0;
    default: return width == 16 || width == 8; /* SSE2, which is part of x86-64 */
    }
}

/* The best instructions that this machine has, chosen when the extension is loaded. */
static struct {
    void (*drop)(const void *, int64_t);
    void (*keep)(const void *, int64_t);
    copier *copy;
    char names[128];
} chosen;

__attribute__((constructor)) static void choose(void) {
    unsigned a, b = 0, c, d;
    const char *drop = "clflush", *keep;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) b = 0;
    chosen.drop = clflush;
    if (b >> 23 & 1) chosen.drop = clflushopt, drop = "clflushopt";
    chosen.keep = chosen.drop, keep = drop;
    if (b >> 24 & 1) chosen.keep = clwb, keep = "clwb";
    size_t k = 0;
    while (!lines_has_width(COPIERS[k].width)) k++;
    chosen.copy = COPIERS[k].copy;
    snprintf(chosen.names, sizeof chosen.names, "%s, %s to keep, sfence, lfence and mfence to invalidate, %s", drop,
             keep, COPIERS[k].name);
}

void lines_flush(const void *at, int64_t nbytes, int keep) {
    if (nbytes > 0) (keep ? chosen.keep : chosen.drop)(at, nbytes);
}

void lines_fence(void) { __asm__ volatile("sfence" : : : "memory"); }

/* lfence: otherwise clflushopt may overtake the load that ended a wait, and a line that is flushed too early can come
 * back old. mfence: sfence would not order the loads that follow. */
void lines_invalidate(const void *at, int64_t nbytes) {
    __asm__ volatile("lfence" : : : "memory");
    lines_flush(at, nbytes, 0);
    __asm__ volatile("mfence" : : : "memory");
}

void lines_store_nt(void *word, uint64_t value) { _mm_stream_si64((long long *)word, (long long)value); }

static copier *copier_of(int width) {
    for (size_t k = 0; width && k < sizeof COPIERS / sizeof *COPIERS; k++)
        if (COPIERS[k].width == width) return COPIERS[k].copy;
    return chosen.copy;
}

const char *lines_instructions(void) { return chosen.names; }

#elif defined(__aarch64__)

/* Return the smallest line size of any data cache, in bytes. */
static uintptr_t machine_line(void) {
    uint64_t type;
    __asm__("mrs %0, ctr_el0" : "=r"(type));
    return (uintptr_t)4 << (type >> 16 & 15);
}

static void dc_civac(const void *at, int64_t nbytes) {
    const uintptr_t line = machine_line();
    EACH_LINE(at, nbytes, line, "dc civac, %0");
}

static void dc_cvac(const void *at, int64_t nbytes) {
    const uintptr_t line = machine_line();
    EACH_LINE(at, nbytes, line, "dc cvac, %0");
}

static void copy_stnp(uint8_t *to, const uint8_t *from, size_t lines) {
    for (size_t k = 0; k < lines * STORE_LINE; k += 32)
        __asm__ volatile("ldp q0, q1, [%1]\n\tstnp q0, q1, [%0]" : : "r"(to + k), "r"(from + k) : "v0", "v1", "memory");
}

int lines_has_width(int width) { return width == 32; }

void lines_flush(const void *at, int64_t nbytes, int keep) {
    if (nbytes > 0) (keep ? dc_cvac : dc_civac)(at, nbytes);
}

void lines_fence(void) { __asm__ volatile("dsb sy" : : : "memory"); }

void lines_invalidate(const void *at, int64_t nbytes) {
    __asm__ volatile("dmb sy" : : : "memory"); /* after the load that ended a wait */
    lines_flush(at, nbytes, 0);
    __asm__ volatile("dsb sy" : : : "memory");
}

/* Store both halves as a pair: there is no non-temporal store of a single register. */
void lines_store_nt(void *word, uint64_t value) {
    __asm__ volatile("stnp %w1, %w2, [%0]" : : "r"(word), "r"(value), "r"(value >> 32) : "memory");
}

static copier *copier_of(int width) {
    (void)width;
    return copy_stnp;
}

const char *lines_instructions(void) { return "dc civac, dc cvac to keep, dsb sy, stnp"; }

#else /* no such instructions: engines/native.py refuses plans that need them */

int lines_has_width(int width) { return width == 0; }

void lines_flush(const void *at, int64_t nbytes, int keep) { (void)at, (void)nbytes, (void)keep; }

void lines_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

void lines_invalidate(const void *at, int64_t nbytes) {
    (void)at, (void)nbytes;
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void lines_store_nt(void *word, uint64_t value) { memcpy(word, &value, sizeof value); }

static void copy_plain(uint8_t *to, const uint8_t *from, size_t lines) { memcpy(to, from, lines * STORE_LINE); }

static copier *copier_of(int width) {
    (void)width;
    return copy_plain;
}

const char *lines_instructions(void) { return ""; }

#endif

static void store_and_flush(uint8_t *to, const uint8_t *from, int64_t nbytes) {
    memcpy(to, from, (size_t)nbytes);
    lines_flush(to, nbytes, 0);
}

static void copy_past(uint8_t *into, const uint8_t *source, int64_t nbytes, copier *copy_lines) {
    int64_t head = (int64_t)(-(uintptr_t)into & (STORE_LINE - 1));
    if (head > nbytes) head = nbytes;
    const int64_t whole = (nbytes - head) / STORE_LINE * STORE_LINE, tail = nbytes - head - whole;
    if (head) store_and_flush(into, source, head);
    if (whole) copy_lines(into + head, source + head, (size_t)whole / STORE_LINE);
    if (tail) store_and_flush(into + head + whole, source + head + whole, tail);
}

void lines_copy_nt(void *to, const void *from, int64_t nbytes, int width) {
    copy_past(to, from, nbytes, copier_of(width));
}

enum { AHEAD_LINES = 16 };

static void copy_and_keep_neither(uint8_t *to, const uint8_t *from, size_t lines) {
    copier *const copy_lines = copier_of(0);
    while (lines) {
        const size_t now = lines < AHEAD_LINES ? lines : AHEAD_LINES, left = lines - now;
        for (size_t k = 0; k < now && k < left; k++) __builtin_prefetch(from + (now + k) * STORE_LINE, 0, 0);
        copy_lines(to, from, now);
        to += now * STORE_LINE, from += now * STORE_LINE, lines = left;
    }
}

void lines_copy_past(void *to, const void *from, int64_t nbytes) { copy_past(to, from, nbytes, copy_and_keep_neither); }

uint8_t *lines_mapped(uint8_t *pages, int64_t nbytes) {
    (void)nbytes;
    return pages;
}

uint8_t *lines_unmapped(uint8_t *used) { return used; }
