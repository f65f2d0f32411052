"""Rules of a plan's tables, in which all else is looked up."""

from collections.abc import Iterator

from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan.kernels import KERNELS
from cxlemu.plan.layout import Layout
from cxlemu.plan.plan import Region
from cxlemu.plan.rules.program import Defect, PlanTable

INT32_MAX = 2**31 - 1  # ids and rounds are 32 bits in a record
EVENTS_MAX = 1 << 16  # beyond the instructions there are: engines make room for every event


def layout(p: PlanTable) -> Iterator[Defect]:
    """Yield what is wrong with the layout, or with the number of rounds."""
    lay, frame = p.layout, p.frame
    if lay.ranks != p.plan.ranks:
        yield Defect(f"the layout is for {lay.ranks} ranks, the call for {p.plan.ranks}")
    if min(lay.ranks, lay.cards, lay.slots, lay.doorbells_per_rank) < 1:
        yield Defect("the layout has no ranks, no cards, no slots or no doorbells")
    elif lay.pool_cards < 1:
        yield Defect(f"all of the layout's {lay.cards} cards are memories of its {lay.ranks} ranks: the pool has none")
    if not 0 <= lay.own_doorbells <= lay.doorbells_per_rank * lay.owned:
        yield Defect(f"{lay.own_doorbells} of a rank's doorbells lie in its own memory, which has no room for them")
    if lay.slot_card_bytes < 0 or lay.slot_card_bytes % LINE_BYTES:
        yield Defect(f"a slot has {lay.slot_card_bytes} bytes on a card, no multiple of {LINE_BYTES}")
    if lay.interleave_bytes < LINE_BYTES or lay.interleave_bytes % LINE_BYTES:
        yield Defect(f"its cards interleave by {lay.interleave_bytes} bytes, no positive multiple of {LINE_BYTES}")
    if lay.heap_card_bytes < 0 or lay.heap_card_bytes % LINE_BYTES:
        yield Defect(f"the heap has {lay.heap_card_bytes} bytes on a card, no multiple of {LINE_BYTES}")
    if lay.doorbell_count > INT32_MAX:
        yield Defect(f"the layout has {lay.doorbell_count} doorbells, more than {INT32_MAX}")
    if not 0 <= frame.rounds <= INT32_MAX:
        yield Defect(f"the call takes {frame.rounds} rounds, which is not 0..{INT32_MAX}")


def regions(p: PlanTable) -> Iterator[Defect]:
    """Yield regions outside their slot, the heap or the cards, or with broken granules."""
    for index, region in enumerate(p.frame.regions):
        if wrong := _region(region, p.layout):
            yield Defect(f"region {index} {wrong}")


def _region(region: Region, layout: Layout) -> str:
    cards = layout.cards
    if min(region.first_card, region.base, region.start, region.nbytes, region.first_writer) < 0:
        return "has a negative card, base, start, size or writer"
    if region.cards < 1 or region.first_card + region.cards > cards:
        return f"is on cards {region.first_card}..{region.first_card + region.cards - 1}, but there are {cards}"
    if region.granularity_bytes < LINE_BYTES or region.granularity_bytes % LINE_BYTES:
        return f"is interleaved by {region.granularity_bytes} bytes, no positive multiple of {LINE_BYTES}"
    if region.writer_bytes:
        return _given_up(region, layout)
    return _room(region, layout)


def _given_up(region: Region, layout: Layout) -> str:
    """Blocks of writers are whole lines of one card's heap, one for each rank at most: a line has one writer."""
    if not region.heap or region.cards > 1:
        return "has a writer for each of its blocks, and does not lie in the heap, on one card"
    if region.writer_bytes < 0 or region.writer_bytes % LINE_BYTES or (region.base + region.start) % LINE_BYTES:
        return f"has blocks of {region.writer_bytes} bytes with a writer each, which are not whole lines"
    if region.nbytes > region.writer_bytes * (layout.ranks - region.first_writer):
        which = f" from rank {region.first_writer} on" if region.first_writer else ""
        return f"has more blocks of {region.writer_bytes} bytes than there are ranks{which} to write them"
    return _room(region, layout)


def _room(region: Region, layout: Layout) -> str:
    end = region.map.end_on_cards(region.nbytes)
    place, room = ("the heap", layout.heap_card_bytes) if region.heap else ("a slot", layout.slot_card_bytes)
    if end > room:
        return f"ends at byte {end} of a card, {place} at {room}"
    return ""


def groups(p: PlanTable) -> Iterator[Defect]:
    """Yield groups that are empty or name doorbells that do not exist."""
    for index, group in enumerate(p.frame.groups):
        if group.count < 1 or group.stride < 1:
            yield Defect(f"group {index} is empty: count {group.count}, stride {group.stride}")
        elif group.first < 0 or group.doorbells[-1] >= p.layout.doorbell_count:
            last, there = group.doorbells[-1], p.layout.doorbell_count
            yield Defect(f"group {index} is of doorbells {group.first}..{last}, there are {there}")


def kernels(p: PlanTable) -> Iterator[Defect]:
    """Yield kernels that do not exist or do not take these parameters."""
    for index, kernel in enumerate(p.frame.kernels):
        if kernel.name not in KERNELS:
            yield Defect(f"kernel {index} is {kernel.name!r}: there are {', '.join(KERNELS)}")
            continue
        try:
            KERNELS[kernel.name].sizes(kernel.parameters)
        except ArgumentError as error:
            yield Defect(f"kernel {index}: {error}")


def buffers(p: PlanTable) -> Iterator[Defect]:
    """Yield buffers with one name, of negative size, or that do not fit in the one that they are inside."""
    for rank, part in p.parts.items():
        outer = {buffer.name: buffer for buffer in part.buffers if not buffer.inside}
        if len({buffer.name for buffer in part.buffers}) < len(part.buffers):
            yield Defect("two buffers have the same name", rank=rank)
        for buffer in part.buffers:
            if buffer.nbytes < 0:
                yield Defect(f"buffer {buffer.name} has {buffer.nbytes} bytes", rank=rank)
            if not buffer.inside:
                continue
            if buffer.inside not in outer:
                yield Defect(f"buffer {buffer.name} is inside {buffer.inside!r}, no memory of its own", rank=rank)
            elif not 0 <= buffer.at <= outer[buffer.inside].nbytes - buffer.nbytes:
                room = f"{outer[buffer.inside].nbytes} bytes of {buffer.inside}"
                yield Defect(
                    f"buffer {buffer.name} ({buffer.nbytes} at {buffer.at}) ends outside the {room}",
                    rank=rank,
                )


def streams(p: PlanTable) -> Iterator[Defect]:
    """Yield parts of another rank, streams with one name, and too many events."""
    for rank, part in p.parts.items():
        if part.rank != rank:
            yield Defect(f"its part says rank {part.rank}", rank=rank)
        if len({stream.name for stream in part.streams}) < len(part.streams):
            yield Defect("two streams have the same name", rank=rank)
        if not 0 <= part.events <= max(EVENTS_MAX, part.instruction_count):
            yield Defect(f"it has {part.events} events for {part.instruction_count} instructions", rank=rank)
