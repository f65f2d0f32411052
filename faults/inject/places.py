"""Where faults happen: an instruction of a rank's part, and the bytes of the pool that it is about."""

from __future__ import annotations

from typing import NamedTuple

from cxlemu.engines.streams import Running
from cxlemu.memory.cache import lines_of
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Instruction, Op, RankPart, accesses


class InstructionPlace(NamedTuple):
    """One instruction of a rank's part.

    Attributes:
        stream: number of the stream.
        at: number of the instruction in its stream.
    """

    stream: int
    at: int


def place(part: RankPart, instruction: int) -> InstructionPlace | None:
    """Find instruction number ``instruction`` of a part, counted through its streams; None beyond the last."""
    for stream, one in enumerate(part.streams):
        if instruction < len(one.records):
            return InstructionPlace(stream, instruction)
        instruction -= len(one.records)
    return None


class Span(NamedTuple):
    """Bytes of one card."""

    card: int
    offset: int
    nbytes: int

    @property
    def lines(self) -> tuple[int, int]:
        """First and past the last."""
        return lines_of(self.offset, self.nbytes)


def data(running: Running, i: Instruction) -> list[Span]:
    """The pool bytes of its operands; those behind a doorbell's word where they travel in its line."""
    if i.op in (Op.SIGNAL_DATA, Op.WAIT_DATA):
        return [Span(card, offset + 8, i.nbytes) for card, offset, _ in bells(running, i)]
    binding, spans = running.binding, []
    for operand in accesses.in_regions(i.operands):
        for at in accesses.pool_extents(running.frame, binding.layout, binding.epoch, operand, i.nbytes):
            spans.append(Span(at.card, binding.base + at.offset, at.nbytes))
    return spans


def bells(running: Running, i: Instruction) -> list[Span]:
    """The lines of its doorbells."""
    layout, epoch = running.binding.layout, running.binding.epoch + i.value
    rung = accesses.doorbells(running.frame, i)
    if i.op == Op.WAIT_ALL:
        rung = [bell for bell in rung if epoch > 0 and layout.owner(bell) != running.part.rank]
    found = [layout.doorbell_address(bell, epoch) for bell in rung]
    return [Span(card, running.binding.base + offset, LINE_BYTES) for card, offset in found]


def touched(running: Running, i: Instruction) -> list[Span]:
    """Everything in the pool that it is about."""
    return data(running, i) + bells(running, i)
