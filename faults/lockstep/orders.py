"""Orders: small policies that choose the next move among the steps that may be tried. They know nothing else.

An order is asked for one move at a time. It may answer with a move of nature, and is then asked again.
"""

from __future__ import annotations

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
    return random.Random(seed).choice


def in_random_nature(seed: int, hosts: Sequence[int], lines: Sequence[Line], rate: float) -> Order:
    """A random order in which, with probability ``rate`` before each step, nature does something to one of these
    lines in the cache of one of these hosts."""
    rng = random.Random(seed)

    def choose(steps: Sequence[StreamStep]) -> LockstepMove:
        if lines and rng.random() < rate:
            return Nature(rng.choice(list(Action)), rng.choice(hosts), *rng.choice(lines))
        return rng.choice(steps)

    return choose


def after_each_step(order: Order, action: Action, lines: Sequence[tuple[int, int, int]]) -> Order:
    """The order, but between two steps nature does this to each of these (host, card, line)."""
    todo: list[Nature] = []

    def choose(steps: Sequence[StreamStep]) -> LockstepMove:
        if todo:
            return todo.pop()
        todo.extend(Nature(action, *line) for line in lines)
        return order(steps)

    return choose


def by(priority: Callable[[StreamStep], Any]) -> Order:
    """The step of least priority; among equals, the one that was chosen longest ago."""
    chosen_at: dict[StreamStep, int] = {}
    priority_of = cache(priority)
    clock = count()

    def choose(steps: Sequence[StreamStep]) -> StreamStep:
        step = min(steps, key=lambda step: (priority_of(step), chosen_at.get(step, -1)))
        chosen_at[step] = next(clock)
        return step

    return choose


def round_robin() -> Order:
    return by(lambda step: 0)


def hasty(rank: int) -> Order:
    """This rank goes on whenever it can: its peers are as slow as they can be."""
    return by(lambda step: step.rank != rank)


def slow(rank: int, stream: int | None = None) -> Order:
    """This rank, and of its streams this one, goes on only when nobody else can: its peers are eager."""
    return by(lambda step: (step.rank == rank, step == (rank, stream)))


def lagging(rank: int, stream: int) -> Order:
    """This stream goes on only when nobody else can, not even its rank's others."""
    return by(lambda step: step == (rank, stream))


def writers_first() -> Order:
    return by(lambda step: step.stream != PUBLISH)


def readers_first() -> Order:
    return by(lambda step: step.stream == PUBLISH)


def replay(schedule: Sequence[LockstepMove]) -> Order:
    """The schedule's moves, one after another, then round robin. Steps that cannot be made are passed over, so that
    what is left of a schedule from which moves were taken is a schedule, too."""
    moves, then = iter(schedule), round_robin()

    def choose(steps: Sequence[StreamStep]) -> LockstepMove:
        for move in moves:
            if isinstance(move, Nature) or move in steps:
                return move
        return then(steps)

    return choose
