"""What a plan's instructions do to memory: which bytes of which lines, and of the ranks' own memory, they touch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cxlemu.plan import Frame, Instruction, Kind, Layout, Op, Operand, RankPart, accesses
from cxlemu.plan.kernels import KERNELS
from faults.explore.places import by_line
from faults.machine.program import Do


class Local(NamedTuple):
    call: int
    rank: int
    name: str


class TouchedBytes(NamedTuple):
    """Some bytes of a line, or of local memory, that an instruction loads or stores."""

    do: Do  # LOAD or STORE
    memory: Local | tuple[int, int]  # local memory, or card and number of a line
    begin: int  # first byte, from the start of the local memory or of the communicator's part of the card
    end: int  # the byte after the last one


@dataclass(frozen=True)
class RankInCall:
    """One rank in one call: where its instructions' bytes lie."""

    call: int
    layout: Layout
    frame: Frame  # what the plan's parts share: regions, groups of doorbells, kernels
    part: RankPart
    epoch: int  # the epoch that the call starts at

    def touches(self, i: Instruction) -> Iterator[TouchedBytes]:
        """List the bytes that an instruction loads, then those that it stores, without doorbells and their payloads."""
        for do, operands in ((Do.LOAD, accesses.loaded(i)), (Do.STORE, accesses.stored(i))):
            for operand in operands:
                yield from self._touched(do, operand, i.nbytes)
        if i.op == Op.COMPUTE:
            yield from self._computes(i)

    def _computes(self, i: Instruction) -> Iterator[TouchedBytes]:
        """Row by row: what a kernel makes is a function of what it loads."""
        kernel = self.frame.kernels[i.arg]
        out, *inputs = KERNELS[kernel.name].touches(kernel.parameters)
        loads = [(Do.LOAD, *each) for each in zip((i.a, i.b, i.c), inputs, strict=False)]
        for do, operand, touched in (*loads, (Do.STORE, i.dst, out)):
            for row in range(touched.rows):
                yield from self._touched(do, operand.at(row * touched.stride_bytes), touched.row_bytes)

    def _touched(self, do: Do, operand: Operand, nbytes: int) -> Iterator[TouchedBytes]:
        if operand.kind == Kind.BUFFER:
            yield TouchedBytes(do, *self.local(operand, nbytes))
        elif operand.kind == Kind.REGION:
            yield from (TouchedBytes(do, *lines) for lines in self.lines(operand, nbytes))

    def local(self, operand: Operand, nbytes: int) -> tuple[Local, int, int]:
        """Return the local memory that a buffer's operand lies in, its first byte, and the byte after its last one."""
        buffer = self.part.buffers[operand.id]
        name, offset = (buffer.inside, buffer.at) if buffer.inside else (buffer.name, 0)
        return Local(self.call, self.part.rank, name), offset + operand.offset, offset + operand.offset + nbytes

    def lines(self, operand: Operand, nbytes: int) -> Iterator[tuple[tuple[int, int], int, int]]:
        """Yield ``((card, line), begin, end)`` of each line of a region's operand, from the start of the extent."""
        for extent in accesses.pool_extents(self.frame, self.layout, self.epoch, operand, nbytes):
            yield from by_line(extent.card, extent.offset, extent.offset + extent.nbytes)
