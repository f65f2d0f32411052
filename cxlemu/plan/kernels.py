"""Named local kernels of COMPUTE: what each one computes, and which bytes it touches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.choices import GEMM_DTYPES
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes
from cxlemu.plan.checksums import CHECKSUM_BYTES, checksum
from cxlemu.plan.instructions import DTYPES

DIMENSION_MAX = 1 << 24
CHECKED_BYTES_MAX = 1 << 40


class ChecksumError(Exception):
    """Bytes are not those whose checksum came with them. Engines know which rank published them: `Running.damaged`."""


class Touched(NamedTuple):
    """The bytes of one operand that a kernel touches: rows, each ``stride_bytes`` after the one before."""

    rows: int
    row_bytes: int
    stride_bytes: int

    @property
    def nbytes(self) -> int:
        """The bytes from the first that is touched to the last."""
        return (self.rows - 1) * self.stride_bytes + self.row_bytes


def _row(nbytes: int) -> Touched:
    return Touched(1, nbytes, nbytes)


@dataclass(frozen=True, slots=True)
class KernelKind:
    """What a kernel of one name computes, and which bytes it touches."""

    # called with (parameters, output, inputs); writes the output in place
    run: Callable[[tuple[int, ...], Bytes, Sequence[Bytes]], None]
    # for the parameters, the bytes of each operand, output first. Raises ArgumentError for parameters that make no
    # sense
    touches: Callable[[tuple[int, ...]], tuple[Touched, ...]]
    checks: bool = False  # the kernel only checks: its output is no part of any result
    product: str = ""  # the dtype of the matrices that it multiplies; "" for another kernel

    def sizes(self, parameters: tuple[int, ...]) -> tuple[int, ...]:
        """Return the bytes of each operand from the first to the last that is touched. Raises as ``touches`` does."""
        return tuple(touched.nbytes for touched in self.touches(parameters))


def _gemm_touches(dtype: str, parameters: tuple[int, ...]) -> tuple[Touched, ...]:
    sound = len(parameters) in (3, 6) and all(0 < p <= DIMENSION_MAX for p in parameters)
    if not sound:
        raise ArgumentError(
            f"gemm_{dtype} takes m, n and k from 1 to {DIMENSION_MAX}, and optionally three leading dimensions, "
            f"not {parameters}"
        )
    m, n, k = parameters[:3]
    size, (lda, ldb, ldc) = DTYPES[dtype].itemsize, parameters[3:] or (k, n, n)
    if lda < k or ldb < n or ldc < n:
        raise ArgumentError(f"gemm_{dtype} of {m} x {n} x {k} has rows longer than {lda}, {ldb} and {ldc}")
    return tuple(
        Touched(rows, columns * size, leading * size)
        for rows, columns, leading in ((m, n, ldc), (m, k, lda), (k, n, ldb))
    )


def _gemm(dtype: str, parameters: tuple[int, ...], out: Bytes, inputs: Sequence[Bytes]) -> None:
    """One tile C = A @ B, row-major: A is m x k, B is k x n; lda, ldb and ldc are how many elements rows are apart.

    The BLAS that NumPy comes with computes it. f16 and bf16 are multiplied and summed in f32, as accelerators do, then
    rounded.
    """
    c, a, b = (
        _matrix(dtype, touched, operand)
        for touched, operand in zip(_gemm_touches(dtype, parameters), (out, *inputs), strict=True)
    )
    with np.errstate(all="ignore"):  # inf and nan are results, as in reductions
        if dtype in ("f16", "bf16"):
            c[:] = np.matmul(a.astype(np.float32), b.astype(np.float32)).astype(c.dtype)
        else:
            np.matmul(a, b, out=c)


def _matrix(dtype: str, touched: Touched, operand: Bytes) -> NDArray[Any]:
    size = DTYPES[dtype].itemsize
    shape, strides = (touched.rows, touched.row_bytes // size), (touched.stride_bytes, size)
    return np.ndarray(shape, DTYPES[dtype], operand[: touched.nbytes], strides=strides)


def _checked_bytes(name: str, parameters: tuple[int, ...]) -> int:
    if len(parameters) != 1 or not 0 < parameters[0] <= CHECKED_BYTES_MAX:
        raise ArgumentError(f"{name} takes a number of bytes from 1 to {CHECKED_BYTES_MAX}, not {parameters}")
    return parameters[0]


def _crc32c(parameters: tuple[int, ...], out: Bytes, inputs: Sequence[Bytes]) -> None:
    """Write the checksum of the input."""
    out[:] = checksum(inputs[0])


def _crc32c_check(parameters: tuple[int, ...], out: Bytes, inputs: Sequence[Bytes]) -> None:
    """Write the same and compare it with the one that came with the bytes. Raises ChecksumError where they differ."""
    data, came = inputs
    out[:] = checksum(data)
    if not np.array_equal(out, came):
        raise ChecksumError


KERNELS = {
    **{
        f"gemm_{dtype}": KernelKind(partial(_gemm, dtype), partial(_gemm_touches, dtype), product=dtype)
        for dtype in GEMM_DTYPES
    },
    "crc32c": KernelKind(_crc32c, lambda p: (_row(CHECKSUM_BYTES), _row(_checked_bytes("crc32c", p))), checks=True),
    "crc32c_check": KernelKind(
        _crc32c_check,
        lambda p: (_row(CHECKSUM_BYTES), _row(_checked_bytes("crc32c_check", p)), _row(CHECKSUM_BYTES)),
        checks=True,
    ),
}
