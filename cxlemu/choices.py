"""The names that flags offer, and their defaults; other modules define what the names mean.

Imports nothing, so that ``--help`` is there at once.
"""

REDOPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")
# The elements that plans fold, and what kind of number each is. Whatever else an array holds moves as bytes.
DTYPE_KINDS = {
    **dict.fromkeys(("u8", "i8", "i32", "i64"), "integer"),
    **dict.fromkeys(("f16", "bf16", "f32", "f64"), "float"),
    **dict.fromkeys(("i16", "u16", "u32", "u64"), "integer"),
    "bool": "bool",
    **dict.fromkeys(("c64", "c128"), "complex"),
}
DTYPE_NAMES = tuple(DTYPE_KINDS)  # a record's dtype field is an index into this
OPS_OF_KIND = {
    "integer": REDOPS,
    "float": ("sum", "prod", "min", "max", "avg"),
    "bool": ("sum", "prod", "min", "max", "band", "bor", "bxor"),
    "complex": ("sum", "prod", "avg"),
}
GEMM_DTYPES = ("f16", "bf16", "f32", "f64")
INTEGRITIES = ("crc32c",)
TRANSPORTS = ("pool", "process")
ENGINES = ("reference", "native")
TIME_SCALE_MIN, TIME_SCALE_MAX = 1e-3, 1e6
DEFAULT_TOPOLOGY = "six-cards"
