/* cxl.h: stores and loads on a CXL memory pool that several hosts map and no hardware keeps coherent.
 *
 * A pool's bytes lie in the caches of several hosts. A store reaches the pool when it is flushed and fenced; a load sees
 * what is in the pool when the host's own copy of the line has been invalidated. The chain that makes a read right:
 *
 *     writer:  *data = v;  cxl_flush(data, n);  cxl_fence();  *flag = 1;  cxl_flush(flag, 8);  cxl_fence();
 *     reader:  do cxl_invalidate(flag, 8); while (!*flag);    cxl_invalidate(data, n);         v = *data;
 *
 * Include this file from C11 or C++11, with gcc or clang, on x86-64 or arm64; there is nothing to link. Every function
 * takes any address and size; lines that the range touches in part are taken whole. `flag` and whatever else one host
 * writes while another one reads it should be volatile or atomic.
 *
 * Compiled by `cxlemu cc`, the functions become calls of the emulator: it shows each of them with its source line, and names
 * the one that is missing. Apache-2.0. */
#ifndef CXL_H
#define CXL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CXL_LINE 64 /* bytes that travel together between caches and pool */

#if defined(__cplusplus)
extern "C" {
#endif

/* In line even without optimization: a debugger, and a report of `cxlemu exec`, then show the caller's line. */
#define CXL_INLINE static inline __attribute__((always_inline, unused))

#if defined(CXLEMU_PROGRAM)

void cxlemu_cxl_flush(const void *at, size_t nbytes);
void cxlemu_cxl_writeback(const void *at, size_t nbytes);
void cxlemu_cxl_fence(void);
void cxlemu_cxl_invalidate(const void *at, size_t nbytes);
void cxlemu_cxl_store_nt(void *to, const void *from, size_t nbytes);
void cxlemu_cxl_expect_stale(const void *at, size_t nbytes);
void cxlemu_cxl_fails(const char *condition, const char *file, const char *function, unsigned line);
void cxlemu_cxl_invariant(const void *at, size_t nbytes, int (*holds)(const void *), const char *file,
                          const char *function, unsigned line);
void cxlemu_cxl_linearizable(int kinds);
void cxlemu_cxl_op_begin(int operation, uint64_t key, uint64_t value, const char *file, const char *function,
                         unsigned line);
void cxlemu_cxl_op_end(uint64_t result);
void cxlemu_cxl_device_copy(void *to, const void *from, size_t nbytes, uint64_t *copy);
int cxlemu_cxl_device_query(uint64_t *copy);
void cxlemu_cxl_device_wait(uint64_t *copy);
#define cxl_flush_lines_ cxlemu_cxl_flush
#define cxl_writeback_lines_ cxlemu_cxl_writeback
#define cxl_fence_ cxlemu_cxl_fence
#define cxl_invalidate_lines_ cxlemu_cxl_invalidate
#define cxl_store_nt_ cxlemu_cxl_store_nt
#define cxl_expect_stale_ cxlemu_cxl_expect_stale

#else

/* Execute an instruction on every line of a range. The compiler moves no access across it. */
#define CXL_EACH_LINE_(at, nbytes, line, instruction)                                                            \
    do {                                                                                                         \
        const uintptr_t cxl_end_ = (uintptr_t)(at) + (nbytes);                                                   \
        uintptr_t cxl_at_ = (uintptr_t)(at) & ~((uintptr_t)(line) - 1);                                          \
        for (; cxl_at_ < cxl_end_; cxl_at_ += (line)) __asm__ volatile(instruction : : "r"(cxl_at_) : "memory"); \
    } while (0)

CXL_INLINE void cxl_expect_stale_(const void *at, size_t nbytes) { (void)at, (void)nbytes; }

#if defined(__x86_64__)

#include <cpuid.h>
#include <emmintrin.h>

enum { CXL_HAS_CLFLUSHOPT_ = 1, CXL_HAS_CLWB_ = 2, CXL_ASKED_ = 4 };

/* Return what this processor has beyond clflush, which is asked once in every file that includes this. */
static __attribute__((unused)) int cxl_processor_(void) {
    static int known;
    int has = __atomic_load_n(&known, __ATOMIC_RELAXED);
    if (!has) {
        unsigned a, b = 0, c, d;
        if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) b = 0;
        has = CXL_ASKED_ | (b >> 23 & 1 ? CXL_HAS_CLFLUSHOPT_ : 0) | (b >> 24 & 1 ? CXL_HAS_CLWB_ : 0);
        __atomic_store_n(&known, has, __ATOMIC_RELAXED);
    }
    return has;
}

