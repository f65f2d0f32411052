"""What goes into a checked product, and what must come out: NumPy's own product of whole matrices, without tiles.

Elements are whole numbers so small that every sum is exact in whatever order it is made, so that a result is right bit
by bit or wrong. Inputs differ by seed, rank, element and call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.fused.shapes import shapes
from cxlemu.errors import ArgumentError
from cxlemu.plan import DTYPES, Call

Matrix = NDArray[Any]

_EXACT_BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}  # whole numbers up to 2^bits are exact


def inputs(call: Call, rank: int, seed: int, serial: int) -> tuple[Matrix, Matrix]:
    """A and B of a rank. Raises ArgumentError where no sum of products is sure to be exact but of zeros."""
    top, its = _largest(call), shapes(call)
    random = np.random.default_rng((seed, rank))

    def matrix(shape: tuple[int, int]) -> Matrix:
        raw = random.integers(0, 2**32, shape) + serial
        return np.asarray((raw % (2 * top + 1) - top).astype(DTYPES[call.dtype]))

    return matrix(its.a), matrix(its.b)


def _largest(call: Call) -> int:
    assert call.gemm is not None
    most = (1 << _EXACT_BITS[call.dtype]) // call.gemm.k
    if most < 1:
        raise ArgumentError(f"{call.dtype} holds no exact sum of k = {call.gemm.k} products: take a wider dtype")
    return min(int(most**0.5), 8)


def expected(call: Call, rank: int, seed: int, serial: int) -> Matrix:
    """The rank's part of the whole product."""
    everyone = [inputs(call, peer, seed, serial) for peer in range(call.ranks)]
    wide = [(a.astype(np.float64), b.astype(np.float64)) for a, b in everyone]
    if call.collective == "all_gather_gemm":
        product = np.concatenate([a for a, _ in wide]) @ wide[rank][1]
    else:
        product = sum((a @ b for a, b in wide), np.zeros(1))
        if call.collective == "gemm_reduce_scatter":
            rows = shapes(call).c[0]
            product = product[rank * rows : (rank + 1) * rows]
    return np.asarray(product.astype(DTYPES[call.dtype]))


def as_bytes(call: Call, rank: int, seed: int, serial: int) -> NDArray[np.uint8]:
    """A and then B of a rank, in a row."""
    return np.concatenate([x.reshape(-1).view(np.uint8) for x in inputs(call, rank, seed, serial)])
