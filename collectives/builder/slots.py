"""Slots of the ring: how a block travels through one, and where in it the ranks' areas lie.

CCCL's placements (arXiv 2602.22457, section on interleaving):

- sequential: areas one after another, filling card 0 before card 1 (CCCL's naive allocation);
- over all cards: every area dealt round-robin over all cards, each starting on the next card (1-to-N and N-to-1);
  a single block, which all read at the same time, in granules so small that each chunk of it is on all cards;
- a range per writer: every writer's area on cards of its own (N-to-N); but over all cards, where these are shared by
  some more writers than others or, for large blocks, where some writers would have one card and others two.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from collectives.builder.part import Ints, PartBuilder
from cxlemu.errors import DeclinedError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Kind, Layout, Op, Operand, Region
from cxlemu.plan.address import rank_cards
from cxlemu.rounding import round_down, round_up

Operands = Sequence[Operand]

GRANULE_LEAST_BYTES = 4096  # of what is dealt over more cards than the pool's interleaving would
EVEN_STRIPES = 16  # of a writer's blocks over all cards, from which on they load all cards alike
SHARED_CHUNKS = 4  # chunks of a block that all ranks read; each chunk has a part on every card


class Chunk(NamedTuple):
    """A part of every block that is published under one doorbell (one per line where lines carry the payload).

    A round without data is one chunk of no bytes. All sizes and offsets are in bytes.
    """

    seq: int  # the round, relative to the call's first epoch
    number: int  # in its round, from 0
    offset: int  # from the start of the block
    nbytes: int
    slot_offset: int  # from the start of the block's place in the slot
    whole_bytes: int = 0  # of the chunk that this is all or part of


class Loop(NamedTuple):
    """A loop over rounds, as an algorithm asks for it: the arguments of `Rounds.rounds`."""

    nbytes: int
    writers: list[int]
    blocks: int
    spread: str
    chunk_bytes: int = 0
    bells: int = 0


class RegionIds(dict[int, int]):
    """Region ids by writer; not to be changed."""

    @cached_property
    def column(self) -> Ints:
        """The same as an array, by writer from 0; -1 where there is none."""
        found = np.full(max(self, default=-1) + 1, -1, np.int64)
        found[list(self.keys())] = list(self.values())
        return found


@lru_cache(256)  # every rank's part has the same tables, which in large worlds are long
def region_ids(first: int, writers: tuple[int, ...], shared: bool = False) -> RegionIds:
    ids = [first] * len(writers) if shared else range(first, first + len(writers))
    return RegionIds(zip(writers, ids, strict=True))


@dataclass(frozen=True)
class Areas:
    """Where this loop's blocks lie: a region per writer, a doorbell per (block, chunk) or per (bell, chunk).

    In the heap, block k is bytes [k * ``nbytes``, (k + 1) * ``nbytes``) of its writer's input; a block that is no part
    of the input is the writer's slice of the output or, where that is private, has a place in the slots.
    """

    region_of: RegionIds  # in the slots
    block_bytes: int  # a block's place in its writer's area
    doorbells_per_block: int
    nbytes: int = 0  # a whole block's, over all rounds
    placed_in_heap: int = 0  # how many blocks are parts of the input
    input_of: dict[int, int] = field(default_factory=dict)  # writer -> region id, in the heap
    output_of: dict[int, int] = field(default_factory=dict)
    blocks: int = 0  # per writer
    bells: int = 0  # per rank and chunk
    first_bell: int = 0  # where these begin: after doorbells of the blocks, where those carry the blocks themselves


class SlotCarrier:
    """Carries blocks in the slots of the ring, one round in each. Carriers of other kinds derive from it.

    A builder's words call its methods, which emit instructions to the builder's streams. Each writer's blocks are
    numbered from 0, doorbells as in the layout.
    """

    grain = LINE_BYTES  # parts of a chunk that are published by themselves begin at multiples of it
    in_columns = True  # words for many peers are made as columns
    fetches = False  # what is folded is brought to scratch memory first
    reads_in_place = False  # peers read arrays where they lie

    def __init__(self, b: PartBuilder) -> None:
        self.b = b
        self.areas = Areas(RegionIds(), 0, 0)  # those of the loop that is under way, or was the last one
        self.answered = False  # every rank that reads a rank's blocks sends it what they became
        self.awaits_readers = False  # nothing but "done" tells that peers have read an array in place

    # --- placing ----------------------------------------------------------------------------------------------

    def plan(self, loop: Loop) -> tuple[int, int, Areas]:
        """Place a loop's blocks; return a round's bytes of a block, the chunk size (0: as many as doorbells) and
        areas."""
        doorbells = self.doorbells_of(loop.bells or loop.blocks, "bells" if loop.bells else "blocks")
        placement = loop.spread if self.b.spec.interleaved else "sequential"
        if placement == "cards" and self.b.spec.finely and len(loop.writers) * loop.blocks == 1:
            placement = "shared"
        piece, step, areas = self._placed(loop, placement, doorbells)
        return piece, step, replace(areas, blocks=loop.blocks, bells=loop.bells or loop.blocks)

    def _placed(self, loop: Loop, placement: str, doorbells: int) -> tuple[int, int, Areas]:
        regions, room = place(self.b.layout, len(loop.writers), loop.blocks, loop.nbytes, placement)
        piece, step, chunks = room, min(loop.chunk_bytes, room), min(self.b.spec.chunks, doorbells)
        if step:
            chunks = min(room // round_up(step, LINE_BYTES), doorbells)
            piece = chunks * step
        return piece, step, Areas(self._table(loop.writers, regions), room, chunks)

    def doorbells_of(self, count: int, what: str) -> int:
        """Compute for how many chunks, 1 or more, there are doorbells."""
        doorbells = self.b.layout.doorbells_per_rank // count
        if doorbells < 1:
            raise DeclinedError(
                f"{self.b.call}: {count} {what} a rank need as many doorbells, the layout has "
                f"{self.b.layout.doorbells_per_rank} per rank"
            )
        return doorbells

    def _table(self, writers: list[int], regions: Iterable[Region]) -> RegionIds:
        return region_ids(self.b.written.add_regions(regions), tuple(writers))

    def in_slot(self, block: int) -> bool:
        return True

    def takes_slot(self, block: int) -> bool:
        """Whether publishing this block stores to what a slot's last user may still read."""
        return True

    def folds_into(self, block: int) -> bool:
        """Whether a fold itself stores its result where the block lies; else in local memory, until it is published."""
        return self.in_slot(block) and not self.fetches

    def area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        offset = block * self.areas.block_bytes + chunk.slot_offset
        return Operand(Kind.REGION, self.areas.region_of[writer], chunk.seq, offset)

    def regions_of(self, writers: Ints) -> Ints:
        return self.areas.region_of.column[writers]

    def doorbell(self, chunk: Chunk, writer: int, block: int, line: int = 0) -> int:
        """Return the doorbell of a chunk of a writer's block; where lines carry the payload, that of line ``line``."""
        index = block * self.areas.doorbells_per_block + chunk.number + line
        return self.b.layout.published(writer, index)

    def flag(self, chunk: Chunk, writer: int, bell: int) -> int:
        """Return the doorbell of a bell, which stands for no block of its own."""
        return self.doorbell(chunk, writer, self.areas.first_bell + bell)

    def bell_of(self, chunk: Chunk, writer: int, block: int, bell: int | None, blocks: int = 1) -> int:
        """Choose the doorbell id that announces a chunk: a bell's, or the first block's own (None)."""
        return self.doorbell(chunk, writer, block) if bell is None else self.flag(chunk, writer, bell)

    def flags(self, chunk: Chunk) -> int:
        """Return the flags of the instructions that ring a chunk's doorbell and wait for it: none for slots."""
        return 0

    def prepare(self, nbytes: int) -> None:
        """Get ready for a chunk of this size, which will travel; nothing to do in slots."""

    @property
    def tells(self) -> bool:
        """Whether getting ready for a round stores to a doorbell's line what its last waiters may still read."""
        return False

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """Get ready for a round of these chunks; nothing to do in slots."""

    # --- publishing -------------------------------------------------------------------------------------------

    def push(
        self, stream: str, chunk: Chunk, sources: Operands, block: int, written: bool = False, bell: int | None = None
    ) -> None:
        """Make a chunk visible and announce it under a bell (None: the first block's); ``written``: it is in the
        cache."""
        b = self.b
        doorbell = self.bell_of(chunk, b.rank, block, bell, len(sources))
        areas = [self.area(chunk, b.rank, block + number) for number in range(len(sources) if chunk.nbytes else 0)]
        for number, (area, src) in enumerate(zip(areas, sources, strict=False), block):
            self.check_source(chunk, src, number)
            if not written:
                b._emit(stream, Op.WRITE, dst=area, a=src, nbytes=chunk.nbytes)
        for area in areas:
            b._emit(stream, Op.FLUSH, a=area, nbytes=chunk.nbytes)
        if areas:
            b._emit(stream, Op.FENCE)
        self.ring(stream, chunk, doorbell, sources[0] if areas else None)

    def check_source(self, chunk: Chunk, src: Operand, block: int) -> None:
        """Raises BuilderError where a chunk of this block cannot be published from ``src``; in slots it always can."""

    def ring(self, stream: str, chunk: Chunk, doorbell: int, src: Operand | None) -> None:
        """Announce a chunk: ring ``doorbell``. ``src`` is its local memory, None where the chunk is empty."""
        self.b._emit(stream, Op.SIGNAL, arg=doorbell, value=chunk.seq, flags=self.flags(chunk))

    # --- retrieving -------------------------------------------------------------------------------------------

    def take(self, targets: Operands, chunk: Chunk, peer: int, block: int, bell: int | None = None) -> None:
        """Wait for a chunk and bring it to local memory; for an empty one, only wait for its doorbell."""
        self.await_bell(chunk, peer, block, bell)
        for number, dst in enumerate(targets if chunk.nbytes else (), block):
            area = self.area(chunk, peer, number)
            self.b._emit("retrieve", Op.INVALIDATE, a=area, nbytes=chunk.nbytes)
            self.b._emit("retrieve", Op.READ, dst=dst, a=area, nbytes=chunk.nbytes)

    def await_bell(self, chunk: Chunk, peer: int, block: int, bell: int | None) -> None:
        """Wait for the doorbell that announces a chunk; arguments as in `take`."""
        doorbell = self.bell_of(chunk, peer, block, bell)
        self.b._emit("retrieve", Op.WAIT, arg=doorbell, value=chunk.seq, flags=self.flags(chunk))
        if self.in_slot(block) and chunk.nbytes:
            self.b._knows_free(chunk.seq)

    def await_chunk(self, chunk: Chunk, peer: int, block: int, bell: int | None = None) -> Operand:
        """Wait for a chunk that is read in the pool, and return where it lies there; arguments as in `take`."""
        area = self.area(chunk, peer, block)
        self.await_bell(chunk, peer, block, bell)
        self.b._emit("retrieve", Op.INVALIDATE, a=area, nbytes=chunk.nbytes)
        return area


