"""The kernel that folds on a GPU, one source for every dtype and operation, compiled there by NVRTC.

Tests compile it for the CPU as well, where it has the bits of the reference. Products of floats must not be fused with
sums (``--fmad=false``), and subnormal numbers stay.
"""

from cxlemu.plan import RedOp

# -D chooses the element, its wide type, CXL_KIND (0 integer, 1 float, 2 truth, 3 complex product), CXL_FORMAT (16: f16,
# 17: bf16) and CXL_OP. Shorter names are those of parameters in headers of NVRTC's own, which it reads before this.
ELEMENTS = r"""
typedef CXL_ELEMENT T;
typedef CXL_WIDE W;
union word { float f; unsigned int u; };
__device__ static float as_float(unsigned int u) { union word w; w.u = u; return w.f; }
__device__ static unsigned int as_bits(float f) { union word w; w.f = f; return w.u; }
#if CXL_FORMAT == 17
__device__ static float load(T h) { return as_float((unsigned int)h << 16); }
__device__ static T store(float f) {
    unsigned int bits = as_bits(f);
    if (f != f) return (T)((bits >> 16 & 0x8000u) | 0x7fc0u);
    return (T)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}
#elif CXL_FORMAT == 16
__device__ static float load(T h) {
    unsigned int sign = (unsigned int)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest >= 0x7c00u) return as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest >= 0x0400u) return as_float(sign | ((rest << 13) + 0x38000000u));
    return as_float(sign | as_bits((float)rest * 5.9604644775390625e-8f));
}
__device__ static T store(float f) {
    unsigned int bits = as_bits(f), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u) return (T)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
    if (rest >= 0x477ff000u) return (T)(sign | 0x7c00u);
    if (rest < 0x38800000u) return (T)(sign | (as_bits(as_float(rest) + 0.5f) - 0x3f000000u));
    return (T)(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
}
#elif CXL_KIND == 2
__device__ static T load(T x) { return x != 0; }
__device__ static T store(T x) { return x; }
#else
__device__ static T load(T x) { return x; }
__device__ static T store(W x) { return (T)x; }
#endif
"""
# A fold of two or three operands, then a division: cxlemu/plan/reduction.py is the definition.
KERNEL = (
    ELEMENTS
    + r"""
#define NAN_OR(less, x, y) ((less) || (x) != (x) ? (x) : (y))
#if CXL_OP == 1
#define COMBINE(x, y) ((W)(x) + (W)(y))
#elif CXL_OP == 2
#define COMBINE(x, y) ((W)(x) * (W)(y))
#elif CXL_OP == 3
#define COMBINE(x, y) NAN_OR((x) < (y), x, y)
#elif CXL_OP == 4
#define COMBINE(x, y) NAN_OR((x) > (y), x, y)
#elif CXL_OP == 6
#define COMBINE(x, y) ((x) & (y))
#elif CXL_OP == 7
#define COMBINE(x, y) ((x) | (y))
#elif CXL_OP == 8
#define COMBINE(x, y) ((x) ^ (y))
#endif
extern "C" __global__ void fold(T *dst, const T *a, const T *b, const T *c, long long n, long long divisor) {
    const long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {
#if CXL_KIND == 3 /* n pairs; compiled without fused products */
        const T x = a[2 * i], y = a[2 * i + 1], u = b[2 * i], v = b[2 * i + 1];
        T re = x * u - y * v, im = x * v + y * u;
        if (c) {
            const T left = re;
            re = left * c[2 * i] - im * c[2 * i + 1], im = left * c[2 * i + 1] + im * c[2 * i];
        }
        dst[2 * i] = re, dst[2 * i + 1] = im;
#else
        T x = store(COMBINE(load(a[i]), load(b[i])));
        if (c) x = store(COMBINE(load(x), load(c[i])));
#if CXL_KIND == 0
        if (divisor != 1) x = (T)((T)-1 < 0 ? (T)((long long)x / divisor)
                                            : (T)((unsigned long long)x / (unsigned long long)divisor));
#elif CXL_KIND == 1
        if (divisor != 1) x = store(load(x) / (W)divisor);
#endif
        dst[i] = x;
#endif
    }
}
"""
)
_INTEGERS = {8: "char", 16: "short", 32: "int", 64: "long long"}
_TYPES = {  # element, wide type, kind, format
    **{
        f"{letter}{bits}": (f"{sign} {name}", f"unsigned {name if bits > 32 else 'int'}", 0, 0)
        for letter, sign in (("u", "unsigned"), ("i", "signed"))
        for bits, name in _INTEGERS.items()
    },
    "f16": ("unsigned short", "float", 1, 16), "bf16": ("unsigned short", "float", 1, 17),
    "f32": ("float", "float", 1, 0), "f64": ("double", "double", 1, 0),
    "bool": ("unsigned char", "unsigned char", 2, 0),
    "c64": ("float", "float", 1, 0), "c128": ("double", "double", 1, 0),
}  # fmt: skip
_OF_TRUTH = {RedOp.SUM: RedOp.BOR, RedOp.MAX: RedOp.BOR, RedOp.PROD: RedOp.BAND, RedOp.MIN: RedOp.BAND}


def kernel_options(dtype: str, redop: RedOp) -> list[str]:
    """Return the definitions with which the kernel folds one dtype by one operation."""
    element, wide, kind, of = _TYPES[dtype]
    if dtype in ("c64", "c128") and redop == RedOp.PROD:
        kind = 3
    op = RedOp.SUM if redop == RedOp.AVG else _OF_TRUTH.get(redop, redop) if kind == 2 else redop
    chosen = {"ELEMENT": element, "WIDE": wide, "KIND": kind, "FORMAT": of, "OP": int(op)}
    return [f"-DCXL_{name}={value}" for name, value in chosen.items()]
