"""All that the abstract machine knows between two moves: immutable, hashable, and nothing in it twice."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from faults.machine.program import MachineProgram

CRASHED = -1  # the node of a thread whose host crashed

T = TypeVar("T")


class Cached(NamedTuple):
    """A line in a host's cache; an absent one is None."""

    values: tuple[int, ...]  # of its words
    dirty: bool
    dropping: frozenset[int]  # ranks whose flush has still to take it out: their fence waits for that


class Posted(NamedTuple):
    """A write-back on its way to the pool, its data fixed."""

    values: tuple[int, ...]
    ranks: frozenset[int]  # those whose fence waits for it


class MachineState(NamedTuple):
    pool: tuple[int, ...]  # word by word
    caches: tuple[tuple[Cached | None, ...], ...]  # [host][line]
    posted: tuple[tuple[tuple[Posted, ...], ...], ...]  # [host][line], oldest first
    nt: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]  # [rank][line]: (word, value), oldest first
    registers: tuple[int, ...]
    events: frozenset[int]
    nodes: tuple[int, ...]  # of threads
    begun: tuple[bool, ...]  # of threads: the first half of an INVALIDATE or a WAIT, the flush, is done


def initial(program: MachineProgram) -> MachineState:
    lines = len(program.lines)
    return MachineState(
        pool=tuple(word.initial for word in program.words),
        caches=((None,) * lines,) * program.hosts,
        posted=(((),) * lines,) * program.hosts,
        nt=(((),) * lines,) * program.ranks,
        registers=(0,) * len(program.registers),
        events=frozenset(),
        nodes=tuple(thread.first for thread in program.threads),
        begun=(False,) * len(program.threads),
    )


def put(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    return (*items[:at], item, *items[at + 1 :])


def put2(rows: tuple[tuple[T, ...], ...], at: int, line: int, item: T) -> tuple[tuple[T, ...], ...]:
    return put(rows, at, put(rows[at], line, item))
