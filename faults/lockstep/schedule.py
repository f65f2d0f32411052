"""A schedule is data: whose stream makes the next step, and what nature does to the caches in between.

    step RANK STREAM           this stream executes its next instruction
    evict HOST CARD LINE       the line leaves the host's cache; a dirty one goes to the pool at once
    prefetch HOST CARD LINE    the line comes into the host's cache, if it is not there, as the pool has it now
    land HOST CARD LINE        what the host has posted of the line, non-temporal stores too, reaches the pool

A line is a number of 64-byte lines from the start of the communicator's part of the card, so that a schedule does not
depend on where the communicator lies. As JSON a schedule is a list of such lists: ``["evict", 0, 1, 17]``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from cxlemu.errors import ArgumentError
from cxlemu.memory.adversary import Action

MOVES_MAX = 1_000_000
NUMBER_MAX = 2**31 - 1

_ACTIONS = {action.value: action for action in Action}


class StreamStep(NamedTuple):
    """A program's move: a stream of a rank executes its next instruction."""

    rank: int
    stream: int

    def __str__(self) -> str:
        return f"step {self.rank} {self.stream}"


class Nature(NamedTuple):
    """A move of nature on one line of one host."""

    action: Action
    host: int
    card: int
    line: int

    def __str__(self) -> str:
        return f"{self.action.value} {self.host} {self.card} {self.line}"


LockstepMove: TypeAlias = StreamStep | Nature


def to_json(moves: Iterable[LockstepMove]) -> list[list[str | int]]:
    """Write moves as lists, strings and numbers, which `from_json` reads."""
    return [
        ["step", move.rank, move.stream]
        if isinstance(move, StreamStep)
        else [move.action.value, move.host, move.card, move.line]
        for move in moves
    ]


def from_json(moves: object) -> list[LockstepMove]:
    """Read the schedule that `to_json` wrote.

    Raises:
        ArgumentError: An item is not a move; the message has the first such item.
    """
    if not isinstance(moves, list) or len(moves) > MOVES_MAX:
        raise ArgumentError(f"a schedule is a list of at most {MOVES_MAX} moves, such as ['step', 0, 1]")
    return [_move(number, move) for number, move in enumerate(moves)]


def _move(number: int, move: object) -> LockstepMove:
    if isinstance(move, list) and move and isinstance(move[0], str):
        name, places = move[0], move[1:]
        if all(type(place) is int and 0 <= place <= NUMBER_MAX for place in places):
            if name == "step" and len(places) == 2:
                return StreamStep(*places)
            if name in _ACTIONS and len(places) == 3:
                return Nature(_ACTIONS[name], *places)
    wanted = f"['step', rank, stream] or [{' | '.join(_ACTIONS)}, host, card, line]"
    raise ArgumentError(f"move {number} of a schedule is {wanted}, not {repr(move)[:80]}")


def steps(moves: Sequence[LockstepMove]) -> list[StreamStep]:
    """List the moves of a schedule that programs make."""
    return [move for move in moves if isinstance(move, StreamStep)]
