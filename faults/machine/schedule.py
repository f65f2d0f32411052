"""One execution, written down: the moves of threads and of nature in their order. It is data: JSON or a token."""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from cxlemu.errors import ArgumentError

MOVES_MAX = 1_000_000
NUMBER_MAX = 2**31 - 1


class Act(StrEnum):
    """What a move does. A thread makes STEP and AGAIN; all others are nature's."""

    STEP = "step"
    AGAIN = "again"  # a thread whose WAIT looked in vain flushes the line and looks once more
    # Posted writes arrive, and flushed lines leave, at some time:
    LAND = "land"  # the oldest posted write-back of a line is in the pool
    LAND_NT = "land_nt"  # the oldest non-temporal store of a rank to a line
    DROPPED = "dropped"  # a flush takes the line out of its host's cache
    # Nature may make these moves, or never make them:
    EVICT = "evict"  # a dirty line goes to the pool
    DROP = "drop"  # a clean line leaves
    PREFETCH = "prefetch"
    LOSE = "lose"  # a posted write-back of a host that crashed never arrives


VOLUNTARY = frozenset({Act.EVICT, Act.DROP, Act.PREFETCH, Act.LOSE})


class MachineMove(NamedTuple):
    act: Act
    who: int  # number of a thread for STEP and AGAIN, of a rank for LAND_NT, else of a host
    line: int = -1  # number of the line; -1 for STEP and AGAIN


Schedule = tuple[MachineMove, ...]


def to_json(schedule: Sequence[MachineMove]) -> list[list[Any]]:
    """Write a schedule as lists, strings and numbers, such as ``[["step", 0], ["land", 0, 1]]``, for `from_json`."""
    return [[move.act.value, *move[1 : 2 if move.line < 0 else 3]] for move in schedule]


def from_json(data: object) -> Schedule:
    """Read a schedule that `to_json` wrote; whether a program can make its moves, `replay` shows."""
    example = '["step", 0] or ["land", 0, 1]'
    return tuple(MachineMove(Act(act), *numbers) for act, numbers in named_moves(data, _NUMBERS, example))


_NUMBERS = {act.value: 1 if act in (Act.STEP, Act.AGAIN) else 2 for act in Act}


def named_moves(data: object, counts: Mapping[str, int], example: str) -> Iterator[tuple[str, list[int]]]:
    """Read moves from JSON, each a list of a name and of as many numbers as ``counts`` says for it."""
    if not isinstance(data, list) or len(data) > MOVES_MAX:
        raise ArgumentError(f"a schedule is a list of at most {MOVES_MAX} moves such as {example}")
    for index, item in enumerate(data):
        match item:
            case [str(name), *numbers] if len(numbers) == counts.get(name) and all(map(_is_number, numbers)):
                yield name, numbers
            case _:
                raise ArgumentError(f"move {index} of the schedule is {item!r:.60}; a move is such as {example}")


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value <= NUMBER_MAX


LETTERS = {
    Act.STEP: "s",
    Act.AGAIN: "a",
    Act.LAND: "l",
    Act.LAND_NT: "n",
    Act.DROPPED: "f",
    Act.EVICT: "e",
    Act.DROP: "d",
    Act.PREFETCH: "p",
    Act.LOSE: "x",
}
ACTS = {letter: act for act, letter in LETTERS.items()}


def to_token(schedule: Sequence[MachineMove]) -> str:
    """Write a schedule as one word for a command line: ``s0s0l0.1s1``."""
    return "".join(f"{LETTERS[m.act]}{m.who}" + (f".{m.line}" if m.line >= 0 else "") for m in schedule)


def from_token(token: str) -> Schedule:
    if not re.fullmatch(r"([sa][0-9]{1,6}|[lnfedpx][0-9]{1,6}\.[0-9]{1,6})*", token) or len(token) > MOVES_MAX:
        raise ArgumentError("a schedule's token is a word such as s0s0l0.1s1, as `cxlemu explore` prints it")
    moves = re.findall(r"([a-z])([0-9]+)(?:\.([0-9]+))?", token)
    return tuple(MachineMove(ACTS[letter], int(who), int(line or -1)) for letter, who, line in moves)
