"""All that the abstract machine knows between two moves: immutable, hashable, and nothing in it twice."""

from typing import NamedTuple, TypeVar

from faults.machine.program import MachineProgram

CRASHED = -1  # the node of a thread whose host crashed

T = TypeVar("T")


class Cached(NamedTuple):
    """A line in a host's cache; an absent one is None."""

    values: tuple[int, ...]  # value of each word of the line
    dirty: bool  # whether the line was stored to since it was fetched or posted
    dropping: frozenset[int]  # ranks whose flush has still to take the line out: their fence waits for that


class Posted(NamedTuple):
    """A write-back on its way to the pool, its data fixed."""

    values: tuple[int, ...]  # value of each word of the line
    ranks: frozenset[int]  # those whose fence waits for it


class MachineState(NamedTuple):
    """All that the machine knows between two moves."""

    pool: tuple[int, ...]  # value of each word in the pool
    # ``[host][line]``: the line in the host's cache, None if it is absent
    caches: tuple[tuple[Cached | None, ...], ...]
    posted: tuple[tuple[tuple[Posted, ...], ...], ...]  # ``[host][line]``: write-backs under way, the oldest first
    # ``[rank][line]``: non-temporal stores under way, each a word and its value, the oldest first
    nt: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]
    registers: tuple[int, ...]  # content of each register
    events: frozenset[int]
    nodes: tuple[int, ...]  # each thread's node; CRASHED if its host crashed
    begun: tuple[bool, ...]  # for each thread, whether the first half of an INVALIDATE or a WAIT, the flush, is done


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


def put(items: tuple[T, ...], index: int, item: T) -> tuple[T, ...]:
    return (*items[:index], item, *items[index + 1 :])


def put2(rows: tuple[tuple[T, ...], ...], index: int, line: int, item: T) -> tuple[tuple[T, ...], ...]:
    return put(rows, index, put(rows[index], line, item))
