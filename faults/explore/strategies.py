"""Policies for programs that are too large to be searched whole. Each chooses among enabled moves and knows no more.

A `ScheduleBound` leaves executions out: those that cost more than it allows. A `Walk` follows one execution at a time.
Nature's voluntary moves (evictions, drops, prefetches) cost something or take luck; what is posted arrives by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from cxlemu.errors import ArgumentError
from faults.machine.schedule import VOLUNTARY, Act, MachineMove


class ScheduleBound(Protocol):
    @property
    def limit(self) -> int: ...

    def cost(self, last: MachineMove | None, move: MachineMove, moves: Sequence[MachineMove]) -> int:
        """Of ``move`` among all enabled ``moves``; ``last`` is the last move of a thread."""
        ...


@dataclass(frozen=True)
class Preemptions:
    """Leaving a thread that could go on costs one (Musuvathi and Qadeer 2007), and so does a voluntary move."""

    limit: int

    def cost(self, last: MachineMove | None, move: MachineMove, moves: Sequence[MachineMove]) -> int:
        if move.act in VOLUNTARY:
            return 1
        return int(move.act == Act.STEP and last in moves and last != move)


@dataclass(frozen=True)
class Delays:
    """One scheduler that goes on with the thread that went last, else with the next in order, unless it is delayed
    (Emmi, Qadeer and Rakamaric 2011): passing over a move costs one, and so does a voluntary move."""

    limit: int

    def cost(self, last: MachineMove | None, move: MachineMove, moves: Sequence[MachineMove]) -> int:
        if move.act in VOLUNTARY:
            return 1
        order = [other for other in moves if other.act not in VOLUNTARY]
        begin = order.index(last) if last in order else 0
        return (order.index(move) - begin) % len(order)


class Walk(Protocol):
    def begin(self, random: Random) -> None:
        """A new execution."""
        ...

    def choose(self, moves: Sequence[MachineMove], been_here: bool) -> MachineMove:
        """``been_here``: this execution was in this very state before."""
        ...


class RandomWalk:
    """A voluntary move one time in four, as long as something else can move; all alike otherwise."""

    def begin(self, random: Random) -> None:
        self._random = random

    def choose(self, moves: Sequence[MachineMove], been_here: bool) -> MachineMove:
        fair = [move for move in moves if move.act not in VOLUNTARY]
        voluntary = [move for move in moves if move.act in VOLUNTARY]
        return self._random.choice(voluntary if voluntary and self._random.random() < 0.25 else fair)


class PCT:
    """Random priorities for threads and arrivals, and ``depth`` - 1 random moments that change something (Burckhardt et
    al. 2010): the first one in order falls behind all others, or nature makes a voluntary move. So does one that spins.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._longest = 20  # moves of an execution so far, among which the moments are drawn

    def begin(self, random: Random) -> None:
        self._random = random
        self._priorities: dict[MachineMove, float] = {}
        self._lowest = 0.0
        self._done = 0
        self._moments = {random.randrange(self._longest) for _ in range(self._depth - 1)}

    def choose(self, moves: Sequence[MachineMove], been_here: bool) -> MachineMove:
        self._done += 1
        self._longest = max(self._longest, self._done)
        voluntary = [move for move in moves if move.act in VOLUNTARY]
        if self._done - 1 in self._moments and voluntary and self._random.random() < 0.5:
            return self._random.choice(voluntary)
        if self._done - 1 in self._moments or been_here:
            self._lowest -= 1
            self._priorities[self._first(moves)] = self._lowest
        return self._first(moves)

    def _first(self, moves: Sequence[MachineMove]) -> MachineMove:
        return max((move for move in moves if move.act not in VOLUNTARY), key=self._priority)

    def _priority(self, move: MachineMove) -> float:
        if move not in self._priorities:
            self._priorities[move] = self._random.random()
        return self._priorities[move]


@dataclass(frozen=True)
class Exhaustive:
    """Every execution."""


Strategy = Exhaustive | Preemptions | Delays | RandomWalk | PCT


def parse(text: str) -> Strategy:
    """``exhaustive``, ``preemption:2``, ``delay:2``, ``random`` or ``pct:3``. Raises ArgumentError for others."""
    name, _, number = text.partition(":")
    if text == "exhaustive":
        return Exhaustive()
    if text == "random":
        return RandomWalk()
    if number.isascii() and number.isdigit() and len(number) <= 3:
        if name == "preemption":
            return Preemptions(int(number))
        if name == "delay":
            return Delays(int(number))
        if name == "pct" and int(number) >= 1:
            return PCT(int(number))
    raise ArgumentError(f"--strategy {text!r:.60} is not one of exhaustive, preemption:K, delay:K, pct:D or random")
