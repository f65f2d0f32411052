"""The entries of a run's record, as ``native/record.h`` has them, and what some tell beside others."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from faults.programs.every.events import Line, Look

ENTRY = struct.Struct("<IIIHBBBBBB4xQQ")  # record_entry
STEPS = LOAD, STORE, RMW, NT_STORE, FLUSH, FENCE, _, YIELD = range(1, 9)
MOVE = 32
MOVES = FETCH, FETCH_POSTED, POST, LAND, WRITE_BACK, DROP, NT, LOST = range(MOVE + 1, MOVE + 9)


class Entry(NamedTuple):
    number: int
    line: int
    more: int
    thread: int
    kind: int
    what: int
    host: int
    pool: int
    cause: int
    stage: int
    knows: int
    bytes: int

    def lines(self) -> list[Line]:
        return [(self.pool, self.line)] if self.more == 1 else [(self.pool, self.line + k) for k in range(self.more)]


def look_of(thread: int, entries: Iterable[Entry]) -> tuple[Look, int] | None:
    """Name the only look of a thread in some steps that change nothing else, and what it saw."""
    its = [entry for entry in entries if entry.kind < MOVE and entry.thread == thread]
    looks = [entry for entry in its if entry.kind not in (FLUSH, FENCE, YIELD)]
    if len(looks) != 1 or looks[0].kind != LOAD or looks[0].more != 1 or not looks[0].knows:
        return None
    return (thread, looks[0].knows, (looks[0].pool, looks[0].line)), looks[0].bytes


def alike(one: Sequence[object], other: Sequence[object]) -> int:
    """Count what two lists begin with alike."""
    alike, apart = 0, min(len(one), len(other)) + 1
    while alike + 1 < apart:
        middle = (alike + apart) // 2
        if one[alike:middle] == other[alike:middle]:
            alike = middle
        else:
            apart = middle
    return alike


class LeftLines:
    """The lines with stores that have not arrived for sure: what a crash leaves of them is open."""

    def __init__(self) -> None:
        self._dirty: dict[tuple[int, Line], bool] = {}  # by host and line: whether all of its stores are posted
        self._past: Counter[tuple[int, Line]] = Counter()  # stores past the cache

    def note(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            key = (entry.host, (entry.pool, entry.line))
            if entry.kind in (STORE, RMW):
                self._dirty |= {(entry.host, line): False for line in entry.lines()}
            elif entry.kind == NT_STORE:
                self._past.update((entry.host, line) for line in entry.lines())
            elif entry.kind == POST and key in self._dirty:
                self._dirty[key] = True
            elif entry.kind == WRITE_BACK or (entry.kind == LAND and self._dirty.get(key)):
                self._dirty.pop(key, None)
            elif entry.kind == NT:
                self._past[key] -= 1

    def of(self, host: int) -> frozenset[Line]:
        return frozenset(line for holder, line in (*self._dirty, *+self._past) if holder == host)
