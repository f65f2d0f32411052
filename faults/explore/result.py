"""What a search is given to spend, and what it found. Every search returns the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from faults.machine.schedule import Schedule
from faults.verdict import Verdict


@dataclass(frozen=True)
class Budget:
    """What a search may spend; when one limit is reached, its verdict is UNKNOWN.

    Attributes:
        states: Count of states.
        seconds: Wall-clock time.
        nbytes: Memory, for the search in C.
    """

    states: int = 5_000_000
    seconds: float = 60.0
    nbytes: int = 4 << 30


class FinalState(NamedTuple):
    """How an execution ended: all threads ended or crashed, and everything posted arrived or was lost.

    Attributes:
        registers: Contents of the program's registers.
        memory: The pool, word by word.
        ends: Each thread's last node; -1 where its host crashed.
    """

    registers: tuple[int, ...]
    memory: tuple[int, ...]
    ends: tuple[int, ...]


class FindingKind(StrEnum):
    """What is wrong."""

    ASSERTION = "assertion"  # a FAIL was reached
    FINAL = "final"  # what should hold in the end does not
    UNEXPECTED = "unexpected"  # a LOAD saw what it must not see
    DEADLOCK = "deadlock"  # no thread can go on, and nothing posted is under way
    LIVELOCK = "livelock"  # threads go on, and no end can be reached unless nature helps


@dataclass(frozen=True)
class SearchFinding:
    """What a search found wrong.

    Attributes:
        kind: What is wrong.
        thread: Number of the thread that finds it; for a deadlock or a livelock, of the first that has not ended; 0
            where no thread finds it.
        text: The same in words.
    """

    kind: FindingKind
    thread: int
    text: str


@dataclass(frozen=True)
class Exploration:
    """What a search found.

    Attributes:
        verdict: OK only if every execution was seen; for a schedule that was followed, if it is right to its end.
        states: Count of states that were seen.
        transitions: Count of moves that were made.
        seconds: Wall-clock time of the search.
        finding: What is wrong, or None.
        schedule: Leads to the finding; for a schedule that was followed, that schedule.
        outcomes: Every end that was found, with the schedule of one execution that leads to it.
        reason: Why the verdict is UNKNOWN, such as the budget that is spent.
        nbytes: Most memory that the search in C had, in bytes.
        rounds: How often the search began: once more for each thing that it had wrongly taken for granted.
        followed: Whether the schedule was given and nothing else was searched.
        reductions: Names of those that were used, as in core.py and native/settle.c.
    """

    verdict: Verdict
    states: int
    transitions: int
    seconds: float
    finding: SearchFinding | None = None
    schedule: Schedule = ()
    outcomes: Mapping[FinalState, Schedule] = field(default_factory=dict)
    reason: str = ""
    nbytes: int = 0
    rounds: int = 1
    followed: bool = False
    reductions: tuple[str, ...] = ()
