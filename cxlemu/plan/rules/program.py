"""A plan's records side by side, so that a rule is a few array expressions: linear in the plan's size."""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.plan.instructions import OPERAND_DTYPE, OPERAND_FIELDS, RECORD_DTYPE, SIGNATURES, WHOLE, decode
from cxlemu.plan.plan import Plan
from cxlemu.plan.text import text

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]


def one_of(ops: Collection[int]) -> Mask:
    """Return a table by opcode, which a column of opcodes indexes: is it one of these?"""
    table = np.zeros(256, np.bool_)
    table[list(ops)] = True
    return table


_NAMING = {
    what: one_of([op for op, signature in SIGNATURES.items() if signature.arg == what])
    for what in {signature.arg for signature in SIGNATURES.values()}
}


_AT = min(RECORD_DTYPE.fields[name][1] for name in OPERAND_FIELDS) if RECORD_DTYPE.fields else 0
# The operands of a record, which follow each other, as an array.
_OPERANDS = np.dtype(
    {
        "names": ["all"],
        "formats": [(OPERAND_DTYPE, (len(OPERAND_FIELDS),))],
        "offsets": [_AT],
        "itemsize": RECORD_DTYPE.itemsize,
    }
)


class OperandColumns(NamedTuple):
    """The fields of all operands, each an array with a line for each of OPERAND_FIELDS and a column for each row."""

    kind: NDArray[np.uint16]
    id: NDArray[np.uint16]
    seq: NDArray[np.int32]
    offset: Numbers


class Defect(NamedTuple):
    """What is wrong: with an instruction, else with a rank's tables, else with the shared tables."""

    detail: str
    row: int = -1
    rank: int = -1


class PlanTable:
    """The instructions of some ranks: row after row, stream after stream, rank after rank.

    For each row: ``rank_of`` is its rank, ``part_of`` and ``stream_of`` are indices into ``parts`` and ``streams``,
    ``index_of`` is its place in the stream. Only the parts of ``ranks`` are built.
    """

    def __init__(self, plan: Plan, ranks: Iterable[int]) -> None:
        self.parts = {rank: plan.part(rank) for rank in sorted(set(ranks))}
        self.plan, self.frame, self.layout = plan, plan.frame, plan.layout  # the frame: that of the parts just built
        self.streams = [(rank, stream) for rank, part in self.parts.items() for stream in part.streams]
        lengths = [len(stream.records) for _, stream in self.streams]
        pieces = [np.empty(0, WHOLE), *(stream.records.view(WHOLE) for _, stream in self.streams)]
        self.records = np.concatenate(pieces).view(RECORD_DTYPE)
        self.stream_of: Numbers = np.repeat(np.arange(len(lengths)), lengths)
        self.index_of: Numbers = np.arange(len(self.records)) - np.repeat(np.cumsum([0, *lengths])[:-1], lengths)
        self.rank_of: Numbers = np.repeat(np.array([rank for rank, _ in self.streams], np.int64), lengths)
        self.part_of: Numbers = np.searchsorted(np.array(list(self.parts), np.int64), self.rank_of)
        self.op = self.records["op"]
        self.arg = self.records["arg"].astype(np.int64)

    @cached_property
    def operands(self) -> OperandColumns:
        """The operands of all rows."""
        operands: NDArray[Any] = self.records.view(_OPERANDS)["all"]
        return OperandColumns(*(np.ascontiguousarray(operands[name].T) for name in OperandColumns._fields))

    def defects(self, wrong: Mask, detail: str | Callable[[int], str]) -> Iterator[Defect]:
        """Yield a defect for each row where ``wrong`` is set."""
        for row in wrong.nonzero()[0].tolist():
            yield Defect(detail if isinstance(detail, str) else detail(row), row)

    def defects_at(self, wrong: Mask, detail: Callable[..., str]) -> Iterator[Defect]:
        """Yield a defect for each place where ``wrong`` is set, in order; ``detail`` gets the place's indices."""
        for place in np.argwhere(wrong).tolist():
            yield Defect(detail(*place), place[-1])

    def names(self, what: str) -> Mask:
        """Return which rows have as arg a "doorbell", a "group", an "event" or a "kernel"."""
        mask: Mask = _NAMING[what][self.op]
        return mask

    def text(self, row: int) -> str:
        """Write a row as text, also where it is no instruction."""
        record = self.records[row : row + 1]
        try:
            return text(decode(record)[0], self.plan, int(self.rank_of[row]))
        except ValueError:
            return f"opcode {record['op'][0]}, reduction {record['redop'][0]}"

    def place(self, row: int) -> tuple[int, str, int]:
        """Return rank, stream name and index in the stream of a row."""
        rank, stream = self.streams[self.stream_of[row]]
        return rank, stream.name, int(self.index_of[row])

    def where(self, row: int) -> str:
        """Say for messages which instruction a row is."""
        rank, stream, index = self.place(row)
        return f"rank {rank}, stream {stream}, instruction {index}"
