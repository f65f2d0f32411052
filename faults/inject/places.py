"""Where faults happen: an instruction of a rank's part, and the bytes of the pool that it touches."""

from typing import NamedTuple

from cxlemu.engines.streams import Running
from cxlemu.memory.cache import lines_of
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Instruction, Op, RankPart, accesses


class InstructionPlace(NamedTuple):
    """One instruction of a rank's part."""

    stream: int
    at: int  # number of the instruction in its stream


def place(part: RankPart, instruction: int) -> InstructionPlace | None:
    """Find an instruction by its number, counted through the part's streams; None beyond the last."""
    for stream, one in enumerate(part.streams):
        if instruction < len(one.records):
            return InstructionPlace(stream, instruction)
        instruction -= len(one.records)
    return None


class Span(NamedTuple):
    """Bytes of one card."""

    card: int
    offset: int  # of the first byte on the card
    nbytes: int  # how many bytes

    @property
    def lines(self) -> tuple[int, int]:
        """The first line that the bytes touch, and the line after the last."""
        return lines_of(self.offset, self.nbytes)


def data(running: Running, i: Instruction) -> list[Span]:
    """Locate the pool bytes of an instruction's operands.

    For SIGNAL_DATA and WAIT_DATA these are the payload behind the doorbell's word.
    """
    if i.op in (Op.SIGNAL_DATA, Op.WAIT_DATA):
        return [Span(card, offset + 8, i.nbytes) for card, offset, _ in bells(running, i)]
    binding, spans = running.binding, []
    for operand in accesses.in_regions(i.operands):
        for extent in accesses.pool_extents(running.frame, binding.layout, binding.epoch, operand, i.nbytes):
            spans.append(Span(extent.card, binding.base + extent.offset, extent.nbytes))
    return spans


def bells(running: Running, i: Instruction) -> list[Span]:
    """Locate the lines of an instruction's doorbells: none of a WAIT_ALL's own rank, or of rounds before the first."""
    layout, epoch = running.binding.layout, running.binding.epoch + i.value
    rung = accesses.doorbells(running.frame, i)
    if i.op == Op.WAIT_ALL:
        rung = [bell for bell in rung if epoch > 0 and layout.owner(bell) != running.part.rank]
    addresses = [layout.doorbell_address(bell, epoch) for bell in rung]
    return [Span(card, running.binding.base + offset, LINE_BYTES) for card, offset in addresses]


def has_data(i: Instruction) -> bool:
    """Whether an instruction has data in the pool."""
    return i.op in (Op.SIGNAL_DATA, Op.WAIT_DATA) or any(True for _ in accesses.in_regions(i.operands))


def has_bell(i: Instruction) -> bool:
    """Whether an instruction has a doorbell of its own; those of a WAIT_ALL are of rounds before."""
    return i.op in (Op.SIGNAL, Op.SIGNAL_DATA, Op.WAIT, Op.WAIT_DATA)


def touched(running: Running, i: Instruction) -> list[Span]:
    """Locate everything in the pool that an instruction touches: its data, then its doorbells."""
    return data(running, i) + bells(running, i)
