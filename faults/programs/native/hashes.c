/* What C++'s hash tables ask of libstdc++.so, which no compiler has instrumented: the hash of bytes, and when to grow. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

#include "self.h"

#define HERE __builtin_return_address(0)

/* Find the library's function. Where a library that was loaded late brought its own C++, that one's scope has it. */
static void *found(const char *name, const void *pc) {
    Dl_info its;
    void *at = dlsym(RTLD_NEXT, name);
    if (at || !dladdr(pc, &its)) return at;
    return dlsym(dlopen(its.dli_fname, RTLD_LAZY | RTLD_NOLOAD), name);
}
#define REAL_OF(result, name, ...)                        \
    typedef result name##_function(__VA_ARGS__);          \
    static name##_function *real_##name(const void *pc) { \
        static void *_Atomic kept;                        \
        void *at = kept;                                  \
        name##_function *function;                        \
        if (!at) kept = at = found(#name, pc);            \
        memcpy(&function, &at, sizeof at);                \
        return function;                                  \
    }

#define HASH(name)                                                                \
    REAL_OF(size_t, name, const void *, size_t, size_t)                           \
    PROGRAM_EXPORT size_t name(const void *at, size_t nbytes, size_t seed);       \
    PROGRAM_EXPORT size_t name(const void *at, size_t nbytes, size_t seed) {      \
        if (__builtin_expect(!outside_pools(at), 0)) prog_load(at, nbytes, HERE); \
        return real_##name(HERE)(reachable(at), nbytes, seed);                    \
    }
HASH(_ZSt11_Hash_bytesPKvmm)
HASH(_ZSt15_Fnv_hash_bytesPKvmm)

/* It lies in the table. Both functions may change when the table grows next. */
typedef struct {
    float most_load;
    size_t grows_at;
} growth;
typedef struct {
    bool now;
    size_t buckets;
} answer;

static growth loaded(const growth *its, const void *pc) {
    if (__builtin_expect(!outside_pools(its), 0)) prog_load(its, sizeof *its, pc);
    return *(const growth *)reachable(its);
}

static void keep(growth *its, size_t before, size_t grows_at, const void *pc) {
    if (before == grows_at) return;
    if (__builtin_expect(!outside_pools(its), 0)) prog_store(&its->grows_at, sizeof grows_at, pc);
    ((growth *)reachable(its))->grows_at = grows_at;
}

REAL_OF(answer, _ZNKSt8__detail20_Prime_rehash_policy14_M_need_rehashEmmm, growth *, size_t, size_t, size_t)
PROGRAM_EXPORT answer _ZNKSt8__detail20_Prime_rehash_policy14_M_need_rehashEmmm(growth *its, size_t buckets,
                                                                                size_t elements, size_t more) {
    growth copy = loaded(its, HERE);
    const size_t before = copy.grows_at;
    const answer said = real__ZNKSt8__detail20_Prime_rehash_policy14_M_need_rehashEmmm(HERE)(&copy, buckets, elements,
                                                                                             more);
    keep(its, before, copy.grows_at, HERE);
    return said;
}

REAL_OF(size_t, _ZNKSt8__detail20_Prime_rehash_policy11_M_next_bktEm, growth *, size_t)
PROGRAM_EXPORT size_t _ZNKSt8__detail20_Prime_rehash_policy11_M_next_bktEm(growth *its, size_t buckets) {
    growth copy = loaded(its, HERE);
    const size_t before = copy.grows_at;
    const size_t said = real__ZNKSt8__detail20_Prime_rehash_policy11_M_next_bktEm(HERE)(&copy, buckets);
    keep(its, before, copy.grows_at, HERE);
    return said;
}
