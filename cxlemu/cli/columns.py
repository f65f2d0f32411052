"""Tables of text that are printed row by row and fit the terminal: a narrow one has only the columns that matter most.

Every column is as wide as it is told to be, so that rows that come later stand below those that came before.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Column(NamedTuple):
    name: str  # its head, by which rows have their cells
    unit: str  # what stands below the head
    width: int  # in characters
    order: int = 0  # 0: always there; others are dropped where the table does not fit, those of the largest order first


class Columns:
    def __init__(self, columns: Sequence[Column], last: str, last_width: int, width: int) -> None:
        kept = list(columns)
        for order in sorted({column.order for column in columns} - {0}, reverse=True):
            if sum(column.width + 1 for column in kept) + 1 + last_width > width:
                kept = [column for column in kept if column.order != order]
        self._kept, self._last = kept, last

    def __contains__(self, name: str) -> bool:
        return any(column.name == name for column in self._kept)

    @property
    def heads(self) -> list[str]:
        """The two lines above the rows, which begin with ``#``."""
        names = {column.name: column.name for column in self._kept} | {self._last: self._last}
        units = {column.name: column.unit for column in self._kept}
        return ["#" + self.line(cells)[1:] for cells in (names, units)]

    def line(self, cells: Mapping[str, object]) -> str:
        text = " ".join(f"{cells.get(column.name, '')!s:>{column.width}}" for column in self._kept)
        return f"{text}  {cells.get(self._last, '')}".rstrip()
