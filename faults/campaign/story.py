"""The story of one line: what every host did to it, and what its cache and the pool held after each step.

Data only: `faults/campaign/record.py` takes it from an execution, `faults/campaign/svg.py` draws it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Held(NamedTuple):
    """A host's view of the line; versions are indices into `Story.versions`."""

    cached: int | None = None  # None: the line is not in the cache
    dirty: bool = False
    posted: int | None = None  # a write-back on its way


@dataclass(frozen=True)
class Event:
    """A step of a rank, a move of nature or a fault, and the line's state after it."""

    host: int
    text: str  # the instruction, or what nature did
    place: str  # "call 1 main:4", or "nature"
    caches: tuple[Held, ...]
    pool: int
    wrong: str = ""  # why what was read is wrong
    left_out: int = 0  # steps before this one that have nothing to do with the line


class Signalled(NamedTuple):
    """Event ``wait`` found what event ``signal`` had rung."""

    signal: int
    wait: int


@dataclass(frozen=True)
class Story:
    line: str  # which one, in words
    hosts: tuple[str, ...]  # headings
    versions: tuple[str, ...]  # of each content that the line ever had: who wrote it
    events: tuple[Event, ...]
    signals: tuple[Signalled, ...] = ()
    left_out_at_the_end: int = 0
