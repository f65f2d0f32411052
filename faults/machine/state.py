"""All that the abstract machine knows between two moves: immutable, hashable, and nothing in it twice."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

from faults.machine.program import MachineProgram

CRASHED = -1  # the node of a thread whose host crashed

T = TypeVar("T")


class Cached(NamedTuple):
    """A line in a host's cache; an absent one is None.

    Attributes:
        values: Value of each word of the line.
        dirty: Whether the line was stored to since it was fetched or posted.
        dropping: Ranks whose flush has still to take the line out: their fence waits for that.
    """

    values: tuple[int, ...]
    dirty: bool
    dropping: frozenset[int]


class Posted(NamedTuple):
    """A write-back on its way to the pool, its data fixed.

    Attributes:
        values: Value of each word of the line.
        ranks: Those whose fence waits for it.
    """

    values: tuple[int, ...]
    ranks: frozenset[int]


class MachineState(NamedTuple):
    """All that the machine knows between two moves.

    Attributes:
        pool: Value of each word in the pool.
        caches: ``[host][line]``: the line in the host's cache, None if it is absent.
        posted: ``[host][line]``: write-backs under way, the oldest first.
        nt: ``[rank][line]``: non-temporal stores under way, each a word and its value, the oldest first.
        registers: Content of each register.
        events: Events that were recorded.
        nodes: Each thread's node; CRASHED if its host crashed.
        begun: For each thread, whether the first half of an INVALIDATE or a WAIT, the flush, is done.
    """

    pool: tuple[int, ...]
    caches: tuple[tuple[Cached | None, ...], ...]
    posted: tuple[tuple[tuple[Posted, ...], ...], ...]
    nt: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]
    registers: tuple[int, ...]
    events: frozenset[int]
    nodes: tuple[int, ...]
    begun: tuple[bool, ...]


def initial(program: MachineProgram) -> MachineState:
    """Return the state before the first move: empty caches, nothing under way, every word at its initial value."""
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
    """Return the tuple with ``item`` at position ``at``."""
    return (*items[:at], item, *items[at + 1 :])


def put2(rows: tuple[tuple[T, ...], ...], at: int, line: int, item: T) -> tuple[tuple[T, ...], ...]:
    """Return the table with another item in one place.

    Args:
        rows: The table.
        at: Number of the row.
        line: Position in the row.
        item: The new item.
    """
    return put(rows, at, put(rows[at], line, item))