CXL_INLINE void cxl_flush_lines_(const void *at, size_t nbytes) {
    if (!nbytes) return;
    if (cxl_processor_() & CXL_HAS_CLFLUSHOPT_) CXL_EACH_LINE_(at, nbytes, CXL_LINE, "clflushopt (%0)");
    else CXL_EACH_LINE_(at, nbytes, CXL_LINE, "clflush (%0)");
}

CXL_INLINE void cxl_writeback_lines_(const void *at, size_t nbytes) {
    if (nbytes && cxl_processor_() & CXL_HAS_CLWB_) CXL_EACH_LINE_(at, nbytes, CXL_LINE, "clwb (%0)");
    else cxl_flush_lines_(at, nbytes);
}

CXL_INLINE void cxl_fence_(void) { __asm__ volatile("sfence" : : : "memory"); }

/* clflushopt may overtake the load that ended a wait, and sfence does not order the loads that follow. */
CXL_INLINE void cxl_invalidate_lines_(const void *at, size_t nbytes) {
    __asm__ volatile("lfence" : : : "memory");
    cxl_flush_lines_(at, nbytes);
    __asm__ volatile("mfence" : : : "memory");
}

CXL_INLINE void cxl_store_line_nt_(char *to, const char *from) {
    for (int k = 0; k < CXL_LINE; k += 16)
        _mm_stream_si128((__m128i *)(void *)(to + k), _mm_loadu_si128((const __m128i *)(const void *)(from + k)));
}

#elif defined(__aarch64__)

/* Return the smallest line size of any data cache, in bytes. */
CXL_INLINE uintptr_t cxl_machine_line_(void) {
    uint64_t type;
    __asm__("mrs %0, ctr_el0" : "=r"(type));
    return (uintptr_t)4 << (type >> 16 & 15);
}

CXL_INLINE void cxl_flush_lines_(const void *at, size_t nbytes) {
    const uintptr_t line = cxl_machine_line_();
    if (nbytes) CXL_EACH_LINE_(at, nbytes, line, "dc civac, %0");
}

CXL_INLINE void cxl_writeback_lines_(const void *at, size_t nbytes) {
    const uintptr_t line = cxl_machine_line_();
    if (nbytes) CXL_EACH_LINE_(at, nbytes, line, "dc cvac, %0");
}

CXL_INLINE void cxl_fence_(void) { __asm__ volatile("dsb sy" : : : "memory"); }

CXL_INLINE void cxl_invalidate_lines_(const void *at, size_t nbytes) {
    __asm__ volatile("dmb sy" : : : "memory"); /* after the load that ended a wait */
    cxl_flush_lines_(at, nbytes);
    __asm__ volatile("dsb sy" : : : "memory");
}

CXL_INLINE void cxl_store_line_nt_(char *to, const char *from) {
    for (int k = 0; k < CXL_LINE; k += 32)
        __asm__ volatile("ldp q0, q1, [%1]\n\tstnp q0, q1, [%0]" : : "r"(to + k), "r"(from + k) : "v0", "v1", "memory");
}

#else
#error "cxl.h knows the cache instructions of x86-64 and arm64"
#endif

