"""Where in a slot the ranks' areas lie: CCCL's placements (arXiv 2602.22457, section on interleaving).

- sequential: areas one after another, filling card 0 before card 1 (CCCL's naive allocation);
- over all cards: every area dealt round-robin over all cards, each starting on the next card (1-to-N and N-to-1);
- a range per writer: every writer's area on cards of its own (N-to-N).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Layout, Region
from cxlemu.plan.address import rank_cards
from cxlemu.rounding import round_down, round_up


@lru_cache(64)  # the same for all ranks, and a region for each of them
def place(layout: Layout, writers: int, blocks: int, nbytes: int, placement: str) -> tuple[tuple[Region, ...], int]:
    """Areas for ``writers`` ranks of ``blocks`` blocks each: their regions, and how much of a block fits in a slot.

    Raises ArgumentError when not even a line of every block fits.
    """
    areas = {"sequential": _sequential, "cards": _over_all_cards, "ranges": _range_per_writer}
    regions, piece = areas[placement](layout, writers, blocks, nbytes)
    if piece < LINE_BYTES:
        raise ArgumentError(
            f"a slot of {layout.slot_bytes} bytes is too small for {writers} x {blocks} blocks of at least "
            f"{LINE_BYTES} bytes: give the communicator a larger region or fewer ranks"
        )
    return regions, piece


def _granularities(layout: Layout) -> Iterator[int]:
    """The pool's interleaving, and smaller ones for slots that are too small for it."""
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
    for granularity in _granularities(layout):
        # An area is whole stripes, and a granule is left between two, so that the next one starts on the next card.
        usable = round_down(layout.slot_card_bytes, granularity) * layout.pool_cards
        area = round_down(usable // writers - granularity, granularity * layout.pool_cards)
        stride = area + granularity
        if area >= blocks * LINE_BYTES:
            break
    else:  # no room for such order: areas are packed, line by line
        area = stride = round_down(layout.slot_bytes // writers, LINE_BYTES)
    piece = round_down(area // blocks, LINE_BYTES)
    return tuple(Region(0, layout.pool_cards, granularity, 0, w * stride, area) for w in range(writers)), piece


def _range_per_writer(layout: Layout, writers: int, blocks: int, nbytes: int) -> tuple[tuple[Region, ...], int]:
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
