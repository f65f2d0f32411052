"""Chooses how large a communicator's ring and heap are, apart from what they mean (cxlemu.plan.layout)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from collectives.defaults import REGION_BYTES
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Layout
from cxlemu.plan.layout import DATA_ALIGN_BYTES
from cxlemu.pool.arena import ARENA_ALIGN_BYTES, Arena
from cxlemu.pool.board import board_bytes
from cxlemu.pool.ledger import ledger_bytes
from cxlemu.pool.superblock import CARD_BYTES_MAX, data_offset
from cxlemu.rounding import round_down, round_up
from cxlemu.topology.clusters import memories_behind_pool

if TYPE_CHECKING:
    from cxlemu.topology import Topology

SLOTS_MIN, SLOTS_MAX = 4, 16  # deep enough that a writer seldom waits for its slowest reader
SLOT_BYTES_PER_RANK = 128 << 10  # each rank's least share of a slot where there are more than SLOTS_MIN
MIN_DOORBELLS_PER_RANK = 64
GROUP_SHARE = 8  # a group takes at most this part of the room that is free


def layout_for(
    ranks: int,
    cards: int,
    card_bytes: int,
    interleave_bytes: int,
    *,
    region_bytes: int = REGION_BYTES,
    owned: bool = False,
) -> Layout:
    """Lay out a ring of about ``region_bytes`` of data that takes at most ``card_bytes`` of every card."""
    doorbells = max(MIN_DOORBELLS_PER_RANK, 2 * ranks)  # all-to-all needs one per peer, and some for chunks
    slots = slots_in(region_bytes, ranks, cards, interleave_bytes)
    bare = Layout(ranks, cards, slots, 0, doorbells, interleave_bytes)
    if owned:
        own = max(MIN_DOORBELLS_PER_RANK, ranks)
        bare = replace(bare, cards=cards + ranks, doorbells_per_rank=doorbells + own, owned=True, own_doorbells=own)
    per_slot = min((card_bytes - bare.data_offset) // slots, region_bytes // (slots * cards))
    granule = interleave_bytes if per_slot >= interleave_bytes else LINE_BYTES
    slot_card_bytes = per_slot // granule * granule
    if slot_card_bytes * cards < ranks * LINE_BYTES:
        least = -(-ranks // cards) * LINE_BYTES * slots
        if region_bytes < least * cards:
            raise ArgumentError(
                f"a ring of {region_bytes} bytes has no line for each of {ranks} ranks in {slots} slots on {cards} "
                f"cards: it needs at least {least * cards} bytes"
            )
        raise ArgumentError(
            f"a communicator of {ranks} ranks needs {bare.data_offset + least} bytes or more on each of {cards} cards, "
            f"but there are {max(card_bytes, 0)}: give the pool larger cards, or make fewer communicators"
        )
    return replace(bare, slot_card_bytes=slot_card_bytes)


def slots_in(region_bytes: int, ranks: int, cards: int, interleave_bytes: int) -> int:
    """Choose how many slots a ring has, a power of two: each has a granule on every card, and room for all ranks."""
    least = max(ranks * SLOT_BYTES_PER_RANK, cards * interleave_bytes)
    return min(max(1 << (max(region_bytes // least, 1).bit_length() - 1), SLOTS_MIN), SLOTS_MAX)


def layout_in(
    room_bytes: int,
    ranks: int,
    cards: int,
    interleave_bytes: int,
    *,
    region_bytes: int = REGION_BYTES,
    heap_bytes: int | None = None,
    ring_room_bytes: int | None = None,
    owned: bool = False,
) -> Layout:
    """Lay out a communicator's ring and heap, beside its board."""
    room_bytes -= round_up(board_bytes(ranks), ARENA_ALIGN_BYTES)
    most = ring_room(room_bytes) if ring_room_bytes is None else ring_room_bytes
    ring = layout_for(ranks, cards, most, interleave_bytes, region_bytes=region_bytes, owned=owned)
    sharers = -(-ranks // cards)
    if heap_bytes is None:
        heap_bytes = round_down(room_bytes // 4 // sharers, DATA_ALIGN_BYTES)
    most = round_down((room_bytes - ring.extent_bytes) // sharers, DATA_ALIGN_BYTES)
    if not 0 <= heap_bytes <= most:
        raise ArgumentError(
            f"a heap of {heap_bytes} bytes a rank is not possible: this communicator has room for 0 to {most}; give "
            f"the pool larger cards, or make fewer communicators"
        )
    return replace(ring, heap_card_bytes=sharers * round_up(heap_bytes, DATA_ALIGN_BYTES))


def world_share(arena: Arena) -> Arena:
    """Return the share of the pool that a world communicator's ring and heap are measured by: half.

    A ring takes at most half of that share (`ring_room`), and a heap a quarter.
    """
    return arena.take(arena.nbytes // 2)


def ring_room(arena_bytes: int) -> int:
    """Return how many bytes of a communicator's room on every card its own ring may take: half."""
    return arena_bytes // 2


def room_of(layout: Layout) -> int:
    """Return how many bytes of every card a communicator's board, ring and heap take together."""
    return round_up(board_bytes(layout.ranks), ARENA_ALIGN_BYTES) + layout.extent_bytes


@lru_cache(maxsize=64)  # many groups of equal sizes are made
def group_room(
    largest_bytes: int,
    ranks: int,
    cards: int,
    interleave_bytes: int,
    *,
    region_bytes: int = REGION_BYTES,
    heap_bytes: int | None = None,
) -> int:
    """Compute the room for a group of ranks: what it asks for, but no more than an eighth of what is free.

    That leaves room for many others. Where an eighth is too little for a ring of the smallest size, it is more.
    """
    asked = layout_for(ranks, cards, CARD_BYTES_MAX, interleave_bytes, region_bytes=region_bytes).extent_bytes
    board = round_up(board_bytes(ranks), ARENA_ALIGN_BYTES)
    heap = 0 if heap_bytes is None else _heap_card_bytes(heap_bytes, ranks, cards)
    wanted = board + asked + (largest_bytes // (2 * GROUP_SHARE) if heap_bytes is None else 0)
    size = min(wanted, max(largest_bytes - heap, 0) // GROUP_SHARE)
    while True:
        room = round_up(size + heap, ARENA_ALIGN_BYTES)
        try:
            group_layout(room, ranks, cards, interleave_bytes, region_bytes=region_bytes, heap_bytes=heap_bytes)
            return room
        except ArgumentError:
            if room >= largest_bytes:
                raise
            size = min(max(2 * size, ARENA_ALIGN_BYTES), largest_bytes - heap)


@lru_cache(maxsize=64)
def group_layout(
    room_bytes: int,
    ranks: int,
    cards: int,
    interleave_bytes: int,
    *,
    region_bytes: int = REGION_BYTES,
    heap_bytes: int | None = None,
) -> Layout:
    """Lay out a group's ring and heap in its room."""
    left = room_bytes - round_up(board_bytes(ranks), ARENA_ALIGN_BYTES)
    heap = 0 if heap_bytes is None else _heap_card_bytes(heap_bytes, ranks, cards)
    most = left // 4 * 3 if heap_bytes is None else left - heap
    ring = layout_for(ranks, cards, most, interleave_bytes, region_bytes=region_bytes)
    if heap_bytes is None:
        sharers = -(-ranks // cards)
        heap = sharers * round_down((left - ring.extent_bytes) // sharers, DATA_ALIGN_BYTES)
    return replace(ring, heap_card_bytes=heap)


def _heap_card_bytes(heap_bytes: int, ranks: int, cards: int) -> int:
    return -(-ranks // cards) * round_up(heap_bytes, DATA_ALIGN_BYTES)


def check_fits(layout: Layout, room_bytes: int, ranks: int, cards: int, interleave_bytes: int, *, owned: bool) -> None:
    """Check that a given layout, such as a saved plan's, fits this world."""
    if layout.ranks != ranks:
        raise ArgumentError(f"a ring for {layout.ranks} ranks cannot serve {ranks}")
    there = (cards, interleave_bytes, owned)
    if (layout.pool_cards, layout.interleave_bytes, layout.owned) != there:
        here = f"{cards} cards" + f" and {ranks} memories of ranks" * owned
        raise ArgumentError(
            f"a ring on {layout.cards_text} interleaved by {layout.interleave_bytes} bytes does not lie on {here} "
            f"interleaved by {interleave_bytes}: choose the topology that it was made for"
        )
    room_bytes -= round_up(board_bytes(ranks), ARENA_ALIGN_BYTES)
    if layout.extent_bytes > room_bytes:
        raise ArgumentError(
            f"a ring and heap of {layout.extent_bytes} bytes a card do not fit in {max(room_bytes, 0)}: choose the "
            f"topology that they were made for"
        )


def check_fits_world(layout: Layout, topology: Topology, ranks: int) -> None:
    """Check that the first communicator of a world can have this layout, before the world exists."""
    end = topology.card_bytes - ledger_bytes(ranks, topology.card_bytes)
    room = world_share(Arena(data_offset(ranks), end)).nbytes
    cards, owned = topology.pool_card_count, memories_behind_pool(topology, ranks) > 0
    check_fits(layout, room, ranks, cards, topology.interleave_bytes, owned=owned)


def world_layout(topology: Topology, ranks: int, *, region_bytes: int = REGION_BYTES) -> Layout:
    """Lay out the first communicator of a world, before the world exists."""
    end = topology.card_bytes - ledger_bytes(ranks, topology.card_bytes)
    room = world_share(Arena(data_offset(ranks), end)).nbytes
    cards, owned = topology.pool_card_count, memories_behind_pool(topology, ranks) > 0
    return layout_in(room, ranks, cards, topology.interleave_bytes, region_bytes=region_bytes, owned=owned)
