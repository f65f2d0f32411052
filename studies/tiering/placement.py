"""Which page lies in which tier. A page lies in one tier at a time, and no tier holds more than it has room for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Move:
    """A page that goes from one tier to another: it is read there and written here, each once."""

    page: int
    source: int
    target: int


class Placement:
    """Which page lies in which tier; tiers are numbered, and the nearest is 0."""

    def __init__(self, tier_of: NDArray[np.int64], room: Sequence[int]) -> None:
        if tier_of.size and not 0 <= tier_of.min() <= tier_of.max() < len(room):
            raise ArgumentError(f"pages lie in tiers 0 to {len(room) - 1}, not in {tier_of.min()} or {tier_of.max()}")
        held = np.bincount(tier_of, minlength=len(room))
        for tier, (pages, tier_pages) in enumerate(zip(held.tolist(), room, strict=True)):
            if pages > tier_pages:
                raise ArgumentError(f"tier {tier} has room for {tier_pages} pages, not for {pages}")
        self.tier_of = tier_of.copy()
        self.room = tuple(room)
        self.free = [tier_pages - pages for pages, tier_pages in zip(held.tolist(), room, strict=True)]

    def pages_in(self, tier: int) -> list[int]:
        pages: list[int] = np.flatnonzero(self.tier_of == tier).tolist()
        return pages

    def move(self, page: int, target: int) -> Move:
        if self.free[target] < 1:
            raise ArgumentError(f"page {page} does not fit tier {target}, which is full")
        source = int(self.tier_of[page])
        self.tier_of[page] = target
        self.free[source] += 1
        self.free[target] -= 1
        return Move(page, source, target)

    def exchange(self, page: int, other: int) -> list[Move]:
        """Exchange two pages of different tiers; neither tier needs room for that, as a buffer holds one page."""
        mine, tier = int(self.tier_of[page]), int(self.tier_of[other])
        self.tier_of[page], self.tier_of[other] = tier, mine
        return [Move(other, tier, mine), Move(page, mine, tier)]


def fill(order: Iterable[int], room: Sequence[int]) -> Placement:
    """Place pages in an order, each in the nearest tier that has room."""
    pages = np.fromiter(order, np.int64)
    if pages.size > sum(room):
        raise ArgumentError(f"{pages.size} pages do not fit tiers with room for {sum(room)}")
    tier_of = np.empty(pages.size, np.int64)
    tier_of[pages] = np.repeat(np.arange(len(room)), np.minimum(room, pages.size))[: pages.size]  # rooms may be huge
    return Placement(tier_of, room)
