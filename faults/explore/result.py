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
    states: int = 5_000_000
    seconds: float = 60.0
    nbytes: int = 4 << 30  # of memory, for the search in C


class FinalState(NamedTuple):
    """How an execution ended: all threads ended or crashed, and everything posted arrived or was lost."""

    registers: tuple[int, ...]
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
    kind: FindingKind
    thread: int  # who found it; of a deadlock the first that waits
    text: str


@dataclass(frozen=True)
class Exploration:
    """``verdict`` is OK only if every execution was seen. ``schedule`` leads to the finding."""

    verdict: Verdict
    states: int
    transitions: int
    seconds: float
    finding: SearchFinding | None = None
    schedule: Schedule = ()
    outcomes: Mapping[FinalState, Schedule] = field(default_factory=dict)  # one execution that leads to each
    reason: str = ""  # of UNKNOWN: what ran out
    nbytes: int = 0  # of memory that the search in C had at most
    rounds: int = 1  # how often it began: once more for each thing that it had wrongly taken for granted
    followed: bool = False  # the schedule was given, and nothing else was searched
    reductions: tuple[str, ...] = ()  # by their names in core.py and native/settle.c
