"""What a search is given to spend, and what it found. Every search returns the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from faults.machine.schedule import Schedule
from faults.verdict import Verdict


@dataclass(frozen=True)
class Budget:
    """What a search may spend; when one limit is reached, its verdict is UNKNOWN."""

    states: int = 5_000_000
    seconds: float = 60.0  # wall-clock time
    nbytes: int = 4 << 30  # memory, for the search in C


class FinalState(NamedTuple):
    """How an execution ended: all threads ended or crashed, and everything posted arrived or was lost."""

    registers: tuple[int, ...]  # contents of the program's registers
    memory: tuple[int, ...]  # the pool, word by word
    ends: tuple[int, ...]  # each thread's last node; -1 where its host crashed


class FindingKind(StrEnum):
    ASSERTION = "assertion"  # a FAIL was reached
    FINAL = "final"  # what should hold in the end does not
    UNEXPECTED = "unexpected"  # a LOAD saw what it must not see
    DEADLOCK = "deadlock"  # no thread can go on, and nothing posted is under way
    LIVELOCK = "livelock"  # threads go on, and no end can be reached unless nature helps


@dataclass(frozen=True)
class SearchFinding:
    kind: FindingKind  # what is wrong
    # number of the thread that finds it; for a deadlock or a livelock, of the first that has not ended; 0 where no
    # thread finds it
    thread: int
    text: str


@dataclass(frozen=True)
class Exploration:
    verdict: Verdict  # OK only if every execution was seen; for a schedule that was followed, if it is right to its end
    states: int  # count of states that were seen
    transitions: int  # count of moves that were made
    seconds: float  # wall-clock time of the search
    finding: SearchFinding | None = None
    schedule: Schedule = ()  # leads to the finding; for a schedule that was followed, that schedule
    # every end that was found, with the schedule of one execution that leads to it
    outcomes: Mapping[FinalState, Schedule] = field(default_factory=dict)
    reason: str = ""  # why the verdict is UNKNOWN, such as the budget that is spent
    nbytes: int = 0  # most memory that the search in C had, in bytes
    rounds: int = 1  # how often the search began: once, and again for each assumption that proved wrong
    followed: bool = False  # whether the schedule was given and nothing else was searched
    reductions: tuple[str, ...] = ()  # names of those that were used, as in core.py and native/settle.c
