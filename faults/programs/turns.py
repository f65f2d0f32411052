"""Turns of a schedule: a thread and its steps, or a move as a step of its own: of a line, or what breaks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

MOVE_TURNS = 1 << 16  # as in native/moves.h
CRASH, POISON, LOSE = 3, 4, 5
PAST = 6  # a store past the cache arrives
# A line leaves its cache in the middle of a store: of the words that the store changes, the first one was there, the
# last one, all but the last, or all but the first.
TEARS = (17, 25, 23, 31)


class ScheduledMove(NamedTuple):
    """A move in a schedule."""

    action: int
    host: int
    pool: int
    line: int
    step: int


def moves_in(turns: Sequence[tuple[int, int]], *actions: int) -> Iterator[ScheduledMove]:
    """Yield the moves of these kinds in turns."""
    for k, (thread, line) in enumerate(turns):
        if thread >= MOVE_TURNS and thread & 255 in actions:
            yield ScheduledMove(thread & 255, thread >> 8 & 15, thread >> 12 & 15, line, steps_of(turns[: k + 1]))


def crash_in(turns: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the host that crashes in turns, and the step."""
    return next(((its.host, its.step) for its in moves_in(turns, CRASH)), None)


def damage_in(turns: Sequence[tuple[int, int]]) -> ScheduledMove | None:
    """Return the move that damages a line or a card in turns."""
    return next(moves_in(turns, POISON, LOSE), None)


def steps_of(turns: Sequence[tuple[int, int]]) -> int:
    """Count the steps of turns; a move is one."""
    return sum(1 if thread >= MOVE_TURNS else steps for thread, steps in turns)
