"""What moves between tiers, and when. Policies choose pages and know nothing else: neither bytes nor time.

``Static`` moves nothing. ``Lru`` brings what was touched to the nearest tier. ``Hotness`` counts, and moves what is
clearly hotter than what it displaces. ``Prefetch`` knows what will be touched, and brings it in time.
"""

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from studies.tiering.placement import Move, Placement


class Policy(Protocol):
    """Decides which pages move, and when."""

    def begin(self, placement: Placement, schedule: Sequence[int]) -> list[Move]:
        """Return what moves before the first access; a policy updates the placement with every move."""
        ...

    def touched(self, step: int, page: int) -> list[Move]:
        """Return what moves after access number ``step``, from 0."""
        ...


class Static:
    """Pages stay where they were placed."""

    def begin(self, placement: Placement, schedule: Sequence[int]) -> list[Move]:
        return []

    def touched(self, step: int, page: int) -> list[Move]:
        return []


class Lru:
    """Brings the page touched to tier 0; a tier that is full then hands its least recently used page one tier further.

    So the tiers are one stack of pages by their last use, cut where tiers are full.
    """

    def begin(self, placement: Placement, schedule: Sequence[int]) -> list[Move]:
        """Take pages of a tier as used in the order of their numbers; nothing moves."""
        self._placement = placement
        self._tiers = [OrderedDict.fromkeys(placement.pages_in(tier)) for tier in range(len(placement.room))]
        return []

    def touched(self, step: int, page: int) -> list[Move]:
        """Bring the page to tier 0, and push others down where tiers are full."""
        tier_of, room = self._placement.tier_of, self._placement.room
        here = int(tier_of[page])
        self._tiers[here].pop(page)
        self._tiers[0][page] = None
        down: dict[int, int] = {}  # page: where it ends up, past tiers without any room
        for tier in range(here):
            if len(self._tiers[tier]) <= room[tier]:
                break
            oldest, _ = self._tiers[tier].popitem(last=False)
            self._tiers[tier + 1][oldest] = None
            down[oldest] = tier + 1
        if here == 0:
            return []
        return _in_turn(self._placement, down | {page: 0})


class Hotness:
    """Counts accesses to each page, and moves what is clearly hotter than what it displaces.

    Pages that are about equally hot stay: one moves only if it is at least ``HOT`` and ``ratio`` times as hot as the
    other. Counts halve every ``half_life`` accesses; at most ``moves_max`` pages go up after every ``period`` of them.
    """

    HOT = 2.0

    def __init__(self, period: int = 128, half_life: int = 512, ratio: float = 2.0, moves_max: int = 64) -> None:
        self.period, self.ratio, self.moves_max = period, ratio, moves_max
        self.kept = 0.5 ** (period / half_life)

    def begin(self, placement: Placement, schedule: Sequence[int]) -> list[Move]:
        self._placement = placement
        self._heat = np.zeros(placement.tier_of.size)
        return []

    def touched(self, step: int, page: int) -> list[Move]:
        """Count the access, and every ``period`` accesses move hot pages up."""
        self._heat[page] += 1
        if (step + 1) % self.period:
            return []
        moves: list[Move] = []
        for tier in range(len(self._placement.room) - 1):
            moves += self._up_to(tier, self.moves_max - sum(move.target < move.source for move in moves))
        self._heat *= self.kept
        return moves

    def _up_to(self, tier: int, count: int) -> list[Move]:
        heat, tier_of = self._heat, self._placement.tier_of
        further = np.flatnonzero((heat >= self.HOT) & (tier_of > tier))
        hottest = _first(further, -heat[further], count)
        here = np.flatnonzero(tier_of == tier)
        coldest = deque(_first(here, heat[here], len(hottest)))
        moves: list[Move] = []
        for page in hottest:
            if self._placement.free[tier]:
                moves.append(self._placement.move(page, tier))
            elif coldest and heat[page] >= self.ratio * heat[coldest[0]]:
                moves += self._placement.exchange(page, coldest.popleft())
            else:
                break
        return moves


class Prefetch:
    """Brings pages to tier 0 before they are touched.

    A page comes in place of the one that is needed last, if that is later still (Belady's rule). It needs the schedule,
    which a training step or a batch of decoding has.
    """

    def __init__(self, ahead: int = 16) -> None:
        self.ahead = ahead

    def begin(self, placement: Placement, schedule: Sequence[int]) -> list[Move]:
        """Read the schedule, and bring the pages of its first ``ahead`` accesses."""
        self._placement, self._schedule = placement, schedule
        self._uses: list[deque[int]] = [deque() for _ in range(placement.tier_of.size)]
        for step, page in enumerate(schedule):
            self._uses[page].append(step)
        self._last = [(-self._next(page), page) for page in placement.pages_in(0)]
        heapq.heapify(self._last)
        return [move for step in range(min(self.ahead, len(schedule))) for move in self._bring(schedule[step])]

    def touched(self, step: int, page: int) -> list[Move]:
        """Bring the page that is touched ``ahead`` accesses later."""
        self._uses[page].popleft()
        if self._placement.tier_of[page] == 0:
            heapq.heappush(self._last, (-self._next(page), page))
        soon = step + self.ahead
        return self._bring(self._schedule[soon]) if soon < len(self._schedule) else []

    def _next(self, page: int) -> int:
        return self._uses[page][0] if self._uses[page] else len(self._schedule)

    def _bring(self, page: int) -> list[Move]:
        if self._placement.tier_of[page] == 0:
            return []
        if self._placement.free[0]:
            moves = [self._placement.move(page, 0)]
        else:
            victim = self._needed_last()
            if victim is None or self._next(victim) <= self._next(page):
                return []
            heapq.heappop(self._last)
            moves = self._placement.exchange(page, victim)
        heapq.heappush(self._last, (-self._next(page), page))
        return moves

    def _needed_last(self) -> int | None:
        """Find the page of tier 0 that is needed last.

        Entries of pages that have moved, or been touched since, are stale.
        """
        while self._last:
            minus_next, page = self._last[0]
            if self._placement.tier_of[page] == 0 and -minus_next == self._next(page):
                return page
            heapq.heappop(self._last)
        return None


def _first(pages: NDArray[np.int64], keys: NDArray[np.float64], count: int) -> list[int]:
    """Choose the ``count`` pages with the smallest keys, in the order of their keys; of equal ones the first."""
    if count < 1:
        return []
    if count < pages.size:
        few = np.flatnonzero(keys <= np.partition(keys, count - 1)[count - 1])
        pages, keys = pages[few], keys[few]
    first: list[int] = pages[np.argsort(keys, kind="stable")][:count].tolist()
    return first


def _in_turn(placement: Placement, wanted: dict[int, int]) -> list[Move]:
    """Make all of these moves, of which each makes room for another: a buffer holds the last one's page meanwhile."""
    moves = [Move(page, int(placement.tier_of[page]), target) for page, target in wanted.items()]
    for move in moves:
        placement.tier_of[move.page] = move.target
        placement.free[move.source] += 1
        placement.free[move.target] -= 1
    return moves


POLICIES: dict[str, Callable[[], Policy]] = {"static": Static, "lru": Lru, "hotness": Hotness, "prefetch": Prefetch}