/* Store whole lines past the cache. Bytes left over at either end are stored as usual and flushed. */
CXL_INLINE void cxl_store_nt_(void *to, const void *from, size_t nbytes) {
    char *into = (char *)to;
    const char *source = (const char *)from;
    size_t head = (size_t)(-(uintptr_t)into & (CXL_LINE - 1));
    if (head > nbytes) head = nbytes;
    memcpy(into, source, head);
    cxl_flush_lines_(into, head);
    for (into += head, source += head, nbytes -= head; nbytes >= CXL_LINE; nbytes -= CXL_LINE) {
        cxl_store_line_nt_(into, source);
        into += CXL_LINE, source += CXL_LINE;
    }
    memcpy(into, source, nbytes);
    cxl_flush_lines_(into, nbytes);
}

#endif

/* --- the interface ------------------------------------------------------------------------------------------------------- */

/* Write lines back that this host has stored to, and drop them from its cache: clflushopt, DC CIVAC. The bytes that
 * they hold now are in the pool after this thread's next cxl_fence. */
CXL_INLINE void cxl_flush(const volatile void *at, size_t nbytes) { cxl_flush_lines_((const void *)at, nbytes); }

/* Write lines back as cxl_flush does, but keep them in the cache where the processor can: clwb, DC CVAC. This
 * does not invalidate. */
CXL_INLINE void cxl_writeback(const volatile void *at, size_t nbytes) {
    cxl_writeback_lines_((const void *)at, nbytes);
}

/* Fence the writer's stores: bytes that this thread has flushed, written back or stored by cxl_store_nt are in the pool
 * before anything that it stores from now on: sfence, DSB SY. */
CXL_INLINE void cxl_fence(void) { cxl_fence_(); }

/* Drop the reader's copies of lines, so that later loads see the bytes that are in the pool now. Call it after the load
 * by which you know that the data is there: lfence, clflushopt, mfence. A line that this host has stored to is written
 * back, so never store to a line that you read and another host writes. */
CXL_INLINE void cxl_invalidate(const volatile void *at, size_t nbytes) {
    cxl_invalidate_lines_((const void *)at, nbytes);
}

/* Store bytes past the cache; complete at the next cxl_fence. The regions do not overlap. */
CXL_INLINE void cxl_store_nt(volatile void *to, const void *from, size_t nbytes) {
    cxl_store_nt_((void *)(uintptr_t)to, from, nbytes);
}

/* Declare that this host's loads of these bytes may be stale from here on, as the program detects that by a checksum or
 * a sequence number. The emulator's checker then reports no such load; on hardware this does nothing. */
CXL_INLINE void cxl_expect_stale(const volatile void *at, size_t nbytes) {
    cxl_expect_stale_((const void *)at, nbytes);
}

/* --- copies by devices: a GPU's, a NIC's or a DMA engine's ----------------------------------------------------------------
 *
 * A device copies to or from the pool at a time of its own, between cxl_device_copy and the cxl_device_wait or
 * cxl_device_query that shows its end. Until then nobody may use the bytes at `to`, or change those at `from`. Only a
 * processor has cache instructions, so a copy to the pool is published as a store is, from the wait on, and one from the
 * pool is asked for behind the invalidate:
 *
 *     cxl_event done = {0};
 *     writer:  cxl_device_copy(data, from, n, &done);  cxl_device_wait(&done);  cxl_flush(data, n);  cxl_fence();  *flag = 1; ...
 *     reader:  ... cxl_invalidate(data, n);  cxl_device_copy(to, data, n, &done);  cxl_device_wait(&done);
 *
 * Outside of `cxlemu exec` the processor copies at once. Define CXL_DEVICE_HOOKS, and functions cxl_hook_copy,
 * cxl_hook_query and cxl_hook_wait with the parameters of those here, to have a device of yours do it. */
typedef struct {
    uint64_t copy; /* 0: none; a hook may keep there what it likes */
} cxl_event;

