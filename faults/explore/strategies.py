"""Policies for programs that are too large to be searched whole. Each chooses among enabled moves and knows no more.

A `ScheduleBound` leaves executions out: those that cost more than it allows. A `Walk` follows one execution at a time.
Nature's voluntary moves (evictions, drops, prefetches) cost something or take luck; what is posted arrives by itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from cxlemu.errors import ArgumentError
from faults.machine.schedule import VOLUNTARY, Act, MachineMove


class ScheduleBound(Protocol):
    """Says what each move costs, and what an execution may cost altogether."""

    @property
    def limit(self) -> int: ...

    def cost(self, last: MachineMove | None, move: MachineMove, moves: Sequence[MachineMove]) -> int:
        """Return what one of the enabled ``moves`` costs after the last move of a thread, if there was one."""
        ...


@dataclass(frozen=True)
class Preemptions:
    """Leaving a thread that could go on costs one (Musuvathi and Qadeer 2007), and so does a voluntary move."""

    limit: int  # what an execution may cost at most

    def cost(self, last: MachineMove | None, move: MachineMove, moves: Sequence[MachineMove]) -> int:
        """Return 1 for a preemption or a voluntary move, else 0; for the arguments see `ScheduleBound.cost`."""
        if move.act in VOLUNTARY:
            return 1
        return int(move.act == Act.STEP and last in moves and last != move)


@dataclass(frozen=True)
class Delays:
    """Passing over a move of one fixed scheduler costs one, and so does a voluntary move.

    This is the delay bound of Emmi, Qadeer and Rakamaric (2011). The scheduler goes on with the thread that went last,
    else with the first in order, unless it is delayed.
    """

    limit: int  # what an execution may cost at most

    def cost(self, last: MachineMove | None, move: MachineMove, moves: Sequence[MachineMove]) -> int:
        """Return how many moves are passed over, 1 for a voluntary move; for the arguments see `ScheduleBound.cost`."""
        if move.act in VOLUNTARY:
            return 1
        order = [machine_move for machine_move in moves if machine_move.act not in VOLUNTARY]
        begin = order.index(last) if last in order else 0
        return (order.index(move) - begin) % len(order)


class Walk(Protocol):
    """Chooses the moves of one execution after another."""

    def begin(self, random: Random) -> None:
        """Begin a new execution, whose choices ``random`` makes."""
        ...

    def choose(self, moves: Sequence[MachineMove], been_here: bool) -> MachineMove:
        """Choose the next move of all that are enabled; ``been_here``: this execution was in this very state before."""
        ...


class RandomWalk:
    """Makes a voluntary move one time in four, if there is one; else one of the others, all equally likely."""

    def begin(self, random: Random) -> None:
        """Begin a new execution, whose choices ``random`` makes."""
        self._random = random

    def choose(self, moves: Sequence[MachineMove], been_here: bool) -> MachineMove:
        """Choose the next move; for the arguments see `Walk.choose`."""
        fair = [move for move in moves if move.act not in VOLUNTARY]
        voluntary = [move for move in moves if move.act in VOLUNTARY]
        return self._random.choice(voluntary if voluntary and self._random.random() < 0.25 else fair)


class PCT:
    """A walk by random priorities of threads and arrivals (Burckhardt et al. 2010).

    At ``depth`` - 1 random moments the move of the highest priority falls behind all others, or nature makes a
    voluntary move. In a state in which this execution was before, that move falls behind as well.
    """

    def __init__(self, depth: int) -> None:
        """Make the walk; ``depth`` is one more than the count of random moments."""
        self._depth = depth
        self._longest = 20  # most moves of any execution so far, among which the moments are drawn

    def begin(self, random: Random) -> None:
        """Begin a new execution: forget all priorities, and draw its moments."""
        self._random = random
        self._priorities: dict[MachineMove, float] = {}
        self._lowest = 0.0
        self._done = 0
        self._moments = {random.randrange(self._longest) for _ in range(self._depth - 1)}

    def choose(self, moves: Sequence[MachineMove], been_here: bool) -> MachineMove:
        """Choose the next move; for the arguments see `Walk.choose`."""
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
    """Searches every execution."""


Strategy = Exhaustive | Preemptions | Delays | RandomWalk | PCT


def parse(text: str) -> Strategy:
    """Read ``exhaustive``, ``preemption:K``, ``delay:K``, ``pct:D`` or ``random``; K is from 0 and D from 1 to 999."""
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
