"""What an instruction is about: the pool bytes that it stores, loads or writes back, and the doorbells it looks at."""

from __future__ import annotations

from typing import NamedTuple

from cxlemu.engines.streams import Running
from cxlemu.memory.cache import lines_of
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Instruction, Kind, Op
from faults.script import Place

RINGS = (Op.SIGNAL, Op.SIGNAL_DATA)
_LOOKS = (*RINGS, Op.WAIT, Op.WAIT_DATA)


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
    spans = []
    for operand in i.operands:
        if operand.kind != Kind.REGION:
            continue
        region, layout = running.frame.regions[operand.id], running.binding.layout
        slot = layout.heap_offset if region.heap else layout.slot_offset(running.binding.epoch + operand.seq)
        for extent in region.map.extents(operand.offset, i.nbytes):
            spans.append(Span(extent.card, running.binding.base + slot + extent.offset, extent.nbytes))
    return spans


def bells(running: Running, i: Instruction) -> list[Span]:
    """The lines of its doorbells."""
    layout, epoch = running.binding.layout, running.binding.epoch + i.value
    rung = [i.arg] if i.op in _LOOKS else []
    if i.op == Op.WAIT_ALL and epoch > 0:
        rung = [bell for bell in running.frame.groups[i.arg].doorbells if layout.owner(bell) != running.part.rank]
    found = [layout.doorbell_address(bell, epoch) for bell in rung]
    return [Span(card, running.binding.base + offset, LINE_BYTES) for card, offset in found]


def touched(running: Running, i: Instruction) -> list[Span]:
    """Everything in the pool that it is about."""
    return data(running, i) + bells(running, i)


def from_here_on(running: Running, start: Place) -> list[tuple[int, Instruction]]:
    """The stream's instructions from a place on, with where they stand."""
    instructions = running.part.streams[start.stream].instructions
    return list(enumerate(instructions))[start.at :]
