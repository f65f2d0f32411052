"""A schedule is data: whose stream makes the next step, and what nature does to the caches in between.

    step RANK STREAM           this stream executes its next instruction
    evict HOST CARD LINE       the line leaves the host's cache; a dirty one goes to the pool at once
    prefetch HOST CARD LINE    the line comes into the host's cache, if it is not there, as the pool has it now
    land HOST CARD LINE        what the host has posted of the line, non-temporal stores too, reaches the pool

A line is a number of 64-byte lines from the start of the communicator's part of the card, so that a schedule does not
depend on where the communicator lies. As JSON a schedule is a list of such lists: ``["evict", 0, 1, 17]``.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from cxlemu.memory.adversary import Action
from faults.machine.schedule import named_moves

_NUMBERS = {"step": 2, **{action.value: 3 for action in Action}}


class StreamStep(NamedTuple):
    """A program's move: a stream of a rank executes its next instruction."""

    rank: int
    stream: int

    def __str__(self) -> str:
        return f"step {self.rank} {self.stream}"


class Nature(NamedTuple):
    action: Action
    host: int
    card: int
    line: int

    def __str__(self) -> str:
        return f"{self.action.value} {self.host} {self.card} {self.line}"


LockstepMove: TypeAlias = StreamStep | Nature


def to_json(moves: Iterable[LockstepMove]) -> list[list[str | int]]:
    return [
        ["step", move.rank, move.stream]
        if isinstance(move, StreamStep)
        else [move.action.value, move.host, move.card, move.line]
        for move in moves
    ]


def from_json(moves: object) -> list[LockstepMove]:
    named = named_moves(moves, _NUMBERS, '["step", 0, 1] or ["land", 0, 1, 17]')
    return [StreamStep(*numbers) if name == "step" else Nature(Action(name), *numbers) for name, numbers in named]
