"""Where the blocks of two levels lie.

Blocks across clusters lie in the pool. Those inside lie in the ranks' own memories if there are such, else in the pool.
"""

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from collectives.builder.slots import place
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Layout, Region
from cxlemu.rounding import round_down


class Writers(NamedTuple):
    ranks: tuple[int, ...]
    blocks: int


@lru_cache(64)  # the same for all ranks
def placed(
    layout: Layout, inside: tuple[Writers, ...], across: tuple[Writers, ...], nbytes: int
) -> tuple[tuple[Region, ...], int]:
    """Place both levels' blocks in a slot: regions of writers inside, then across; and what fits of a block."""
    if not layout.owned:
        return _in_pool(layout, (*inside, *across), nbytes)
    size, own = layout.slot_card_bytes, []
    for group in inside:
        own += [Region(layout.pool_cards + rank, 1, LINE_BYTES, 0, 0, size) for rank in group.ranks]
    regions, piece = _in_pool(layout, across, nbytes)
    return (*own, *regions), min(piece, *(round_down(size // group.blocks, LINE_BYTES) for group in inside))


def _in_pool(layout: Layout, groups: tuple[Writers, ...], nbytes: int) -> tuple[tuple[Region, ...], int]:
    """Place each group's blocks in a part of the slot of its own."""
    shares = [len(group.ranks) * group.blocks for group in groups]
    regions: list[Region] = []
    pieces = []
    for number, group in enumerate(groups):
        begin, end = (
            round_down(layout.slot_card_bytes * sum(shares[:n]) // sum(shares), LINE_BYTES)
            for n in (number, number + 1)
        )
        part = replace(layout, slot_card_bytes=end - begin)
        placed, piece = place(part, len(group.ranks), group.blocks, nbytes, "ranges")
        regions += [replace(region, base=region.base + begin) for region in placed]
        pieces.append(piece)
    return tuple(regions), min(pieces)
