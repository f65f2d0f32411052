"""Nature as an adversary: which lines it evicts, prefetches and lands, and when. Correct programs stay correct.

The adversary only chooses moves; the shadow memory carries them out. Its choices depend on the seed and on the
operations of its own rank and on nothing else (not on cache contents, time or other ranks), so a run can be repeated.
This is the definition; native/adversary.c draws the same numbers in the same order and so makes the same moves.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError
from cxlemu.memory.rates import AdversaryRates

_WINDOW_LINES = 256  # at most this many lines per move: disturbing 16 KiB says as much as disturbing 16 MiB
_WORD = (1 << 64) - 1
_LAPS = 32  # ranges remembered: a ring's slots come round again


@dataclass(slots=True)
class AdversaryStats:
    """Counts the lines that an adversary has evicted, prefetched and landed so far."""

    evictions: int = 0
    prefetches: int = 0
    landings: int = 0


class Action(Enum):
    """The kinds of moves, in the order of the fields of AdversaryRates."""

    EVICT = "evict"
    PREFETCH = "prefetch"
    LAND = "land"


_ACTIONS = tuple(Action)


class CacheMove(NamedTuple):
    """One move of nature: do ``action`` to the marked lines of a card."""

    action: Action
    card: int
    first: int
    among: NDArray[np.bool_]  # the lines of the window to which it happens, one flag per line from ``first`` on


class SplitMix64:
    """Generates random numbers (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014)."""

    def __init__(self, *key: int) -> None:
        """Seed the generator with non-negative numbers; the same ones in the same order give the same sequence."""
        self.state = 0
        for number in key:
            for shift in range(0, max(number.bit_length(), 1), 64):
                self.state ^= number >> shift & _WORD
                self.state = self.bits()

    def bits(self) -> int:
        """Draw 64 random bits, as a number from 0 to below 2^64."""
        self.state = self.state + 0x9E3779B97F4A7C15 & _WORD
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _WORD
        z = (z ^ z >> 27) * 0x94D049BB133111EB & _WORD
        return z ^ z >> 31

    def random(self) -> float:
        return (self.bits() >> 11) * 2.0**-53


class Adversary:
    """One rank's adversary: tell it what the rank touches, ask it for moves around each operation."""

    def __init__(self, seed: int, rates: AdversaryRates, *, host: int, rank: int, card_lines: int) -> None:
        if seed < 0:
            raise ArgumentError(f"an adversary's seed must not be negative, got {seed}")
        self._rng = SplitMix64(seed, host, rank)
        self.rates = rates
        self._rates: Sequence[float] = astuple(rates)
        self._card_lines = card_lines
        self._touched: deque[tuple[int, int, int]] = deque(maxlen=_LAPS)

    @property
    def state(self) -> int:
        """The state of the random numbers: an adversary that begins with it makes the same moves from here on."""
        return self._rng.state

    def touched(self, card: int, first: int, last: int) -> None:
        """Note a range of lines that the rank touches, at which later moves aim; an empty range is ignored.

        The adversary remembers the newest 32 ranges.
        """
        if first < last:
            self._touched.append((card, first, last))

    def moves(self) -> list[CacheMove]:
        """Draw nature's moves, at most one of each kind, in random order; none before the rank has touched anything."""
        draws = [self._rng.random() for _ in _ACTIONS]
        actions = [a for a, draw, rate in zip(_ACTIONS, draws, self._rates, strict=True) if draw < rate]
        if not actions or not self._touched:
            return []
        for last in range(len(actions) - 1, 0, -1):
            other = int(self._rng.random() * (last + 1))
            actions[last], actions[other] = actions[other], actions[last]
        return [self._aim(action) for action in actions]

    def _aim(self, action: Action) -> CacheMove:
        """Aim at the newest range (half of the time) or at any remembered one, or at a neighbour of that range."""
        newest, age, side, where, whole = (self._rng.random() for _ in range(5))
        card, first, last = self._touched[-1 if newest < 0.5 else -1 - int(age * len(self._touched))]
        range_lines = last - first
        window_lines = min(range_lines, _WINDOW_LINES)
        start = first + range_lines * (-1, 0, 0, 1)[int(side * 4)]
        start += int(where * (range_lines - window_lines + 1))
        start = min(max(start, 0), self._card_lines - window_lines)
        if whole < 0.5:
            return CacheMove(action, card, start, np.ones(window_lines, np.bool_))
        words = np.array([self._rng.bits() for _ in range(-(-window_lines // 64))], "<u8")
        among = np.unpackbits(words.view(np.uint8), count=window_lines, bitorder="little").view(np.bool_)
        return CacheMove(action, card, start, among)
