"""A product of matrices as a call: what fits, and the shape of the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.communicator.arrays import as_bytes, dtype_name
from collectives.fused.plans import fused_call
from collectives.fused.shapes import shapes
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPES, Call

Matrix = NDArray[Any]


class BoundProduct(NamedTuple):
    """A call and the bytes of this rank's matrices, 1-D uint8: A, B and the result, which ``out`` is as a matrix."""

    call: Call
    a: Bytes
    b: Bytes
    c: Bytes
    out: Matrix


def bind(kind: str, ranks: int, a: Matrix, b: Matrix, out: Matrix | None, style: str, **cut: Any) -> BoundProduct:
    """Check this rank's matrices, and make one for the result where none is given."""
    call = _call(kind, ranks, [("a", a), ("b", b)] + ([] if out is None else [("out", out)]), style, **cut)
    shape = shapes(call).c
    if out is None:
        out = np.empty(shape, DTYPES[call.dtype])
    elif out.shape != shape:
        raise ArgumentError(f"{kind}: out must have shape {shape}, not {out.shape}")
    elif np.may_share_memory(out, a) or np.may_share_memory(out, b):
        raise ArgumentError(f"{kind}: out overlaps a or b, which are needed until the end")
    return BoundProduct(call, as_bytes(a, "a"), as_bytes(b, "b"), as_bytes(out, "out", writeable=True), out)


def result_shape(kind: str, ranks: int, a: Matrix, b: Matrix, style: str, **cut: Any) -> tuple[int, int]:
    """Return the shape of this rank's result; arguments and errors as of `bind`."""
    return shapes(_call(kind, ranks, [("a", a), ("b", b)], style, **cut)).c


def _call(kind: str, ranks: int, given: Sequence[tuple[str, Matrix]], style: str, **cut: Any) -> Call:
    (_, a), (_, b) = given[:2]
    for name, matrix in given:
        if not isinstance(matrix, np.ndarray) or matrix.ndim != 2:
            what = f"shape {matrix.shape}" if isinstance(matrix, np.ndarray) else f"a {type(matrix).__name__}"
            raise ArgumentError(f"{kind}: {name} must be a matrix, a NumPy array of two dimensions, not {what}")
        if matrix.dtype != a.dtype:
            raise ArgumentError(f"{kind}: {name} is {matrix.dtype}, but a is {a.dtype}")
    if a.shape[1] != b.shape[0]:
        raise ArgumentError(
            f"{kind}: the columns of a, of shape {a.shape}, do not match the rows of b, of shape {b.shape}"
        )
    gathers = kind == "all_gather_gemm"
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    whole = (m * ranks, n * ranks, k) if gathers else (m, n, k * ranks)
    return fused_call(kind, style, ranks, *whole, dtype_name(a, reduces=True), **cut)
