"""What goes into a checked product, and what must come out: NumPy's own product of whole matrices, without tiles.

Elements are whole numbers so small that every sum is exact in whatever order it is made, so that a result is right bit
by bit or wrong. Where products of three ranks or more are summed in f32 or f64, every other column shows whether that
was done in rank order: of two neighbours one has a large number and the other its negative, and what is added between
them loses its last bits. Each rank's own product is exact even so. Inputs differ by seed, rank, element and call.
"""

from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.fused.shapes import shapes
from cxlemu.errors import ArgumentError
from cxlemu.plan import DTYPES, Call

Matrix = NDArray[Any]

_EXACT_BITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}  # whole numbers up to 2^bits are exact


def inputs(call: Call, rank: int, seed: int, serial: int) -> tuple[Matrix, Matrix]:
    """Make A and B of a rank; ``serial``, the number of the call, changes every element."""
    top, measures = _largest(call), shapes(call)
    random = np.random.default_rng((seed, rank))

    def matrix(shape: tuple[int, int]) -> Matrix:
        raw = random.integers(0, 2**32, shape) + serial
        return np.asarray((raw % (2 * top + 1) - top).astype(DTYPES[call.dtype]))

    a, b = matrix(measures.a), matrix(measures.b)
    if _reveals_order(call):
        a[:, 0] = 1
        for column in range(_first_revealing(serial), measures.n, 2):
            owner = column // 2 % (call.ranks - 1)
            if rank in (owner, owner + 1):
                b[:, column] = 0
                b[0, column] = 2.0 ** (_EXACT_BITS[call.dtype] + 3) * (1 if rank == owner else -1)
    return a, b


def _reveals_order(call: Call) -> bool:
    sums = call.collective != "all_gather_gemm" and call.ranks > 2
    return sums and call.dtype in ("f32", "f64") and shapes(call).k > 1


def _first_revealing(serial: int) -> int:
    return 1 - serial % 2


def _largest(call: Call) -> int:
    assert call.gemm is not None
    most = (1 << _EXACT_BITS[call.dtype]) // call.gemm.k
    if most < 1:
        raise ArgumentError(f"{call.dtype} holds no exact sum of k = {call.gemm.k} products: take a wider dtype")
    return min(int(most**0.5), 8)


def expected(call: Call, rank: int, seed: int, serial: int) -> Matrix:
    """Compute the rank's part of the whole product, summed over ranks in rank order."""
    everyone = [inputs(call, peer, seed, serial) for peer in range(call.ranks)]
    wide = [(a.astype(np.float64), b.astype(np.float64)) for a, b in everyone]
    dtype = DTYPES[call.dtype]
    if call.collective == "all_gather_gemm":
        return np.asarray((np.concatenate([a for a, _ in wide]) @ wide[rank][1]).astype(dtype))
    total = reduce(np.add, ((a @ b).astype(dtype) for a, b in wide))
    rows = shapes(call).c[0]
    return np.asarray(total[rank * rows : (rank + 1) * rows] if call.collective == "gemm_reduce_scatter" else total)


def as_bytes(call: Call, rank: int, seed: int, serial: int) -> NDArray[np.uint8]:
    """A rank's A and then its B as one row of bytes. Arguments and errors are those of `inputs`."""
    return np.concatenate([x.reshape(-1).view(np.uint8) for x in inputs(call, rank, seed, serial)])
