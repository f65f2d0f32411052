"""What combining two arrays means: the definition that every faster kernel is held to.

Integers wrap modulo 2^bits. f16 and bf16 are combined in f32 and rounded after every step. min and max return NaN
where an operand is NaN, and the later one of two zeros. avg is a sum whose last step divides: integers truncate
toward zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cxlemu.choices import DTYPE_NAMES
from cxlemu.memory.protocol import Bytes
from cxlemu.plan.instructions import DTYPES, RedOp


def _least(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """NumPy's own min and max choose the later of two zeros on x86, and on arm64 the negative and the positive one."""
    return np.where((a < b) | (a != a), a, b)


def _greatest(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    return np.where((a > b) | (a != a), a, b)


_COMBINE: dict[RedOp, Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]] = {
    RedOp.SUM: np.add,
    RedOp.AVG: np.add,
    RedOp.PROD: np.multiply,
    RedOp.MIN: _least,
    RedOp.MAX: _greatest,
}
_WIDE = {"f16": np.dtype(np.float32), "bf16": np.dtype(np.float32)}


def commutes(dtype: str, redop: str) -> bool:
    """Return whether a op b has the bits of b op a, but for the payloads of NaNs.

    Only min and max of floats do not: they return the later one of two zeros.

    Args:
        dtype: One of ``DTYPE_NAMES``.
        redop: "sum", "prod", "min", "max" or "avg".
    """
    return redop not in ("min", "max") or dtype[0] not in "fb"


def fold(dtype: int, redop: RedOp, operands: list[Bytes], divisor: int = 1) -> Bytes:
    """Combine operands from the left, element by element, then divide.

    Args:
        dtype: Index into ``DTYPE_NAMES``.
        redop: The operation; AVG adds, and divides only by ``divisor``.
        operands: One or more arrays of equally many bytes, uint8.
        divisor: What the result is divided by, as `divide` does; 1 divides nothing.

    Returns:
        The result's bytes, uint8.
    """
    name = DTYPE_NAMES[dtype]
    wide = _WIDE.get(name, DTYPES[name])
    arrays = [np.ascontiguousarray(o).view(DTYPES[name]) for o in operands]
    result = arrays[0]
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            combined = _COMBINE[redop](result.astype(wide, copy=False), array.astype(wide, copy=False))
            result = combined.astype(DTYPES[name], copy=False)
        if divisor != 1:
            result = divide(result.astype(wide, copy=False), divisor).astype(DTYPES[name], copy=False)
    return result.view(np.uint8)


def divide(array: NDArray[Any], divisor: int) -> NDArray[Any]:
    """Divide an array: floats divide; integers truncate toward zero, as C does.

    Args:
        array: Elements of any dtype of plans.
        divisor: A positive number, which may be more than the dtype holds.

    Returns:
        A new array of the dtype of ``array``.
    """
    if array.dtype.kind == "f":
        return np.asarray(array / array.dtype.type(divisor))
    wide = array.astype(np.int64)  # the divisor, a number of ranks, may be more than the dtype holds
    quotient = wide // divisor
    inexact_and_negative = (wide < 0) & (quotient * divisor != wide)
    return np.asarray(quotient + inexact_and_negative).astype(array.dtype)
