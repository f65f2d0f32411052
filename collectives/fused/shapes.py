"""Which rank has which part of the matrices: tensor parallelism as Megatron-LM has it, in FLUX's operators.

                       A of a rank    B of a rank    result of a rank
  all_gather_gemm      m/N x k        k x n/N        m x n/N    of all ranks' rows of A
  gemm_reduce_scatter  m x k/N        k/N x n        m/N x n    summed over ranks
  gemm_all_reduce      m x k/N        k/N x n        m x n      summed over ranks

Matrices are row-major. A *shard* is m/N rows of whatever moves between ranks.
"""

from typing import NamedTuple

from collectives.choices import KINDS, ORDERS, STYLES
from cxlemu.choices import GEMM_DTYPES
from cxlemu.errors import ArgumentError
from cxlemu.plan import DTYPES, Buffer, Call
from cxlemu.plan.kernels import DIMENSION_MAX
from cxlemu.suggest import unknown

# push: a copy for every reader, in the reader's part of the ring; pull: one in the writer's. The first is the default.
TRANSPORTS = {
    "all_gather_gemm": ("pull", "push"),
    "gemm_reduce_scatter": ("push", "pull"),
    "gemm_all_reduce": ("push", "pull"),
}
TILES_MAX = 1 << 18

WEIGHTS = 3  # the buffer that B is in, after input (A), output and scratch memory


class Shapes(NamedTuple):
    """What each rank has, in elements: (rows, columns) of its A, B and result, and m, n, k of its own product."""

    a: tuple[int, int]
    b: tuple[int, int]
    c: tuple[int, int]
    m: int
    n: int
    k: int


def shapes(call: Call) -> Shapes:
    """The shapes of every rank's matrices in a call that `check` has accepted."""
    assert call.gemm is not None
    m, n, k, ranks = call.gemm.m, call.gemm.n, call.gemm.k, call.ranks
    if call.collective == "all_gather_gemm":
        return Shapes((m // ranks, k), (k, n // ranks), (m, n // ranks), m, n // ranks, k)
    rows = m // ranks if call.collective == "gemm_reduce_scatter" else m
    return Shapes((m, k // ranks), (k // ranks, n), (rows, n), m, n, k // ranks)


def moved_columns(kind: str, n: int, k: int) -> int:
    """The columns of the matrix that moves between ranks: those of A, or of the result."""
    return k if kind == "all_gather_gemm" else n


def buffers(call: Call) -> tuple[Buffer, Buffer, Buffer]:
    """The buffers (input, output, weights) in which every rank has its A, its result and its B."""
    size, measures = DTYPES[call.dtype].itemsize, shapes(call)
    return (
        Buffer("input", measures.a[0] * measures.a[1] * size),
        Buffer("output", measures.c[0] * measures.c[1] * size),
        Buffer("weights", measures.b[0] * measures.b[1] * size),
    )


def check(call: Call) -> None:
    gemm, ranks = call.gemm, call.ranks
    if call.collective not in KINDS:
        raise ArgumentError(unknown("operator", call.collective, KINDS))
    if call.algorithm not in STYLES:
        raise ArgumentError(f"{call.collective} has no style {call.algorithm!r}: it has {', '.join(STYLES)}")
    if gemm is None or ranks < 1 or call.in_place or call.heap or call.root:
        raise ArgumentError(
            f"{call.collective} takes matrices of one or more ranks, and has neither an in-place form nor a root"
        )
    if call.dtype not in GEMM_DTYPES:
        raise ArgumentError(f"{call.collective} multiplies {', '.join(GEMM_DTYPES)}, not {call.dtype}")
    for name, value in (("m", gemm.m), ("n", gemm.n), ("k", gemm.k)):
        if not 0 < value <= DIMENSION_MAX:
            raise ArgumentError(f"{call.collective} takes {name} from 1 to {DIMENSION_MAX}, not {value}")
    divided = ("m", "n") if call.collective == "all_gather_gemm" else ("m", "k")
    for name in divided:
        if getattr(gemm, name) % ranks:
            raise ArgumentError(
                f"{call.collective}: {name} = {getattr(gemm, name)} does not divide among {ranks} ranks"
            )
    _check_tiles(call)
    columns = moved_columns(call.collective, gemm.n, gemm.k)
    if call.nbytes != gemm.m // ranks * columns * DTYPES[call.dtype].itemsize:
        raise ArgumentError(
            f"{call.collective}: a shard of {gemm.m // ranks} x {columns} does not have {call.nbytes} bytes"
        )
    if call.redop != ("none" if call.collective == "all_gather_gemm" else "sum"):
        raise ArgumentError(f"{call.collective} takes no op {call.redop!r}")


def _check_tiles(call: Call) -> None:
    gemm, measures = call.gemm, shapes(call)
    assert gemm is not None
    if gemm.order not in ORDERS:
        raise ArgumentError(f"{call.collective} has no order {gemm.order!r}: choose from {', '.join(ORDERS)}")
    if gemm.transport not in TRANSPORTS[call.collective]:
        there = ", ".join(TRANSPORTS[call.collective])
        raise ArgumentError(f"{call.collective} has no transport {gemm.transport!r}: it has {there}")
    if not 0 <= gemm.comm_tile_rows <= gemm.m // call.ranks:
        raise ArgumentError(
            f"{call.collective}: a communication tile has 1 to {gemm.m // call.ranks} rows, a rank's shard, "
            f"not {gemm.comm_tile_rows}"
        )
    if not (0 < gemm.tile_rows <= measures.m and 0 < gemm.tile_cols <= measures.n):
        raise ArgumentError(
            f"{call.collective}: a compute tile is of 1 x 1 to {measures.m} x {measures.n}, "
            f"not {gemm.tile_rows} x {gemm.tile_cols}"
        )
    tiles = -(-measures.m // gemm.tile_rows) * -(-measures.n // gemm.tile_cols)
    if tiles > TILES_MAX:
        raise ArgumentError(f"{call.collective}: {tiles} compute tiles exceed the limit of {TILES_MAX}")
