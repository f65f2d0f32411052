/* Every kind of access that a compiler makes: one host stores by each, another one loads by each what is expected. An access
 * that nobody announced shows: a store by the canary, a load by the bytes of a line that was never fetched. */
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <cxl.h>
#include <fcntl.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

struct shape {
    virtual ~shape() = default;
    virtual int corners() const = 0;
};
struct triangle : shape {
    int corners() const override { return 3; }
};
struct square : shape {
    int corners() const override { return 4; }
};

template <int bytes> struct block {
    unsigned char at[bytes];
};
struct bits {
    unsigned a : 3, b : 7, c : 22;
    bool d;
    double e;
#if defined(__clang__) && !defined(UNANNOUNCED) /* which announces no access of 80 bits */
    double f;
#else
    long double f;
#endif
};

static constexpr size_t POOL = 1 << 20;
static unsigned char *base, *at;
static bool storing;
static int wrong;

/* Room for the next kind of access, on lines of its own. */
static void *room(size_t nbytes) {
    at += (64 - (uintptr_t)at % 64) % 64;
    void *here = at;
    at += nbytes;
    return here;
}

static void expect(bool right, const char *what, size_t nbytes) {
    if (right || storing) return;
    std::fprintf(stderr, "%s of %zu bytes\n", what, nbytes);
    wrong++;
}

template <class T> static void scalar(T value, const char *what) {
    T *p = static_cast<T *>(room(sizeof(T)));
    if (storing) *p = value;
    else expect(*p == value, what, sizeof(T));
    unsigned char *odd = static_cast<unsigned char *>(room(64)) + 61; /* it crosses lines */
    at += 64;
    struct __attribute__((packed)) packed {
        T value;
    } *q = reinterpret_cast<packed *>(odd);
    if (storing) q->value = value;
    else expect(q->value == value, "unaligned", sizeof(T));
}

template <class T> static void atomically() {
    auto *p = new (room(sizeof(std::atomic<T>) * 4)) std::atomic<T>[0];
    p = reinterpret_cast<std::atomic<T> *>(at - sizeof(std::atomic<T>) * 4);
    if (storing) {
        p[0].store(5, std::memory_order_release);
        p[1].store(7);
        p[2].fetch_add(3), p[2].fetch_or(8), p[2].exchange(p[2].load() + 1);
        T expected = 0;
        p[3].compare_exchange_strong(expected, 9);
        p[3].compare_exchange_weak(expected, 10);
    } else {
        expect(p[0].load(std::memory_order_acquire) == 5 && p[1] == 7 && p[2] == 12 && p[3] == 9, "atomics", sizeof(T));
    }
}

template <int bytes> static void copied() {
    using part = block<bytes>;
    part *p = static_cast<part *>(room(bytes)), made;
    for (int k = 0; k < bytes; k++) made.at[k] = static_cast<unsigned char>(k * 7 + bytes);
    if (storing) *p = made;
    else {
        part got = *p;
        expect(std::memcmp(&got, &made, bytes) == 0, "struct copy", bytes);
    }
    void *to = room(bytes);
    if (storing) std::memcpy(to, &made, bytes);
    else expect(std::memcmp(to, &made, bytes) == 0, "memcpy", bytes);
    to = room(bytes);
    if (storing) std::memset(to, 0xA5, bytes);
    else {
        unsigned char got[bytes];
        std::memcpy(got, to, bytes);
        bool right = true;
        for (unsigned char byte : got) right = right && byte == 0xA5;
        expect(right, "memset", bytes);
    }
    to = room(bytes);
    if (storing) __builtin_memcpy(to, &made, bytes);
    else {
        unsigned char got[bytes];
        __builtin_memcpy(got, to, bytes);
        expect(std::memcmp(got, &made, bytes) == 0, "builtin memcpy", bytes);
    }
}

