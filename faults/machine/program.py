"""What the abstract machine runs: threads of small steps on named words. Litmus tests, generators and plans become
one of these; the definition in Python and the search in C both read it.

Places are indices: a *word* is 8 bytes that never tear, a *line* holds some words and is what caches hold and what
travels. Caches belong to a host; fences and non-temporal stores to a rank; a rank's streams are threads of one rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol


class Do(IntEnum):
    """The numbers are those of the search in C."""

    STORE = 1
    STORE_NT = 2
    FLUSH = 3  # the line is gone from the cache after this rank's next fence
    FLUSH_KEEP = 4
    FENCE = 5
    INVALIDATE = 6  # a flush, then a fence of this line alone: two moves
    LOAD = 7
    SIGNAL = 8  # a store and a flush of its line, in one move
    WAIT = 9  # flush the word's line, fence the line, load: until word >= value
    RECORD = 10
    AWAIT = 11
    CRASH = 12  # of this thread's host, with all of its threads
    FAIL = 13  # reaching it is a violation: an assertion of the program failed


class Step(NamedTuple):
    do: Do
    place: int = -1  # a word for STORE, STORE_NT, LOAD, SIGNAL, WAIT; a line for FLUSH*, INVALIDATE; an event
    value: int = 0  # stored, signalled, or waited for
    register: int = -1  # a LOAD's destination
    expect: int = -1  # a LOAD that may see this value only: any other one is a violation
    source: int = -1  # a STORE, STORE_NT or SIGNAL of this register's content instead of ``value``


class Thread(Protocol):
    """An automaton. Nodes are numbers >= 0; ``step`` of a node is None where the thread has ended."""

    @property
    def host(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def first(self) -> int: ...

    def step(self, node: int) -> Step | None: ...

    def next(self, node: int, value: int) -> int:
        """The node after ``node``; ``value`` is what a LOAD saw, else 0."""
        ...

    def failure(self, node: int) -> str:
        """What went wrong where the step is a FAIL."""
        ...


@dataclass(frozen=True)
class Straight:
    """Steps one after the other: the node is the number of steps done."""

    host: int
    rank: int
    name: str
    steps: tuple[Step, ...]
    first: int = 0

    def step(self, node: int) -> Step | None:
        return self.steps[node] if node < len(self.steps) else None

    def next(self, node: int, value: int) -> int:
        return node + 1

    def failure(self, node: int) -> str:
        return ""


class Word(NamedTuple):
    name: str
    line: int
    initial: int = 0


@dataclass(frozen=True)
class MachineProgram:
    """Ranks are numbered over all hosts; a rank is on one host. Registers are 0 until loaded."""

    threads: Sequence[Thread]
    words: tuple[Word, ...]
    lines: tuple[str, ...]
    registers: tuple[str, ...] = ()

    @property
    def hosts(self) -> int:
        return 1 + max((thread.host for thread in self.threads), default=-1)

    @property
    def ranks(self) -> int:
        return 1 + max((thread.rank for thread in self.threads), default=-1)
