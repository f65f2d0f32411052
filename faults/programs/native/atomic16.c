/* Atomic operations on 16 bytes, by the names of both compilers' instrumentation and by those of libatomic, which code calls that
 * has no cmpxchg16b of its own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "self.h"

#define HERE __builtin_return_address(0)

/* The compiler knows these names with other types. */
#pragma GCC diagnostic ignored "-Wpragmas"
#pragma GCC diagnostic ignored "-Wbuiltin-declaration-mismatch"
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

__extension__ typedef unsigned __int128 wide;
enum { BYTES = sizeof(wide) };

/* --- on memory that is reachable ------------------------------------------------------------------------------------- */

#if defined(__x86_64__)
typedef long long pair __attribute__((vector_size(16)));

static wide load_16(const volatile wide *at) {
    const pair both = *(const volatile pair *)at; /* one instruction, which every processor with AVX makes at once */
    wide value;
    memcpy(&value, &both, sizeof value);
    return value;
}

__attribute__((target("cx16"))) static bool swap_16(volatile wide *at, wide *expected, wide value) {
    const wide found = __sync_val_compare_and_swap(at, *expected, value);
    const bool done = found == *expected;
    *expected = found;
    return done;
}
#else
static _Atomic int held;

static void lock(void) {
    for (int nobody = 0; !atomic_compare_exchange_weak(&held, &nobody, 1); nobody = 0) continue;
}

static wide load_16(const volatile wide *at) {
    lock();
    const wide value = *at;
    held = 0;
    return value;
}

static bool swap_16(volatile wide *at, wide *expected, wide value) {
    lock();
    const wide found = *at;
    const bool done = found == *expected;
    if (done) *at = value;
    held = 0;
    *expected = found;
    return done;
}
#endif

/* --- steps ----------------------------------------------------------------------------------------------------------- */

static void *plain(const volatile void *at) { return (void *)(uintptr_t)at; }
static volatile wide *there(const volatile void *at) { return reachable(plain(at)); }

static wide loaded(const volatile void *at, const void *pc) {
    const bool pool = !outside_pools(plain(at));
    if (pool) prog_load(plain(at), BYTES, pc);
    else atomic_spins(pc);
    const wide value = load_16(there(at));
    if (pool) atomic_loaded(&value, BYTES);
    return value;
}

static bool exchanged(volatile void *at, wide *expected, wide value, const void *pc) {
    const bool pool = atomic_begins(plain(at), BYTES, pc), done = swap_16(there(at), expected, value);
    if (pool) prog_rmw_end(plain(at), BYTES, done, pc);
    return done;
}

enum operation { EXCHANGE, ADD, SUB, AND, OR, XOR, NAND };
static wide applied(enum operation operation, wide old, wide value) {
    switch (operation) {
    case ADD: return old + value;
    case SUB: return old - value;
    case AND: return old & value;
    case OR: return old | value;
    case XOR: return old ^ value;
    case NAND: return ~(old & value);
    default: return value;
    }
}

static wide changed(volatile void *at, enum operation operation, wide value, const void *pc) {
    const bool pool = atomic_begins(plain(at), BYTES, pc);
    wide old = load_16(there(at));
    while (!swap_16(there(at), &old, applied(operation, old, value))) continue;
    if (pool) prog_rmw_end(plain(at), BYTES, true, pc);
    return old;
}

static void stored(volatile void *at, wide value, int order, const void *pc) {
    if (order == __ATOMIC_SEQ_CST) {
        changed(at, EXCHANGE, value, pc);
        return;
    }
    if (!outside_pools(plain(at))) prog_store(plain(at), BYTES, pc);
    wide old = load_16(there(at));
    while (!swap_16(there(at), &old, value)) continue;
}

/* --- names ----------------------------------------------------------------------------------------------------------- */

PROGRAM_EXPORT wide __tsan_atomic128_load(const volatile wide *at, int order) {
    (void)order;
    return loaded(at, HERE);
}
PROGRAM_EXPORT void __tsan_atomic128_store(volatile wide *at, wide value, int order) { stored(at, value, order, HERE); }
PROGRAM_EXPORT int __tsan_atomic128_compare_exchange_strong(volatile wide *at, wide *expected, wide value, int order,
                                                            int other) {
    (void)order, (void)other;
    return exchanged(at, expected, value, HERE);
}
PROGRAM_EXPORT int __tsan_atomic128_compare_exchange_weak(volatile wide *at, wide *expected, wide value, int order,
                                                          int other) {
    (void)order, (void)other;
    return exchanged(at, expected, value, HERE);
}
PROGRAM_EXPORT wide __tsan_atomic128_compare_exchange_val(volatile wide *at, wide expected, wide value, int order,
                                                          int other) {
    (void)order, (void)other;
    exchanged(at, &expected, value, HERE);
    return expected;
}

