"""Blocks of every rank for every other, placed so that those of one writer and those for one reader are one range each.

A reader's blocks lie on cards of its own, one writer's behind the other's. A writer's blocks then lie side by side over
the cards of consecutive readers: a row of the same memory of which readers have columns. Where there are more readers
than cards, they are cut into groups, behind each other on the same cards, and a writer has a row in each of them.
"""

from functools import lru_cache
from typing import NamedTuple

from collectives.builder.slots import GRANULE_LEAST_BYTES
from cxlemu.errors import DeclinedError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Layout, Region
from cxlemu.rounding import round_down, round_up

GROUPS_MORE = 4  # at most this many times the fewest groups, so that all cards are used alike


class Crosswise(NamedTuple):
    """Where the blocks of all ranks for all ranks lie in a slot."""

    rows: tuple[Region, ...]  # for each group of readers, the region in which the rows of all writers follow each other
    # for each reader, the region in which the blocks of all writers for it follow each other
    columns: tuple[Region, ...]
    readers: int  # how many readers are in a group; the last one may have fewer
    place_bytes: int  # a block's place in a row and in a column, in bytes


@lru_cache(64)  # the same for all ranks
def crosswise(layout: Layout, nbytes: int) -> Crosswise:
    """Place blocks of every rank for every rank in a slot."""
    ranks = layout.ranks
    most = min(nbytes, layout.slot_bytes // ranks**2) // GRANULE_LEAST_BYTES
    cards = _cards_of_each(ranks, layout.pool_cards, max(1, most))
    readers = min(layout.pool_cards // cards, ranks)
    groups = -(-ranks // readers)
    granule = round_down(layout.slot_card_bytes // (groups * ranks), LINE_BYTES)
    if not granule:
        raise DeclinedError(
            f"a slot of {layout.slot_card_bytes} bytes a card is too small for {ranks} x {ranks} blocks of at least "
            f"{LINE_BYTES} bytes on {layout.pool_cards} cards: give the communicator a larger region or fewer ranks"
        )
    rounds = -(-nbytes // (granule * cards))
    granule = round_up(-(-nbytes // (rounds * cards)), LINE_BYTES)  # all rounds alike, none of which moves little
    place, group_bytes = granule * cards, ranks * granule
    return Crosswise(
        tuple(
            Region(0, readers * cards, granule, group * group_bytes, 0, ranks * readers * place)
            for group in range(groups)
        ),
        tuple(
            Region(begin * cards, cards, granule, group * group_bytes, 0, ranks * place)
            for group, begin in (divmod(reader, readers) for reader in range(ranks))
        ),
        readers,
        place,
    )


def _cards_of_each(readers: int, cards: int, most: int) -> int:
    """Choose how many cards each reader has: the number that loads the busiest card least, in few groups of readers."""

    def groups(each: int) -> int:
        return -(-readers // (cards // each))

    few = GROUPS_MORE * groups(1)
    possible = [each for each in range(1, min(most, cards) + 1) if groups(each) <= few]
    return min(possible, key=lambda each: (groups(each) / each, groups(each)))
