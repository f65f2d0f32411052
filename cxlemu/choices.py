"""The names that flags offer, and their defaults; other modules define what the names mean.

Imports nothing, so that ``--help`` is there at once.
"""

DTYPE_NAMES = ("u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64")  # a record's dtype field is an index into this
GEMM_DTYPES = ("f16", "bf16", "f32", "f64")
REDOPS = ("sum", "prod", "min", "max", "avg")
INTEGRITIES = ("crc32c",)
ENGINES = ("reference", "native")
TIME_SCALE_MIN, TIME_SCALE_MAX = 1e-3, 1e6
DEFAULT_TOPOLOGY = "six-cards"
