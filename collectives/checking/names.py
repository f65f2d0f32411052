"""Names of what kernels compute on symbols: each is a contribution of a rank below 0, the same for equal operands.

An element of a matrix product is the dot of its row and its column, whatever the tile that it was made in. What a
result must be, the contract (products.py) says in the same names. A checksum is that of its bytes, whoever computes it.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from collectives.checking.symbols import CHECKSUM, Fold, Symbol, joined
from collectives.contracts import Piece
from collectives.fused import products
from collectives.fused.shapes import shapes
from cxlemu.plan import DTYPES, Call

WEIGHTS_SHIFT = 10**11  # where a rank's B begins, its A being at 0


@dataclass
class ComputedNames:
    """The names that have been given. One object serves all ranks, so that names compare."""

    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def element(self, dtype: str, row: Sequence[Symbol], column: Sequence[Symbol]) -> Symbol:
        """Name the sum of products of a row of A and a column of B, from the left; never written if a part was not."""
        written = all(symbol.fold is not None for symbol in (*row, *column))
        fold = Fold(((self._name(dtype, joined(row), joined(column)), 0),)) if written else None
        return Symbol(DTYPES[dtype].itemsize, fold)

    def checksum(self, data: Sequence[Symbol], nbytes: int) -> Symbol:
        """Name the checksum of some bytes, which counts as never written where a part of them was not."""
        written = all(symbol.fold is not None for symbol in data)
        return Symbol(nbytes, Fold(((self._name(joined(data)), CHECKSUM),)) if written else None)

    def postcondition(self, call: Call, rank: int, shift: int = 0) -> Iterator[Piece]:
        size, columns = DTYPES[call.dtype].itemsize, shapes(call).n
        for row in products.postcondition(call, rank):
            for column in range(columns):
                begin = column * size
                terms = tuple(self._term(call.dtype, product, begin, shift) for product in row.products)
                yield Piece(row.at + begin, size, terms)

    def _term(self, dtype: str, product: products.RowProduct, offset: int, shift: int) -> tuple[int, int]:
        row = [Symbol(product.a_bytes, Fold(((product.a_rank, shift + product.a_at),)))]
        first, size = shift + WEIGHTS_SHIFT + product.b_at + offset, DTYPES[dtype].itemsize
        column = [
            Symbol(size, Fold(((product.b_rank, first + k * product.b_stride_bytes),))) for k in range(product.b_rows)
        ]
        return self._name(dtype, joined(row), joined(column)), 0

    def _name(self, *operands: Hashable) -> int:
        return -1 - self._numbers.setdefault(operands, len(self._numbers))