static void loops() {
    enum { COUNT = 1000 };
    auto *a = static_cast<uint32_t *>(room(COUNT * 4)), *b = static_cast<uint32_t *>(room(COUNT * 4));
    if (storing) {
        for (uint32_t k = 0; k < COUNT; k++) a[k] = k * k;
        for (uint32_t k = 0; k < COUNT; k++) b[k] = a[k] + 3;
        for (uint32_t k = 0; k < COUNT; k++) a[k] = 0;
        return;
    }
    uint32_t sum = 0;
    for (uint32_t k = 0; k < COUNT; k++) sum += b[k] ^ a[k];
    uint32_t right = 0;
    for (uint32_t k = 0; k < COUNT; k++) right += k * k + 3;
    expect(sum == right, "loop", COUNT * 4);
}

static void objects() {
    void *first = room(sizeof(triangle)), *second = room(sizeof(square)), *third = room(sizeof(bits));
    if (storing) {
        new (first) triangle, new (second) square;
        new (third) bits{5, 100, 4000000, true, 1.5, 2.5};
        return;
    }
    /* The tables lie at other addresses than the writer's, were they not loaded without random addresses. */
    expect(static_cast<shape *>(first)->corners() == 3 && static_cast<shape *>(second)->corners() == 4, "virtual", 8);
    auto *b = static_cast<bits *>(third);
    expect(b->a == 5 && b->b == 100 && b->c == 4000000 && b->d && b->e == 1.5 && b->f == 2.5, "bits", sizeof *b);
}

static void strings() {
    char *a = static_cast<char *>(room(200)), *b = static_cast<char *>(room(200)), *c = static_cast<char *>(room(200));
    if (storing) {
        std::strcpy(a, "a string that is longer than one line of the cache, so that it crosses into the next one");
        std::snprintf(b, 200, "%d and %s", 42, "more");
        std::strncpy(c, "short", 100);
        return;
    }
    expect(std::strlen(a) == 88 && std::strcmp(b, "42 and more") == 0 && std::strncmp(c, "short", 6) == 0, "strings", 88);
}

#if defined(__x86_64__)
static void non_temporal() {
    auto *a = static_cast<long long *>(room(64));
    auto *b = static_cast<__m128i *>(room(64));
    if (storing) {
        for (int k = 0; k < 8; k++) _mm_stream_si64(a + k, k + 1);
        _mm_stream_si32(reinterpret_cast<int *>(a), 77);
        for (int k = 0; k < 4; k++) _mm_stream_si128(b + k, _mm_set1_epi32(k + 5));
        _mm_sfence();
        return;
    }
    expect(a[0] == 77 && a[7] == 8 && reinterpret_cast<int *>(b)[15] == 8, "non-temporal", 64);
}
#else
static void non_temporal() {}
#endif

int main(int count, char **words) {
    if (count != 3) return 2;
    const int file = open(words[1], O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, POOL) != 0) return 2;
    base = at = static_cast<unsigned char *>(mmap(nullptr, POOL, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    if (base == MAP_FAILED) return 2;
    storing = words[2][0] == 's';
    scalar<uint8_t>(200, "char"), scalar<uint16_t>(60000, "short"), scalar<uint32_t>(4000000000u, "int");
    scalar<uint64_t>(~0ull / 3, "long"), scalar<float>(1.25f, "float"), scalar<double>(-2.5, "double");
    atomically<uint8_t>(), atomically<uint16_t>(), atomically<uint32_t>(), atomically<uint64_t>();
    copied<1>(), copied<3>(), copied<8>(), copied<12>(), copied<16>(), copied<24>(), copied<32>(), copied<40>();
    copied<64>(), copied<65>(), copied<100>(), copied<128>(), copied<256>(), copied<1000>(), copied<4096>();
#if defined(UNANNOUNCED)
    void *unseen = room(8);
    if (storing) __asm__ volatile("movb $1, (%0)" : : "r"(unseen) : "memory");
#endif
    loops(), objects(), strings(), non_temporal();
    if (storing) cxl_flush(base, static_cast<size_t>(at - base)), cxl_fence();
    return wrong != 0;
}