# --- where areas lie ----------------------------------------------------------------------------------------------


@lru_cache(64)  # the same for all ranks, and a region for each of them
def place(layout: Layout, writers: int, blocks: int, nbytes: int, placement: str) -> tuple[tuple[Region, ...], int]:
    """Place writers' areas in a slot; return each writer's region, and how many bytes of a block fit in a slot."""
    areas = {
        "sequential": _sequential,
        "cards": _over_all_cards,
        "shared": _over_all_cards_finely,
        "ranges": _range_per_writer,
    }
    regions, piece = areas[placement](layout, writers, blocks, nbytes)
    _check_room(layout, writers, blocks, piece)
    return regions, piece


def _granularities(layout: Layout) -> Iterator[int]:
    """Yield the pool's interleaving granularity, and smaller ones for slots that are too small for it."""
    granularity = layout.interleave_bytes
    while granularity > LINE_BYTES:
        yield granularity
        granularity //= 2
    yield LINE_BYTES


def _sequential(layout: Layout, writers: int, blocks: int, nbytes: int) -> tuple[tuple[Region, ...], int]:
    piece = min(round_down(layout.slot_bytes // (writers * blocks), LINE_BYTES), round_up(nbytes, LINE_BYTES))
    area = piece * blocks
    regions = (Region(0, layout.pool_cards, layout.slot_card_bytes, 0, w * area, area) for w in range(writers))
    return tuple(regions), piece


def _over_all_cards(layout: Layout, writers: int, blocks: int, nbytes: int) -> tuple[tuple[Region, ...], int]:
    return _dealt(layout, writers, blocks, list(_granularities(layout)))


def _over_all_cards_finely(layout: Layout, writers: int, blocks: int, nbytes: int) -> tuple[tuple[Region, ...], int]:
    most = max(GRANULE_LEAST_BYTES, nbytes // (SHARED_CHUNKS * layout.pool_cards))
    return _dealt(
        layout, writers, blocks, [granularity for granularity in _granularities(layout) if granularity <= most]
    )


def _dealt(layout: Layout, writers: int, blocks: int, granularities: list[int]) -> tuple[tuple[Region, ...], int]:
    for granularity in granularities:
        # An area is whole stripes, and a granule is left between two, so that the next one starts on the next card.
        usable = round_down(layout.slot_card_bytes, granularity) * layout.pool_cards
        area = round_down(usable // writers - granularity, granularity * layout.pool_cards)
        stride = area + granularity
        if area >= blocks * LINE_BYTES:
            break
    else:  # no room for that: areas are packed, line by line
        area = stride = round_down(layout.slot_bytes // writers, LINE_BYTES)
    piece = round_down(area // blocks, LINE_BYTES)
    return tuple(Region(0, layout.pool_cards, granularity, 0, w * stride, area) for w in range(writers)), piece


def _range_per_writer(layout: Layout, writers: int, blocks: int, nbytes: int) -> tuple[tuple[Region, ...], int]:
    cards, stripe = layout.pool_cards, layout.pool_cards * layout.interleave_bytes
    shared = writers > cards and writers % cards  # or some cards would have a writer more than others
    some_two = writers < cards < 2 * writers and nbytes * blocks >= EVEN_STRIPES * stripe  # or some writers one card
    if shared or some_two:
        return _over_all_cards(layout, writers, blocks, nbytes)
    sharers = -(-writers // layout.pool_cards)
    per_card = layout.slot_card_bytes // sharers
    granularity = next((g for g in _granularities(layout) if g <= per_card), LINE_BYTES)
    per_card = round_down(per_card, granularity)
    ranges = [rank_cards(w, writers, layout.pool_cards) for w in range(writers)]
    piece = round_down(min(r.cards for r in ranges) * per_card // blocks, LINE_BYTES)
    regions = (
        Region(r.first_card, r.cards, granularity, r.sharers_before * per_card, 0, piece * blocks) for r in ranges
    )
    return tuple(regions), piece


@lru_cache(64)
def adjacent(layout: Layout, writers: int, blocks: int, nbytes: int) -> tuple[Region, int]:
    """Place blocks one after another in a slot, over all cards; return the region and the bytes of a block that fit."""
    count, cards = writers * blocks, layout.pool_cards
    wanted = min(count * round_up(nbytes, LINE_BYTES), layout.slot_bytes)
    rooms = ((g, round_down(layout.slot_card_bytes, g) * cards) for g in _granularities(layout) if g * cards <= wanted)
    fitting = ((granularity, room) for granularity, room in rooms if room >= count * LINE_BYTES)
    granularity, room = next(fitting, (LINE_BYTES, layout.slot_bytes))
    piece = min(round_down(room // count, LINE_BYTES), round_up(nbytes, LINE_BYTES))
    _check_room(layout, writers, blocks, piece)
    return Region(0, cards, granularity, 0, 0, count * piece), piece


def in_strip(
    b: PartBuilder, rank: int, offset: int, nbytes: int, *, writer_bytes: int = 0, first_writer: int = 0
) -> Region:
    """Place an array in a rank's strip of the heap, in blocks that peers write or, for 0 ``writer_bytes``, the rank."""
    strip = b.layout.heap_strip(rank)
    if not 0 <= offset <= strip.nbytes - nbytes:
        raise DeclinedError(
            f"{b.call}: {nbytes} bytes at {offset} do not lie in the heap, which has {strip.nbytes} bytes a rank: "
            f"make the communicator with a larger heap_bytes"
        )
    return Region(strip.card, 1, LINE_BYTES, strip.offset, offset, nbytes, True, writer_bytes, first_writer)


def _check_room(layout: Layout, writers: int, blocks: int, piece: int) -> None:
    if piece < LINE_BYTES:
        raise DeclinedError(
            f"a slot of {layout.slot_bytes} bytes is too small for {writers} x {blocks} blocks of at least "
            f"{LINE_BYTES} bytes: give the communicator a larger region or fewer ranks"
        )
