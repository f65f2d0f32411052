"""Which bytes an instruction loads, stores and names, and which doorbells it rings or looks at: said here, once.

Provers, explorers, injectors and pictures ask this module; the reference engine defines what an instruction does.
"""

from collections.abc import Iterator, Sequence

from cxlemu.plan.address import Extent
from cxlemu.plan.instructions import Instruction, Kind, Op, Operand
from cxlemu.plan.layout import Layout
from cxlemu.plan.plan import Frame

# Operand fields whose nbytes an instruction loads, and then stores. A COMPUTE touches what its kernel says; FLUSH and
# INVALIDATE name lines without loading them; the payload of a doorbell lies behind its word.
LOADED: dict[Op, tuple[str, ...]] = {
    Op.WRITE: ("a",),
    Op.WRITE_NT: ("a",),
    Op.COPY: ("a",),
    Op.READ: ("a",),
    Op.REDUCE: ("a", "b", "c"),
    Op.REDUCE_LOCAL: ("a", "b", "c"),
    Op.SIGNAL_DATA: ("a",),
}
STORED: dict[Op, tuple[str, ...]] = {
    Op.WRITE: ("dst",),
    Op.WRITE_NT: ("dst",),
    Op.COPY: ("dst",),
    Op.READ: ("dst", "dst2"),
    Op.REDUCE: ("dst", "dst2"),
    Op.REDUCE_LOCAL: ("dst",),
    Op.WAIT_DATA: ("dst",),
}
RINGS = (Op.SIGNAL, Op.SIGNAL_DATA)
WAITS = (Op.WAIT, Op.WAIT_DATA, Op.WAIT_ALL)


def loaded(i: Instruction) -> Iterator[Operand]:
    """Yield the operands, in buffers and regions, whose bytes an instruction loads."""
    return (operand for name in LOADED.get(i.op, ()) if (operand := getattr(i, name)).kind)


def stored(i: Instruction) -> Iterator[Operand]:
    """Yield the operands, in buffers and regions, whose bytes an instruction stores."""
    return (operand for name in STORED.get(i.op, ()) if (operand := getattr(i, name)).kind)


def in_regions(operands: Iterator[Operand] | Sequence[Operand]) -> Iterator[Operand]:
    """Yield those of the operands that lie in the pool."""
    return (operand for operand in operands if operand.kind == Kind.REGION)


def region_base(frame: Frame, layout: Layout, epoch: int, operand: Operand) -> int:
    """Return where a region's map counts from on a card, in bytes from the extent's start, for the operand's round."""
    if frame.regions[operand.id].heap:
        return layout.heap_offset
    return layout.slot_offset(epoch + operand.seq)


def pool_extents(frame: Frame, layout: Layout, epoch: int, operand: Operand, nbytes: int) -> Iterator[Extent]:
    """Yield where bytes of a region operand lie: cards, and bytes from the start of the communicator's extent."""
    base = region_base(frame, layout, epoch, operand)
    for extent in frame.regions[operand.id].map.extents(operand.offset, nbytes):
        yield extent._replace(offset=base + extent.offset)


def doorbells(frame: Frame, i: Instruction) -> Sequence[int]:
    """Return the ids of the doorbells that an instruction rings or polls; none for other instructions."""
    if i.op == Op.WAIT_ALL:
        return frame.groups[i.arg].doorbells
    return [i.arg] if i.op in RINGS or i.op in WAITS else ()