#if defined(CXLEMU_PROGRAM)
CXL_INLINE void cxl_device_copy(volatile void *to, const volatile void *from, size_t nbytes, cxl_event *event) {
    cxlemu_cxl_device_copy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, nbytes, &event->copy);
}
CXL_INLINE int cxl_device_query(cxl_event *event) { return cxlemu_cxl_device_query(&event->copy); }
CXL_INLINE void cxl_device_wait(cxl_event *event) { cxlemu_cxl_device_wait(&event->copy); }
#elif defined(CXL_DEVICE_HOOKS)
void cxl_hook_copy(volatile void *to, const volatile void *from, size_t nbytes, cxl_event *event);
int cxl_hook_query(cxl_event *event);
void cxl_hook_wait(cxl_event *event);
#define cxl_device_copy cxl_hook_copy
#define cxl_device_query cxl_hook_query
#define cxl_device_wait cxl_hook_wait
#else
CXL_INLINE void cxl_device_copy(volatile void *to, const volatile void *from, size_t nbytes, cxl_event *event) {
    memmove((void *)(uintptr_t)to, (const void *)(uintptr_t)from, nbytes);
    event->copy = 0;
}
CXL_INLINE int cxl_device_query(cxl_event *event) { return event->copy == 0; }
CXL_INLINE void cxl_device_wait(cxl_event *event) { event->copy = 0; }
#endif

/* --- what must hold: judged by `cxlemu exec`, nothing on hardware ---------------------------------------------------------
 *
 *     cxl_assert(condition)                     the condition is not 0. On hardware it is not evaluated
 *     cxl_invariant(at, n, function)            int function(const void *bytes) does not return 0 for the n bytes (at most
 *                                               CXL_INVARIANT_MOST) that the pool itself holds at `at`, now and whenever
 *                                               a line arrives there; bytes in caches do not count. Each process that may
 *                                               let lines arrive there declares the invariant
 *     cxl_linearizable(kinds)                   some order of all operations of these kinds explains their results:
 *                                               each takes effect at once, between its begin and its end
 *     cxl_op_begin(operation, key, value)       this thread begins an operation: on queue, register or map key `key`
 *     cxl_op_end(result)                        it has this result. What a crash ends before may have taken effect, or not
 *
 * At first a register is 0, a queue is empty, and a map has no key. CXL_NONE is the result of CXL_OP_DEQUEUE, CXL_OP_GET
 * and CXL_OP_REMOVE where there is nothing, and of an operation that stores where it stored nothing. */
enum { CXL_REGISTER = 1, CXL_QUEUE = 2, CXL_MAP = 4 };
enum {
    CXL_OP_READ = 1, /* a register: its value */
    CXL_OP_WRITE,
    CXL_OP_ADD, /* its value before: a counter */
    CXL_OP_ENQUEUE,
    CXL_OP_DEQUEUE, /* the oldest value */
    CXL_OP_GET, /* a key of a map: its value */
    CXL_OP_PUT,
    CXL_OP_REMOVE /* its value before */
};
#define CXL_NONE UINT64_MAX
#define CXL_INVARIANT_MOST 4032

#if defined(CXLEMU_PROGRAM)
#define cxl_assert(condition) \
    ((condition) ? (void)0 : cxlemu_cxl_fails(#condition, __FILE__, __func__, (unsigned)__LINE__))
#define cxl_invariant(at, nbytes, function) \
    cxlemu_cxl_invariant((const void *)(at), nbytes, function, __FILE__, __func__, (unsigned)__LINE__)
#define cxl_op_begin(operation, key, value) \
    cxlemu_cxl_op_begin(operation, key, value, __FILE__, __func__, (unsigned)__LINE__)
CXL_INLINE void cxl_linearizable(int kinds) { cxlemu_cxl_linearizable(kinds); }
CXL_INLINE void cxl_op_end(uint64_t result) { cxlemu_cxl_op_end(result); }
#else
#define cxl_assert(condition) ((void)sizeof((condition) ? 1 : 0))
CXL_INLINE void cxl_invariant(const volatile void *at, size_t nbytes, int (*holds)(const void *)) {
    (void)at, (void)nbytes, (void)holds;
}
CXL_INLINE void cxl_linearizable(int kinds) { (void)kinds; }
CXL_INLINE void cxl_op_begin(int operation, uint64_t key, uint64_t value) { (void)operation, (void)key, (void)value; }
CXL_INLINE void cxl_op_end(uint64_t result) { (void)result; }
#endif

#if defined(__cplusplus)
}
#endif

#endif
