/* The functions that code compiled with -fsanitize=thread calls before it loads and stores, by gcc's names and by
 * clang's. */
#include "self.h"

#define HERE __builtin_return_address(0)
#define LIKELY(x) __builtin_expect(!!(x), 1)
enum { SPINS_BEFORE_YIELD = 1024, LOOKS_BEFORE_YIELD = 8192 };

/* The compiler knows these names with other types. */
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wbuiltin-declaration-mismatch"
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

PROGRAM_EXPORT void __tsan_init(void) {}

PROGRAM_EXPORT void __tsan_func_entry(void *caller) {
    if (self) self->callers[self->depth++ % CALLERS] = caller;
}

PROGRAM_EXPORT void __tsan_func_exit(void) {
    if (self && self->depth) self->depth--;
}

PROGRAM_EXPORT void __tsan_ignore_thread_begin(void) {}
PROGRAM_EXPORT void __tsan_ignore_thread_end(void) {}

/* --- loads and stores ------------------------------------------------------------------------------------------------ */

/* Pass the turn on now and then: a thread that looks only at private memory for long is waiting for another one. */
void atomic_spins(const void *pc) {
    if (self && ++self->spins % SPINS_BEFORE_YIELD == 0) prog_yield(pc);
}

/* The same of volatile ones, such as of a word that a signal's handler sets; they may also be a computation's. */
static void look_again(const void *pc) {
    if (self && ++self->looks % LOOKS_BEFORE_YIELD == 0) prog_yield(pc);
}

#define LOAD(name, bytes)                                           \
    PROGRAM_EXPORT void __tsan_##name(void *at) {                   \
        if (!LIKELY(outside_pools(at))) prog_load(at, bytes, HERE); \
    }
#define LOOK(name, bytes)                                           \
    PROGRAM_EXPORT void __tsan_##name(void *at) {                   \
        if (!LIKELY(outside_pools(at))) prog_load(at, bytes, HERE); \
        else look_again(HERE);                                      \
    }
#define STORE(name, bytes)                                           \
    PROGRAM_EXPORT void __tsan_##name(void *at) {                    \
        if (!LIKELY(outside_pools(at))) prog_store(at, bytes, HERE); \
    }
