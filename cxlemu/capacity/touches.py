"""The bytes of each card that a plan may touch, wherever its communicator lies."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cxlemu.plan import Frame, Layout
from cxlemu.plan.address import Extent


class Touch(NamedTuple):
    """Bytes [begin, end) of a card, and what of the plan lies there."""

    what: str
    card: int
    begin: int
    end: int


def touches(layout: Layout, frame: Frame, base: int, *, told: bool = False) -> Iterator[Touch]:
    """List everything that instructions can name: all doorbells, and every region in all slots or in the heap.

    The rules of plans and the native engine ensure that instructions stay inside of regions.
    """
    doorbells = layout.doorbells_offset + layout.slots * layout.slot_doorbell_bytes
    for card in range(layout.cards):
        yield Touch("doorbells", card, base, base + doorbells)
    slots = [layout.data_offset + slot * layout.slot_card_bytes for slot in range(layout.slots)]
    for number, region in enumerate(frame.regions):
        extents = region.map.extents(0, region.nbytes)
        if region.heap and told:
            extents = [Extent(region.first_card, region.base, layout.heap_rank_bytes)]
        for start in [layout.heap_offset] if region.heap else slots:
            for card, offset, nbytes in extents:
                begin = base + start + offset
                yield Touch(f"region {number}", card, begin, begin + nbytes)


def outside(touched: Iterable[Touch], inside: Iterable[tuple[int, int]], cards: int) -> Touch | None:
    """Return the first part of a touch outside the ranges [begin, end), which are in order; None if all is inside."""
    ranges = list(inside)
    for touch in touched:
        at = touch.begin
        if touch.card < cards:
            for begin, end in ranges:
                if begin <= at < end:
                    at = end
        if at < touch.end:
            later = [begin for begin, _ in ranges if begin > at and touch.card < cards]
            return touch._replace(begin=at, end=min([touch.end, *later]))
    return None
