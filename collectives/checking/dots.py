"""Matrix products on symbols: an element is the dot of its row and its column, whatever the tile that it was made in.

An element gets a name of its own, a contribution of a rank below 0; equal rows and columns make elements of one name.
What a result must be, the contract (products.py) says in the same names.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from collectives.checking.symbols import Fold, Symbol, joined
from collectives.contracts import Piece
from collectives.fused import products
from collectives.fused.shapes import shapes
from cxlemu.plan import DTYPES, Call

WEIGHTS_SHIFT = 10**11  # where a rank's B begins, its A being at 0


@dataclass
class Dots:
    """The names that elements of products have been given. One object serves all ranks, so that names compare."""

    _numbers: dict[Hashable, int] = field(default_factory=dict)

    def element(self, dtype: str, row: Sequence[Symbol], column: Sequence[Symbol]) -> Symbol:
        """Name the sum of products of a row of A and a column of B, element by element from the left.

        Args:
            dtype: The dtype of the product, a key of `DTYPES`.
            row: The symbols of a row of A.
            column: The symbols of a column of B, as many bytes as the row.

        Returns:
            One element's symbol, which counts as never written where a part of the row or column was not.
        """
        written = all(symbol.fold is not None for symbol in (*row, *column))
        fold = Fold(((self._name(dtype, row, column), 0),)) if written else None
        return Symbol(DTYPES[dtype].itemsize, fold)

    def postcondition(self, call: Call, rank: int, shift: int = 0) -> Iterator[Piece]:
        """Yield what the rank's output must be, element by element.

        Args:
            call: A fused product.
            rank: The rank whose output is described.
            shift: The offset at which every input's contributions begin, as in `SymbolicRank.begin`.
        """
        size, columns = DTYPES[call.dtype].itemsize, shapes(call).n
        for row in products.postcondition(call, rank):
            for column in range(columns):
                at = column * size
                terms = tuple(self._term(call.dtype, product, at, shift) for product in row.products)
                yield Piece(row.at + at, size, terms)

    def _term(self, dtype: str, product: products.RowProduct, at: int, shift: int) -> tuple[int, int]:
        row = [Symbol(product.a_bytes, Fold(((product.a_rank, shift + product.a_at),)))]
        first, size = shift + WEIGHTS_SHIFT + product.b_at + at, DTYPES[dtype].itemsize
        column = [
            Symbol(size, Fold(((product.b_rank, first + k * product.b_stride_bytes),))) for k in range(product.b_rows)
        ]
        return self._name(dtype, row, column), 0

    def _name(self, dtype: str, row: Sequence[Symbol], column: Sequence[Symbol]) -> int:
        return -1 - self._numbers.setdefault((dtype, joined(row), joined(column)), len(self._numbers))
