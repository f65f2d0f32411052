"""What the abstract machine runs: threads of small steps on named words. Litmus tests, generators and plans become
one of these; the definition in Python and the search in C both read it.

Places are indices: a *word* is 8 bytes that never tear, a *line* holds some words and is what caches hold and what
travels. Caches belong to a host; fences and non-temporal stores to a rank; a rank's streams are threads of one rank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol


class Do(IntEnum):
    """What a step does. The numbers are those of the search in C."""

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
    CRASH = 12  # this thread's host crashes, with all of its threads
    FAIL = 13  # reaching it is a violation: an assertion of the program failed


class Step(NamedTuple):
    do: Do
    # number of a word for STORE, STORE_NT, LOAD, SIGNAL and WAIT, of a line for FLUSH, FLUSH_KEEP and INVALIDATE, of an
    # event for RECORD and AWAIT; -1 for the others
    place: int = -1
    value: int = 0  # the value that is stored, signalled or waited for
    register: int = -1  # number of a LOAD's destination; -1: none
    expect: int = -1  # the only value that a LOAD may see, any other one is a violation; -1: the LOAD may see any value
    # number of a register whose content a STORE, STORE_NT or SIGNAL takes instead of ``value``; -1: none
    source: int = -1


class Thread(Protocol):
    """An automaton. Nodes are numbers from 0 on."""

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
        """Return the node after ``node``, whose step was a LOAD that saw ``value``, or another one."""
        ...

    def failure(self, node: int) -> str:
        """Return what went wrong at a node whose step is a FAIL."""
        ...


@dataclass(frozen=True)
class Straight:
    """A thread of steps one after the other: the node is the number of steps done."""

    host: int
    rank: int
    name: str
    steps: tuple[Step, ...]
    first: int = 0

    def step(self, node: int) -> Step | None:
        return self.steps[node] if node < len(self.steps) else None

    def next(self, node: int, value: int) -> int:
        """Return the node after ``node``, whatever a LOAD saw."""
        return node + 1

    def failure(self, node: int) -> str:
        """Return the empty text: a FAIL of such a thread says nothing more."""
        return ""


class Word(NamedTuple):
    """Eight bytes of the pool that never tear."""

    name: str  # the word's name in messages
    line: int  # number of the line that the word lies in
    initial: int = 0  # the word's value in the beginning


@dataclass(frozen=True)
class MachineProgram:
    """What the abstract machine runs. Ranks are numbered over all hosts; a rank is on one host."""

    # the threads; a step names words, lines and registers by their position in the tuples below
    threads: Sequence[Thread]
    words: tuple[Word, ...]
    lines: tuple[str, ...]
    registers: tuple[str, ...] = ()  # names of the registers, which are 0 until something is loaded

    @property
    def hosts(self) -> int:
        """Count of hosts: one more than the highest number."""
        return 1 + max((thread.host for thread in self.threads), default=-1)

    @property
    def ranks(self) -> int:
        """Count of ranks: one more than the highest number."""
        return 1 + max((thread.rank for thread in self.threads), default=-1)