#define BOTH(bytes)                   \
    LOAD(read##bytes, bytes)          \
    LOOK(volatile_read##bytes, bytes) \
    STORE(write##bytes, bytes)        \
    STORE(volatile_write##bytes, bytes)
#define UNALIGNED(bytes)                        \
    LOAD(unaligned_read##bytes, bytes)          \
    LOOK(unaligned_volatile_read##bytes, bytes) \
    STORE(unaligned_write##bytes, bytes)        \
    STORE(unaligned_volatile_write##bytes, bytes)
#define COMPOUND(name, bytes)                     \
    PROGRAM_EXPORT void __tsan_##name(void *at) { \
        if (LIKELY(outside_pools(at))) return;    \
        prog_load(at, bytes, HERE);               \
        prog_store(at, bytes, HERE);              \
    }

BOTH(1)
BOTH(2)
BOTH(4)
BOTH(8)
BOTH(16)
UNALIGNED(2)
UNALIGNED(4)
UNALIGNED(8)
UNALIGNED(16)
COMPOUND(read_write1, 1)
COMPOUND(read_write2, 2)
COMPOUND(read_write4, 4)
COMPOUND(read_write8, 8)
COMPOUND(read_write16, 16)
COMPOUND(unaligned_read_write2, 2)
COMPOUND(unaligned_read_write4, 4)
COMPOUND(unaligned_read_write8, 8)
COMPOUND(unaligned_read_write16, 16)
LOAD(vptr_read, sizeof(void *))

PROGRAM_EXPORT void __tsan_vptr_update(void **at, void *value) {
    (void)value;
    if (!LIKELY(outside_pools(at))) prog_store(at, sizeof *at, HERE);
}

PROGRAM_EXPORT void __tsan_read_range(void *at, size_t nbytes) { prog_load(at, nbytes, HERE); }
PROGRAM_EXPORT void __tsan_write_range(void *at, size_t nbytes) { prog_store(at, nbytes, HERE); }

/* --- atomics: these calls replace the operations ------------------------------------------------------------------ */

bool atomic_begins(void *at, size_t nbytes, const void *pc) {
    if (!LIKELY(outside_pools(at))) {
        prog_rmw_begin(at, nbytes, pc);
        return true;
    }
    if (self && (self->flushed.count || posts_past(self) || self->lingering.count)) prog_fence(FENCE_LOCKED, pc);
    else if (self) self->ordered = true;
    atomic_spins(pc);
    return false;
}

void atomic_loaded(const void *value, size_t nbytes) {
    if (program_coherent_anywhere && self) coherent_loaded(self->thread, value, nbytes);
}

#define ATOMIC_FETCH(bits, type, name, operation)                                                \
    PROGRAM_EXPORT type __tsan_atomic##bits##_##name(volatile type *at, type value, int order) { \
        (void)order;                                                                             \
        const bool pool = atomic_begins((void *)(uintptr_t)at, sizeof *at, HERE);                \
        const type old = operation(at, value, __ATOMIC_SEQ_CST);                                 \
        if (pool) prog_rmw_end((void *)(uintptr_t)at, sizeof *at, true, HERE);                   \
        return old;                                                                              \
    }

#define ATOMICS(bits, type)                                                                                            \
    PROGRAM_EXPORT type __tsan_atomic##bits##_load(const volatile type *at, int order) {                               \
        (void)order;                                                                                                   \
        const bool pool = !LIKELY(outside_pools((const void *)(uintptr_t)at));                                         \
        if (pool) prog_load((const void *)(uintptr_t)at, sizeof *at, HERE);                                            \
        else atomic_spins(HERE);                                                                                       \
        const type value = __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                      \
        if (pool) atomic_loaded(&value, sizeof value);                                                                 \
        return value;                                                                                                  \
    }                                                                                                                  \
    PROGRAM_EXPORT void __tsan_atomic##bits##_store(volatile type *at, type value, int order) {                        \
        void *where = (void *)(uintptr_t)at;                                                                           \
        const bool locked = order == __ATOMIC_SEQ_CST; /* an xchg */                                                   \
        const bool pool = locked && atomic_begins(where, sizeof *at, HERE);                                            \
        if (!locked && !LIKELY(outside_pools(where))) prog_store(where, sizeof *at, HERE);                             \
        __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                                                                 \
        if (pool) prog_rmw_end(where, sizeof *at, true, HERE);                                                         \
    }                                                                                                                  \
    static bool exchanged_##bits(volatile type *at, type *expected, type value, const void *pc) {                      \
        void *where = (void *)(uintptr_t)at;                                                                           \
        const bool pool = atomic_begins(where, sizeof *at, pc);                                                        \
        const bool done = __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
        if (pool) prog_rmw_end(where, sizeof *at, done, pc);                                                           \
        return done;                                                                                                   \
    }                                                                                                                  \
    PROGRAM_EXPORT int __tsan_atomic##bits##_compare_exchange_strong(volatile type *at, type *expected, type value,    \
                                                                     int order, int other) {                           \
        (void)order, (void)other;                                                                                      \
        return exchanged_##bits(at, expected, value, HERE);                                                            \
    }                                                                                                                  \
    PROGRAM_EXPORT int __tsan_atomic##bits##_compare_exchange_weak(volatile type *at, type *expected, type value,      \
                                                                   int order, int other) {                             \
        (void)order, (void)other;                                                                                      \
        return exchanged_##bits(at, expected, value, HERE);                                                            \
    }                                                                                                                  \
    PROGRAM_EXPORT type __tsan_atomic##bits##_compare_exchange_val(volatile type *at, type expected, type value,       \
                                                                   int order, int other) {                             \
        (void)order, (void)other;                                                                                      \
        exchanged_##bits(at, &expected, value, HERE);                                                                  \
        return expected;                                                                                               \
    }                                                                                                                  \
    ATOMIC_FETCH(bits, type, exchange, __atomic_exchange_n)                                                            \
    ATOMIC_FETCH(bits, type, fetch_add, __atomic_fetch_add)                                                            \
    ATOMIC_FETCH(bits, type, fetch_sub, __atomic_fetch_sub)                                                            \
    ATOMIC_FETCH(bits, type, fetch_and, __atomic_fetch_and)                                                            \
    ATOMIC_FETCH(bits, type, fetch_or, __atomic_fetch_or)                                                              \
    ATOMIC_FETCH(bits, type, fetch_xor, __atomic_fetch_xor)                                                            \
    ATOMIC_FETCH(bits, type, fetch_nand, __atomic_fetch_nand)

/* clang-format off */
ATOMICS(8, uint8_t)
ATOMICS(16, uint16_t)
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
/* clang-format on */

PROGRAM_EXPORT void __tsan_atomic_thread_fence(int order) {
    if (order == __ATOMIC_SEQ_CST) prog_fence(FENCE_FULL, HERE);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

PROGRAM_EXPORT void __tsan_atomic_signal_fence(int order) {
    (void)order;
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
