"""Orders: small policies that choose the next move among the steps that may be tried. They know nothing else.

An order is asked for one move at a time. It may answer with a move of nature, and is then asked again.
"""

import random
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from typing import Any, TypeAlias

from cxlemu.memory.adversary import Action
from faults.lockstep.places import Line
from faults.lockstep.schedule import LockstepMove, Nature, StreamStep

PUBLISH, RETRIEVE = 0, 1  # streams of an overlapped plan

Order: TypeAlias = Callable[[Sequence[StreamStep]], LockstepMove]


def in_random_order(seed: int) -> Order:
    """Choose every step at random; the same seed gives the same choices."""
    return random.Random(seed).choice


def in_random_nature(seed: int, hosts: Sequence[int], lines: Sequence[Line], rate: float) -> Order:
    """Choose steps at random; before each, with probability ``rate``, nature disturbs one of the caches."""
    rng = random.Random(seed)

    def choose(steps: Sequence[StreamStep]) -> LockstepMove:
        if lines and rng.random() < rate:
            return Nature(rng.choice(list(Action)), rng.choice(hosts), *rng.choice(lines))
        return rng.choice(steps)

    return choose


class Disturbed:
    """An order in which nature does one action to every given line between two steps of another order."""

    def __init__(self, order: Order, action: Action, lines: Sequence[tuple[int, int, int]]) -> None:
        """Follow an order, and let nature act on lines (host, card, number), the last one first."""
        self.order = order
        self.moves = [Nature(action, *line) for line in lines]
        self._left: list[Nature] = []

    def __call__(self, steps: Sequence[StreamStep]) -> LockstepMove:
        if self._left:
            return self._left.pop()
        self._left.extend(self.moves)
        return self.order(steps)


class Ranked:
    """An order that takes the step of least priority; among equals, the one that was chosen longest ago."""

    def __init__(self, priority: Callable[[StreamStep], Any]) -> None:
        self.priority = priority
        self._chosen_at: dict[StreamStep, int] = {}
        self._priority_of = cache(priority)
        self._clock = count()

    @property
    def begun(self) -> bool:
        return bool(self._chosen_at)

    def __call__(self, steps: Sequence[StreamStep]) -> StreamStep:
        chosen_at, priority_of = self._chosen_at, self._priority_of
        step = min(steps, key=lambda step: (priority_of(step), chosen_at.get(step, -1)))
        chosen_at[step] = next(self._clock)
        return step


def after_each_step(order: Order, action: Action, lines: Sequence[tuple[int, int, int]]) -> Order:
    """Follow ``order``, but between two steps let nature do one action to every given line."""
    return Disturbed(order, action, lines)


def by(priority: Callable[[StreamStep], Any]) -> Order:
    """Take the step of least priority; among equals, the one that was chosen longest ago."""
    return Ranked(priority)


def round_robin() -> Order:
    """Take the step that was chosen longest ago."""
    return by(lambda step: 0)


def hasty(rank: int) -> Order:
    """Let this rank go on whenever it can: its peers are as slow as possible."""
    return by(lambda step: step.rank != rank)


def slow(rank: int, stream: int | None = None) -> Order:
    """Let a rank (and last of its streams ``stream``, if any) go on only when no other rank can."""
    return by(lambda step: (step.rank == rank, step == (rank, stream)))


def lagging(rank: int, stream: int) -> Order:
    """Let a stream go on only when no other one can, not even another one of its rank."""
    return by(lambda step: step == (rank, stream))


def replay(schedule: Sequence[LockstepMove]) -> Order:
    """Make a schedule's moves one after another, then go round robin.

    The order passes over steps that cannot be made now: if moves are removed from a schedule, the rest is a schedule.
    """
    moves, then = iter(schedule), round_robin()

    def choose(steps: Sequence[StreamStep]) -> LockstepMove:
        for move in moves:
            if isinstance(move, Nature) or move in steps:
                return move
        return then(steps)

    return choose
