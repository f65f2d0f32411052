/* Reductions, as cxlemu/plan/reduction.py defines them. f16 and bf16 are combined in f32 and rounded after every step.
 * Complex numbers are added and divided part by part. */
#include "core.h"

#include <string.h>

/* Compile each loop for several vector widths; the loader chooses the one for its machine. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(CXLEMU_PLAIN)
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif

/* Elements in buffers, which have any alignment and may alias anything. */
#define ELEMENT(name, type) typedef type name __attribute__((aligned(1), may_alias))
ELEMENT(u8, uint8_t);
ELEMENT(i8, int8_t);
ELEMENT(i16, int16_t);
ELEMENT(u16, uint16_t);
ELEMENT(i32, int32_t);
ELEMENT(u32, uint32_t);
ELEMENT(i64, int64_t);
ELEMENT(u64, uint64_t);
ELEMENT(f16, uint16_t);
ELEMENT(bf16, uint16_t);
ELEMENT(f32, float);
ELEMENT(f64, double);
ELEMENT(truth, uint8_t); /* a bool: any byte but 0 is true */

static inline float bits_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline uint32_t float_bits(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static inline float from_bf16(uint16_t h) { return bits_float((uint32_t)h << 16); }

static inline uint16_t to_bf16(float f) {
    uint32_t bits = float_bits(f);
    if (f != f) return (uint16_t)((bits >> 16 & 0x8000u) | 0x7fc0u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float from_f16(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return bits_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400u) return bits_float(sign | ((rest << 13) + 0x38000000u));
    return bits_float(sign | float_bits((float)rest * 0x1p-24f)); /* subnormal: exact */
}

static inline uint16_t to_f16(float f) {
    uint32_t bits = float_bits(f), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to infinity */
    if (rest < 0x38800000u) /* subnormal: let the adder round to a multiple of 2^-24 */
        return (uint16_t)(sign | (float_bits(bits_float(rest) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
}

#define PLAIN(x) (x)
/* Integers wrap: they are combined as unsigned ones, for which C defines that. */
#define ADD_INT(type, wide, a, b) ((type)((wide)(a) + (wide)(b)))
#define MUL_INT(type, wide, a, b) ((type)((wide)(a) * (wide)(b)))
#define MIN_INT(type, wide, a, b) ((a) < (b) ? (a) : (b))
#define MAX_INT(type, wide, a, b) ((a) > (b) ? (a) : (b))
#define AND_INT(type, wide, a, b) ((type)((a) & (b)))
#define OR_INT(type, wide, a, b) ((type)((a) | (b)))
#define XOR_INT(type, wide, a, b) ((type)((a) ^ (b)))
#define DIV_INT(type, wide, a, n) ((type)((a) / _Generic((a), uint64_t: (uint64_t)(n), default: (n))))
#define ADD_FLOAT(type, wide, a, b) ((a) + (b))
#define MUL_FLOAT(type, wide, a, b) ((a) * (b))
/* The result is a NaN where an operand is one, and the left one of two. */
#define MIN_FLOAT(type, wide, a, b) ((a) < (b) || (a) != (a) ? (a) : (b))
#define MAX_FLOAT(type, wide, a, b) ((a) > (b) || (a) != (a) ? (a) : (b))
#define DIV_FLOAT(type, wide, a, n) ((a) / (wide)(n))

/* Define a pass over all elements. `calc` is the type of intermediate results, to and from which `load` and `store`
 * convert. */
#define PASS(name, type, calc, wide, load, store, OP)                                            \
    CLONES static void name(type *dst, const type *a, const type *b, const type *c, int64_t n) { \
        if (c) {                                                                                 \
            for (int64_t i = 0; i < n; i++) {                                                    \
                calc x = load(a[i]), y = load(b[i]), z = load(c[i]);                             \
                type half = (type)store(OP(calc, wide, x, y));                                   \
                calc first = load(half);                                                         \
                dst[i] = (type)store(OP(calc, wide, first, z));                                  \
            }                                                                                    \
        } else {                                                                                 \
            for (int64_t i = 0; i < n; i++) {                                                    \
                calc x = load(a[i]), y = load(b[i]);                                             \
                dst[i] = (type)store(OP(calc, wide, x, y));                                      \
            }                                                                                    \
        }                                                                                        \
    }

#define DIVIDE(name, type, calc, wide, load, store, DIV)             \
    CLONES static void name(type *dst, int64_t n, int64_t divisor) { \
        for (int64_t i = 0; i < n; i++) {                            \
            calc x = load(dst[i]);                                   \
            dst[i] = (type)store(DIV(calc, wide, x, divisor));       \
        }                                                            \
    }

#define KERNELS(t, type, calc, wide, load, store, KIND)       \
    PASS(sum_##t, type, calc, wide, load, store, ADD_##KIND)  \
    PASS(prod_##t, type, calc, wide, load, store, MUL_##KIND) \
    PASS(min_##t, type, calc, wide, load, store, MIN_##KIND)  \
    PASS(max_##t, type, calc, wide, load, store, MAX_##KIND)  \
    DIVIDE(divide_##t, type, calc, wide, load, store, DIV_##KIND)

#define BITS(t, type, calc, load)                          \
    PASS(band_##t, type, calc, calc, load, PLAIN, AND_INT) \
    PASS(bor_##t, type, calc, calc, load, PLAIN, OR_INT)   \
    PASS(bxor_##t, type, calc, calc, load, PLAIN, XOR_INT)

#define INTEGERS(t, calc, wide)                  \
    KERNELS(t, t, calc, wide, PLAIN, PLAIN, INT) \
    BITS(t, t, calc, PLAIN)

INTEGERS(u8, uint8_t, uint32_t)
INTEGERS(i8, int8_t, uint32_t)
INTEGERS(u16, uint16_t, uint32_t)
INTEGERS(i16, int16_t, uint32_t)
INTEGERS(u32, uint32_t, uint32_t)
INTEGERS(i32, int32_t, uint32_t)
INTEGERS(u64, uint64_t, uint64_t)
INTEGERS(i64, int64_t, uint64_t)
#define IS_TRUE(x) ((uint8_t)((x) != 0))
BITS(truth, truth, uint8_t, IS_TRUE)
KERNELS(f16, f16, float, float, from_f16, to_f16, FLOAT)
KERNELS(bf16, bf16, float, float, from_bf16, to_bf16, FLOAT)
KERNELS(f32, f32, float, float, PLAIN, PLAIN, FLOAT)
KERNELS(f64, f64, double, double, PLAIN, PLAIN, FLOAT)

/* Define (ac - bd) + (ad + bc)i with every step rounded. Without CLONES: for machines with fused operations GCC 12
 * compiles vfmaddsub, even with -ffp-contract=off. */
#define COMPLEX_PRODUCT(name, type, part)                                                        \
    static void name(type *dst, const type *a, const type *b, const type *c, int64_t n) {        \
        for (int64_t i = 0; i < 2 * n; i += 2) {                                                 \
            part re = a[i] * b[i] - a[i + 1] * b[i + 1], im = a[i] * b[i + 1] + a[i + 1] * b[i]; \
            if (c) {                                                                             \
                const part left = re;                                                            \
                re = left * c[i] - im * c[i + 1], im = left * c[i + 1] + im * c[i];              \
            }                                                                                    \
            dst[i] = re, dst[i + 1] = im;                                                        \
        }                                                                                        \
    }

COMPLEX_PRODUCT(prod_c64, f32, float)
COMPLEX_PRODUCT(prod_c128, f64, double)

#define COUNT(t) (nbytes / (int64_t)sizeof(t))
#define FOLD(t, MORE)                                         \
    do {                                                      \
        switch (redop) {                                      \
            MORE(t)                                           \
        case PROD: prod_##t(dst, a, b, c, COUNT(t)); break;   \
        case MIN: min_##t(dst, a, b, c, COUNT(t)); break;     \
        case MAX: max_##t(dst, a, b, c, COUNT(t)); break;     \
        default: sum_##t(dst, a, b, c, COUNT(t)); break;      \
        }                                                     \
        if (divisor != 1) divide_##t(dst, COUNT(t), divisor); \
    } while (0)

#define NO_BITS(t)
#define ALL_BITS(t)                                     \
    case BAND: band_##t(dst, a, b, c, COUNT(t)); break; \
    case BOR: bor_##t(dst, a, b, c, COUNT(t)); break;   \
    case BXOR: bxor_##t(dst, a, b, c, COUNT(t)); break;

#define COMBINE(t) FOLD(t, NO_BITS)
#define COMBINE_INTEGERS(t) FOLD(t, ALL_BITS)

#define COMBINE_COMPLEX(t, part)                                    \
    do {                                                            \
        if (redop == PROD) prod_##t(dst, a, b, c, COUNT(part) / 2); \
        else sum_##part(dst, a, b, c, COUNT(part));                 \
        if (divisor != 1) divide_##part(dst, COUNT(part), divisor); \
    } while (0)

static void combine_truths(int redop, truth *dst, const truth *a, const truth *b, const truth *c, int64_t n) {
    switch (redop) {
    case PROD:
    case MIN:
    case BAND: band_truth(dst, a, b, c, n); break;
    case BXOR: bxor_truth(dst, a, b, c, n); break;
    default: bor_truth(dst, a, b, c, n); break;
    }
}

void fold_arrays(int dtype, int redop, void *dst, const void *a, const void *b, const void *c, int64_t nbytes,
                 int64_t divisor) {
    switch (dtype) {
    case 0: COMBINE_INTEGERS(u8); break;
    case 1: COMBINE_INTEGERS(i8); break;
    case 2: COMBINE_INTEGERS(i32); break;
    case 3: COMBINE_INTEGERS(i64); break;
    case 4: COMBINE(f16); break;
    case 5: COMBINE(bf16); break;
    case 6: COMBINE(f32); break;
    case 7: COMBINE(f64); break;
    case 8: COMBINE_INTEGERS(i16); break;
    case 9: COMBINE_INTEGERS(u16); break;
    case 10: COMBINE_INTEGERS(u32); break;
    case 11: COMBINE_INTEGERS(u64); break;
    case 12: combine_truths(redop, dst, a, b, c, nbytes); break;
    case 13: COMBINE_COMPLEX(c64, f32); break;
    default: COMBINE_COMPLEX(c128, f64); break;
    }
}
