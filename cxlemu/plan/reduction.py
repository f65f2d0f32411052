"""What combining two arrays means: the definition that every faster kernel is held to.

Integers wrap modulo 2^bits. f16 and bf16 are combined in f32 and rounded after every step. min and max return NaN
where an operand is NaN, and the later one of two zeros. avg is a sum whose last step divides: integers truncate
toward zero. A bool is true where its byte is not 0, and a result's byte is 0 or 1: sum, max and bor say whether any is
true, prod, min and band whether all are. Complex numbers are added part by part, and multiplied as (ac - bd) +
(ad + bc)i with every step rounded; they have no order, and so no min and max.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cxlemu.choices import DTYPE_KINDS, DTYPE_NAMES, OPS_OF_KIND, REDOPS
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes
from cxlemu.plan.instructions import DTYPES, RedOp
from cxlemu.suggest import unknown

Array = NDArray[Any]


def _least(a: Array, b: Array) -> Array:
    """NumPy's own min and max choose the later of two zeros on x86, and on arm64 the negative and the positive one."""
    return np.where((a < b) | (a != a), a, b)


def _greatest(a: Array, b: Array) -> Array:
    return np.where((a > b) | (a != a), a, b)


def _complex_product(a: Array, b: Array) -> Array:
    """NumPy's own product fuses steps where the machine can, and so has other bits on another machine."""
    product = np.empty_like(a)
    product.real = a.real * b.real - a.imag * b.imag
    product.imag = a.real * b.imag + a.imag * b.real
    return product


_COMBINE: dict[RedOp, Callable[[Array, Array], Array]] = {
    RedOp.SUM: np.add,
    RedOp.AVG: np.add,
    RedOp.PROD: np.multiply,
    RedOp.MIN: _least,
    RedOp.MAX: _greatest,
    RedOp.BAND: np.bitwise_and,
    RedOp.BOR: np.bitwise_or,
    RedOp.BXOR: np.bitwise_xor,
}
_TRUTH: dict[RedOp, Callable[[Array, Array], Array]] = {
    **dict.fromkeys((RedOp.SUM, RedOp.MAX, RedOp.BOR), np.bitwise_or),
    **dict.fromkeys((RedOp.PROD, RedOp.MIN, RedOp.BAND), np.bitwise_and),
    RedOp.BXOR: np.bitwise_xor,
}
_WIDE = {"f16": np.dtype(np.float32), "bf16": np.dtype(np.float32)}


def commutes(dtype: str, redop: str) -> bool:
    """Return whether a op b has the bits of b op a, but for the payloads of NaNs.

    Only min and max of floats do not: they return the later one of two zeros.
    """
    return redop not in ("min", "max") or DTYPE_KINDS[dtype] != "float"


def folds(dtype: str, redop: str) -> bool:
    """Whether there is such a reduction: all of integers, fewer of others. Both are names that exist."""
    return redop in OPS_OF_KIND[DTYPE_KINDS[dtype]]


def why_not(dtype: str, redop: str) -> str:
    """Say why there is no such reduction, and what there is instead."""
    kind = DTYPE_KINDS[dtype]
    there = f"use {', '.join(OPS_OF_KIND[kind])}"
    if redop == "avg":
        return f"there is no avg of bool, whose sum says whether any is true: {there}, or convert to numbers"
    if redop in ("min", "max"):
        return f"there is no {redop} of {dtype}: complex numbers have no order: {there}, or reduce their parts"
    return f"there is no {redop} of {dtype}: bitwise operations take integers and bools: {there}, or view as integers"


def reductions(dtypes: Iterable[str], redops: Sequence[str]) -> list[tuple[str, str]]:
    """List the reductions that there are among these dtypes and operations."""
    dtypes = list(dtypes)
    for dtype in dtypes:
        if dtype not in DTYPE_KINDS:
            raise ArgumentError(unknown("dtype", dtype, DTYPE_NAMES))
    pairs = [(dtype, redop) for dtype, redop in product(dtypes, redops) if redop not in REDOPS or folds(dtype, redop)]
    for dtype, redop in product(dtypes, redops):
        no_op = len(dtypes) < len(DTYPE_NAMES) and all(dtype != its for its, _ in pairs)
        if no_op or (len(redops) < len(REDOPS) and all(redop != its for _, its in pairs)):
            raise ArgumentError(why_not(dtype, redop))
    return pairs


def not_folded(dtypes: Sequence[str] | None, redops: Sequence[str] | None) -> list[str]:
    """Say of each pair that is named and no reduction why; of all dtypes, or all operations, none is named."""
    if len(dtypes or DTYPE_NAMES) == len(DTYPE_NAMES) or len(redops or REDOPS) == len(REDOPS):
        return []
    pairs = product(dtypes or (), redops or ())
    return [f"left out: {why_not(dtype, redop)}" for dtype, redop in pairs if not folds(dtype, redop)]


def fold(dtype: int, redop: RedOp, operands: list[Bytes], divisor: int = 1) -> Bytes:
    """Combine operands from the left, element by element, then divide by ``divisor`` (1: not at all); AVG adds."""
    name = DTYPE_NAMES[dtype]
    if DTYPE_KINDS[name] == "bool":
        return _fold_truth(redop, operands)
    wide = _WIDE.get(name, DTYPES[name])
    arrays = [np.ascontiguousarray(o).view(DTYPES[name]) for o in operands]
    result = arrays[0]
    with np.errstate(all="ignore"):
        for array in arrays[1:]:
            combine = _complex_product if wide.kind == "c" and redop == RedOp.PROD else _COMBINE[redop]
            combined = combine(result.astype(wide, copy=False), array.astype(wide, copy=False))
            result = combined.astype(DTYPES[name], copy=False)
        if divisor != 1:
            result = divide(result.astype(wide, copy=False), divisor).astype(DTYPES[name], copy=False)
    return result.view(np.uint8)


def _fold_truth(redop: RedOp, operands: list[Bytes]) -> Bytes:
    result = operands[0]
    for operand in operands[1:]:
        result = _TRUTH[redop](result != 0, operand != 0).view(np.uint8)
    return np.ascontiguousarray(result)


def divide(array: Array, divisor: int) -> Array:
    """Divide an array: floats and parts of complex numbers divide; integers truncate toward zero, as C does."""
    if array.dtype.kind == "c":
        parts = array.view(array.real.dtype)
        return divide(parts, divisor).view(array.dtype)
    if array.dtype.kind == "f":
        return np.asarray(array / array.dtype.type(divisor))
    if array.dtype.kind == "u":
        return np.asarray(array.astype(np.uint64) // np.uint64(divisor)).astype(array.dtype)
    wide = array.astype(np.int64)  # the divisor, a number of ranks, may be more than the dtype holds
    quotient = wide // divisor
    inexact_and_negative = (wide < 0) & (quotient * divisor != wide)
    return np.asarray(quotient + inexact_and_negative).astype(array.dtype)
