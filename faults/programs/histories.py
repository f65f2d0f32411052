"""Whether a history of operations is linearizable: some order of them, each at once between its begin and its end,
gives each its result.

The search is that of Wing, Gong and Lowe as Porcupine makes it: an operation that nothing precedes any more takes
effect next, and what is reached is remembered by the operations that took effect and the state. Each key of a map, each
register and each queue is searched alone. An operation without an end may have taken effect, with any result, or not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple

REGISTER, QUEUE, MAP = 1, 2, 4  # as in cxl.h
READ, WRITE, ADD, ENQUEUE, DEQUEUE, GET, PUT, REMOVE = range(1, 9)
NONE = (1 << 64) - 1
KINDS_OF_OBJECTS = {REGISTER: "register", QUEUE: "queue", MAP: "map"}
KIND_OF = dict.fromkeys((READ, WRITE, ADD), REGISTER) | dict.fromkeys((ENQUEUE, DEQUEUE), QUEUE)
KIND_OF |= dict.fromkeys((GET, PUT, REMOVE), MAP)
_NAMES = ("", "read", "write", "add", "enqueue", "dequeue", "get", "put", "remove")
_WITHOUT_VALUE = (READ, DEQUEUE, GET, REMOVE)
_STORES_ONLY = (WRITE, ENQUEUE, PUT)
SHOWN = 24  # operations of a history in a report: the last ones
REACHED_MOST = 100_000  # in the search for an order of one object's operations

State = Hashable
_BEGIN: dict[int, State] = {REGISTER: 0, QUEUE: (), MAP: NONE}


class LoggedOperation(NamedTuple):
    """An operation that a program has logged."""

    operation: int  # READ, ..., REMOVE
    key: int
    value: int
    result: int
    begin: int  # its steps in the run
    end: int  # 0: it has not ended
    host: int = 0
    site: int = 0  # the number of its position

    @property
    def object(self) -> tuple[int, int]:
        """What it is an operation of: a kind of objects, and the key."""
        return KIND_OF[self.operation], self.key

    @property
    def object_name(self) -> str:
        """That in words."""
        return f"{KINDS_OF_OBJECTS[self.object[0]]} {self.key}"

    @property
    def call(self) -> str:
        """The call, and its result if it has ended with one."""
        value = "" if self.operation in _WITHOUT_VALUE else f", {self.value}"
        result = "none" if self.result == NONE else str(self.result)
        says = "" if not self.end or (self.operation in _STORES_ONLY and self.result != NONE) else f" = {result}"
        return f"{_NAMES[self.operation]}({self.key}{value}){says}"

    def __str__(self) -> str:
        if not self.end:
            return f"host {self.host}  step {self.begin} on: {self.call}, without an end"
        return f"host {self.host}  steps {self.begin} to {self.end}: {self.call}"


def after(operation: int, value: int, state: State) -> tuple[State, int | None]:
    """Return the state that an operation leaves, and its result; None: any."""
    if operation in (READ, GET):
        return state, _number(state)
    if operation in (WRITE, PUT):
        return value, None
    if operation == ADD:
        return (_number(state) + value) & NONE, _number(state)
    if operation == REMOVE:
        return NONE, _number(state)
    assert isinstance(state, tuple)
    if operation == ENQUEUE:
        return (*state, value), None
    return state[1:], state[0] if state else NONE


def _number(state: State) -> int:
    assert isinstance(state, int)
    return state


def _steps(its: LoggedOperation, state: State) -> Iterator[State]:
    """Yield the state behind an operation, if it can take effect here."""
    if its.end and its.operation in _STORES_ONLY and its.result == NONE:
        yield state  # it has stored nothing
        return
    following, result = after(its.operation, its.value, state)
    if not its.end or result is None or result == its.result:
        yield following


def explained(history: Sequence[LoggedOperation], most: int = REACHED_MOST) -> bool | None:
    """Say whether some order explains the history of one object; None: the search was given up."""
    if not history:
        return True
    ordered = sorted(history, key=lambda operation: operation.begin)
    ends = [operation.end or NONE for operation in ordered]
    waiting = sum(1 << k for k, operation in enumerate(ordered) if operation.end)  # those that must still take effect
    todo: list[tuple[int, int, State]] = [(0, 0, _BEGIN[ordered[0].object[0]])]
    reached = set(todo)
    while todo:
        # Those before `first` and those whose bit is set in `done`, which begins there, have taken effect.
        first, done, state = todo.pop()
        if not waiting >> first & ~done:
            return True
        for k in _next(ordered, ends, first, done):
            for following in _steps(ordered[k], state):
                place = (*_without(first, done | 1 << (k - first)), following)
                if place not in reached:
                    reached.add(place)
                    todo.append(place)
        if len(reached) > most:
            return None
    return False


def _next(ordered: Sequence[LoggedOperation], ends: Sequence[int], first: int, done: int) -> list[int]:
    """List the operations that may take effect next: none that is left has ended before their begin."""
    numbers: list[int] = []
    earliest = NONE
    for k in range(first, len(ordered)):
        if ordered[k].begin > earliest:
            break
        if not done >> (k - first) & 1:
            numbers.append(k)
            earliest = min(earliest, ends[k])
    return numbers[::-1]  # the search takes the last one first


def _without(first: int, done: int) -> tuple[int, int]:
    """Let the numbers begin at the first operation that is left."""
    taken = (~done & (done + 1)).bit_length() - 1
    return first + taken, done >> taken


def shortest(
    history: Sequence[LoggedOperation], fails: Callable[[Sequence[LoggedOperation]], bool]
) -> list[LoggedOperation]:
    """Cut a history that no order explains behind the first result that none does; the last one ends there."""
    ends = sorted(operation.end for operation in history if operation.end)
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if fails(until(history, ends[middle])):
            high = middle
        else:
            low = middle + 1
    return until(history, ends[low])


def until(history: Sequence[LoggedOperation], step: int) -> list[LoggedOperation]:
    """Return what has begun until a step, as it was then."""
    return [
        operation if operation.end <= step else operation._replace(end=0)
        for operation in history
        if operation.begin <= step
    ]


class HistoryVerdict(NamedTuple):
    """What the histories of all objects have come to."""

    wrong: list[LoggedOperation]  # a history that no order explains, its last result one too many; empty: there is none
    undecided: list[str]  # objects of which it is not known, a sentence each


def judge(operations: Sequence[LoggedOperation], kinds: int, most: int = REACHED_MOST) -> HistoryVerdict:
    """Judge each object of these kinds alone, until one is wrong."""
    objects: dict[tuple[int, int], list[LoggedOperation]] = {}
    for operation in operations:
        if operation.object[0] & kinds:
            objects.setdefault(operation.object, []).append(operation)
    undecided = []
    for (kind, key), history in sorted(objects.items()):
        order = explained(history, most)
        if order is False:
            return HistoryVerdict(shortest(history, lambda cut: explained(cut, most) is False), [])
        if order is None:
            undecided.append(
                f"cxl_linearizable: whether an order explains the {len(history)} operations of "
                f"{KINDS_OF_OBJECTS[kind]} {key} is not known: the search was given up at {most} states"
            )
    return HistoryVerdict([], undecided)


def names_of(kinds: int) -> str:
    return " or a ".join(name for kind, name in KINDS_OF_OBJECTS.items() if kinds & kind)


def words_of(history: Sequence[LoggedOperation]) -> list[str]:
    """Write a history, one line for each operation, in the order of their begins."""
    ordered = sorted(history, key=lambda operation: operation.begin)
    before = [f"{len(ordered) - SHOWN} operations before"] if len(ordered) > SHOWN else []
    return before + [str(operation) for operation in ordered[-SHOWN:]]
