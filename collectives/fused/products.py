"""The contract of a fused product: what every row of a result must be. It knows nothing of tiles.

Sums over ranks are made in rank order, so that results are bitwise reproducible.
"""

from collections.abc import Iterator
from typing import NamedTuple

from collectives.fused.shapes import shapes
from cxlemu.plan import DTYPES, Call


class RowProduct(NamedTuple):
    """A row of one rank's A times all columns of one rank's B.

    The row has ``a_bytes`` bytes from byte ``a_at`` of its A. B begins at byte ``b_at`` and has ``b_rows`` rows,
    ``b_stride_bytes`` apart.
    """

    a_rank: int
    a_at: int
    a_bytes: int
    b_rank: int
    b_at: int
    b_rows: int
    b_stride_bytes: int


class ProductRow(NamedTuple):
    """Output bytes [at, at + nbytes) are the sum of ``products``, from the left."""

    at: int
    nbytes: int
    products: tuple[RowProduct, ...]


def postcondition(call: Call, rank: int) -> Iterator[ProductRow]:
    size, measures = DTYPES[call.dtype].itemsize, shapes(call)
    shard, nbytes = measures.m // call.ranks, measures.n * size
    gathers = call.collective == "all_gather_gemm"
    first = rank * shard if call.collective == "gemm_reduce_scatter" else 0
    for row in range(measures.c[0]):
        if gathers:
            owner, within = divmod(row, shard)
            products: tuple[RowProduct, ...] = (_product(owner, within, rank, measures.k, size, nbytes),)
        else:
            products = tuple(_product(q, first + row, q, measures.k, size, nbytes) for q in range(call.ranks))
        yield ProductRow(row * nbytes, nbytes, products)


def _product(a_rank: int, row: int, b_rank: int, k: int, size: int, b_row_bytes: int) -> RowProduct:
    return RowProduct(a_rank, row * k * size, k * size, b_rank, 0, k, b_row_bytes)