PROGRAM_EXPORT wide __atomic_load_16(const volatile void *at, int order) {
    (void)order;
    return loaded(at, HERE);
}
PROGRAM_EXPORT void __atomic_store_16(volatile void *at, wide value, int order) { stored(at, value, order, HERE); }
PROGRAM_EXPORT bool __atomic_compare_exchange_16(volatile void *at, void *expected, wide value, bool weak, int order,
                                                 int other) {
    wide wanted;
    (void)weak, (void)order, (void)other;
    memcpy(&wanted, expected, sizeof wanted);
    const bool done = exchanged(at, &wanted, value, HERE);
    memcpy(expected, &wanted, sizeof wanted);
    return done;
}

#define CHANGE(name, operation)                                                             \
    PROGRAM_EXPORT wide __tsan_atomic128_##name(volatile wide *at, wide value, int order) { \
        (void)order;                                                                        \
        return changed(at, operation, value, HERE);                                         \
    }                                                                                       \
    PROGRAM_EXPORT wide __atomic_##name##_16(volatile void *at, wide value, int order) {    \
        (void)order;                                                                        \
        return changed(at, operation, value, HERE);                                         \
    }
#define CHANGED(name, operation)                                                               \
    PROGRAM_EXPORT wide __atomic_##name##_fetch_16(volatile void *at, wide value, int order) { \
        (void)order;                                                                           \
        return applied(operation, changed(at, operation, value, HERE), value);                 \
    }
CHANGE(exchange, EXCHANGE)
CHANGE(fetch_add, ADD)
CHANGE(fetch_sub, SUB)
CHANGE(fetch_and, AND)
CHANGE(fetch_or, OR)
CHANGE(fetch_xor, XOR)
CHANGE(fetch_nand, NAND)
CHANGED(add, ADD)
CHANGED(sub, SUB)
CHANGED(and, AND)
CHANGED(or, OR)
CHANGED(xor, XOR)
CHANGED(nand, NAND)

/* --- of any size: clang calls these where a processor may lack cmpxchg16b ----------------------------------------------- */

/* Return libatomic's function for an operation that is not one of ours, NULL for one that is. */
static void *libatomic(const char *name, size_t nbytes, const volatile void *at) {
    if (nbytes == BYTES && (uintptr_t)at % BYTES == 0) return NULL;
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) program_misused("%s of %zu bytes is libatomic's: link with -latomic\n", name, nbytes);
    return found;
}

static wide value_at(const void *at) {
    wide value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* The compiler takes these names for builtins of its own, so they are given to other functions. */
#define SIZED(result, name, ...)                                 \
    typedef result sized_##name##_function(size_t, __VA_ARGS__); \
    PROGRAM_EXPORT sized_##name##_function sized_##name __asm__("__atomic_" #name);
#define OTHER(name, nbytes, at) ((sized_##name##_function *)(uintptr_t)libatomic("__atomic_" #name, nbytes, at))
SIZED(void, load, const volatile void *, void *, int)
SIZED(void, store, volatile void *, void *, int)
SIZED(void, exchange, volatile void *, void *, void *, int)
SIZED(bool, compare_exchange, volatile void *, void *, void *, int, int)

void sized_load(size_t nbytes, const volatile void *at, void *into, int order) {
    sized_load_function *other = OTHER(load, nbytes, at);
    if (other) {
        prog_load(plain(at), nbytes, HERE);
        other(nbytes, there(at), into, order);
        return;
    }
    const wide value = loaded(at, HERE);
    memcpy(into, &value, BYTES);
}
void sized_store(size_t nbytes, volatile void *at, void *from, int order) {
    sized_store_function *other = OTHER(store, nbytes, at);
    if (!other) {
        stored(at, value_at(from), order, HERE);
        return;
    }
    prog_store(plain(at), nbytes, HERE);
    other(nbytes, there(at), from, order);
}
void sized_exchange(size_t nbytes, volatile void *at, void *from, void *into, int order) {
    sized_exchange_function *other = OTHER(exchange, nbytes, at);
    if (!other) {
        const wide old = changed(at, EXCHANGE, value_at(from), HERE);
        memcpy(into, &old, BYTES);
        return;
    }
    prog_load(plain(at), nbytes, HERE), prog_store(plain(at), nbytes, HERE);
    other(nbytes, there(at), from, into, order);
}
bool sized_compare_exchange(size_t nbytes, volatile void *at, void *expected, void *from, int order, int failed) {
    sized_compare_exchange_function *other = OTHER(compare_exchange, nbytes, at);
    if (!other) {
        wide wanted = value_at(expected);
        const bool done = exchanged(at, &wanted, value_at(from), HERE);
        memcpy(expected, &wanted, BYTES);
        return done;
    }
    prog_load(plain(at), nbytes, HERE), prog_store(plain(at), nbytes, HERE);
    return other(nbytes, there(at), expected, from, order, failed);
}
