"""What a plan's instructions do to memory: which bytes of which lines, and of the ranks' own memory, they touch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cxlemu.kernels import KERNELS
from cxlemu.plan import Frame, Instruction, Kind, Layout, Op, Operand, RankPart
from faults.explore.places import by_line
from faults.machine.program import Do


class Local(NamedTuple):
    """A rank's own memory in a call."""

    call: int
    rank: int
    name: str


class Touch(NamedTuple):
    """Some bytes of a line, or of local memory, that an instruction loads or stores."""

    do: Do
    memory: Local | tuple[int, int]  # or (card, line)
    begin: int
    end: int


_LOADED: dict[Op, tuple[str, ...]] = {
    Op.WRITE: ("a",),
    Op.WRITE_NT: ("a",),
    Op.COPY: ("a",),
    Op.READ: ("a",),
    Op.REDUCE: ("a", "b", "c"),
    Op.REDUCE_LOCAL: ("a", "b", "c"),
    Op.SIGNAL_DATA: ("a",),
}
_STORED: dict[Op, tuple[str, ...]] = {
    Op.WRITE: ("dst",),
    Op.WRITE_NT: ("dst",),
    Op.COPY: ("dst",),
    Op.READ: ("dst", "dst2"),
    Op.REDUCE: ("dst", "dst2"),
    Op.REDUCE_LOCAL: ("dst",),
    Op.WAIT_DATA: ("dst",),
}


@dataclass(frozen=True)
class RankInCall:
    """One rank in one call: where its instructions' bytes lie."""

    call: int
    layout: Layout
    frame: Frame
    part: RankPart
    epoch: int

    def touches(self, i: Instruction) -> Iterator[Touch]:
        """Loads first. Doorbells and their payloads are not among them."""
        for do, names in ((Do.LOAD, _LOADED.get(i.op, ())), (Do.STORE, _STORED.get(i.op, ()))):
            for operand in (getattr(i, name) for name in names):
                yield from self._touched(do, operand, i.nbytes)
        if i.op == Op.COMPUTE:
            yield from self._computes(i)

    def _computes(self, i: Instruction) -> Iterator[Touch]:
        """Row by row: what a kernel makes is a function of what it loads."""
        kernel = self.frame.kernels[i.arg]
        out, *inputs = KERNELS[kernel.name].touches(kernel.parameters)
        loads = [(Do.LOAD, *each) for each in zip((i.a, i.b, i.c), inputs, strict=False)]
        for do, operand, touched in (*loads, (Do.STORE, i.dst, out)):
            for row in range(touched.rows):
                yield from self._touched(do, operand.at(row * touched.stride_bytes), touched.row_bytes)

    def _touched(self, do: Do, operand: Operand, nbytes: int) -> Iterator[Touch]:
        if operand.kind == Kind.BUFFER:
            yield Touch(do, *self.local(operand, nbytes))
        elif operand.kind == Kind.REGION:
            yield from (Touch(do, *lines) for lines in self.lines(operand, nbytes))

    def local(self, operand: Operand, nbytes: int) -> tuple[Local, int, int]:
        buffer = self.part.buffers[operand.id]
        name, at = (buffer.inside, buffer.at) if buffer.inside else (buffer.name, 0)
        return Local(self.call, self.part.rank, name), at + operand.offset, at + operand.offset + nbytes

    def lines(self, operand: Operand, nbytes: int) -> Iterator[tuple[tuple[int, int], int, int]]:
        region = self.frame.regions[operand.id]
        slot = self.layout.slot_offset(self.epoch + operand.seq)
        base = self.layout.heap_offset if region.heap else slot
        for run in region.map.runs(operand.offset, nbytes):
            yield from by_line(run.card, base + run.card_offset, base + run.card_offset + run.nbytes)
