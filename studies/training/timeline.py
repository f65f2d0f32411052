"""Operations of a few streams, run in order, and where the time of a step went.

An operation begins when those it comes after are over and its stream is free; a stream takes its operations in the
order in which they were added. So there is nothing to choose, and the timeline is the only one.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from cxlemu.engines.trace import TraceEvent

COMPUTE = "compute"  # the stream whose idle time is exposed
BUBBLE = "bubble"


class Part(NamedTuple):
    kind: str  # what the time is billed to
    ns: int
    nbytes: int = 0  # that a rank receives meanwhile
    call: tuple[str, int, int] | None = None  # the collective between data ranks that it is: name, bytes, ranks


class TimelineOperation(NamedTuple):
    """One operation of a stream; its parts follow each other."""

    name: str
    lane: int  # a rank, or all ranks that do the same
    stream: str
    parts: tuple[Part, ...]
    after: list[int]  # numbers of the operations that it comes after, which may be added later


@dataclass
class TimelineProgram:
    """Operations, which each stream takes in their order here."""

    operations: list[TimelineOperation] = field(default_factory=list)

    def add(self, name: str, lane: int, stream: str, parts: Iterable[Part], after: Iterable[int] = ()) -> int:
        """Append an operation that comes after those numbered ``after``; return its number."""
        self.operations.append(TimelineOperation(name, lane, stream, tuple(parts), list(after)))
        return len(self.operations) - 1


@dataclass(frozen=True)
class Timeline:
    """When each operation began and ended, and which one it waited for last (-1: it waited for none)."""

    operations: Sequence[TimelineOperation]
    begin_ns: Sequence[int]
    end_ns: Sequence[int]
    cause: Sequence[int]

    @property
    def time_ns(self) -> int:
        """When the last operation ended."""
        return max(self.end_ns, default=0)

    def received_bytes(self, kinds: Collection[str]) -> int:
        """Add up what the ranks of all lanes receive in parts of these kinds."""
        return sum(nbytes for operation in self.operations for kind, _, nbytes, _ in operation.parts if kind in kinds)

    @cached_property
    def _computing(self) -> dict[int, list[int]]:
        """The operations of each lane's compute stream."""
        spans: defaultdict[int, list[int]] = defaultdict(list)
        for number, operation in enumerate(self.operations):
            if operation.stream == COMPUTE:
                spans[operation.lane].append(number)
        return spans

    @cached_property
    def _last(self) -> int:
        return max(range(len(self.operations)), key=lambda number: self.end_ns[number])

    def spent_ns(self, kinds: Collection[str]) -> int:
        """Add up the time of parts of these kinds on all lanes, whether it is exposed or hidden."""
        return sum(ns for operation in self.operations for kind, ns, _, _ in operation.parts if kind in kinds)

    def billed(self, lane: int) -> Counter[str]:
        """Bill the step's time on one lane to kinds of parts, in ns; the sum is the step's time.

        Work of the lane's compute stream is billed to its own kind. While that stream is idle, time is billed to the
        operation that it waits for; before that one began, to the operation that it waited for in turn, and so on. Work
        of another lane's compute stream is the pipeline's bubble.
        """
        bill: Counter[str] = Counter()
        done: dict[int, tuple[tuple[Part, ...], int]] = {}
        free_ns = 0
        for number in self._computing[lane]:
            if self.begin_ns[number] > free_ns:
                self._bill_gap(bill, self.cause[number], free_ns, self.begin_ns[number], lane)
            free_ns = self.end_ns[number]
            parts = self.operations[number].parts
            done[id(parts)] = parts, done.get(id(parts), (parts, 0))[1] + 1  # most operations share theirs
        for parts, times in done.values():
            for kind, ns, _, _ in parts:
                bill[kind] += times * ns
        self._bill_gap(bill, self._last, free_ns, self.time_ns, lane)
        return +bill

    def _bill_gap(self, bill: Counter[str], cause: int, begin_ns: int, end_ns: int, lane: int) -> None:
        """Bill a gap backwards along the chain of causes, each of which ended when the next began."""
        while end_ns > begin_ns:
            assert cause >= 0  # only what waits for nothing begins at 0
            operation = self.operations[cause]
            foreign = operation.stream == COMPUTE and operation.lane != lane
            for kind, ns, _, _ in reversed(operation.parts):
                share = min(ns, end_ns - begin_ns)
                bill[BUBBLE if foreign else kind] += share
                end_ns -= share
            cause = self.cause[cause]


def ordered(operations: Sequence[TimelineOperation]) -> tuple[list[int], list[list[int]], list[int]]:
    """For each operation: the one before it in its stream or -1, those that wait for it, and for how many it waits."""
    previous = [-1] * len(operations)
    newest: dict[tuple[int, str], int] = {}
    waiters: list[list[int]] = [[] for _ in operations]
    missing = [len(operation.after) for operation in operations]
    for number, operation in enumerate(operations):
        before = newest.get((operation.lane, operation.stream), -1)
        newest[operation.lane, operation.stream] = number
        previous[number] = before
        if before >= 0:
            waiters[before].append(number)
            missing[number] += 1
        for other in operation.after:
            waiters[other].append(number)
    return previous, waiters, missing


def run(program: TimelineProgram, later: Sequence[tuple[int, TimelineProgram]] = ()) -> Timeline:
    """Run a program. The work grows linearly with the number of operations and of their predecessors.

    ``later`` is (time in ns, program with the same operations), in order of time: operations that begin from then on
    take what they take there. Asserts that no operations wait in a circle.
    """
    operations = list(program.operations)
    count = len(operations)
    previous, waiters, missing = ordered(operations)
    begin_ns, end_ns, cause = [0] * count, [0] * count, [-1] * count
    ready = [number for number in range(count) if not missing[number]]
    for number in ready:  # grows
        operation, latest = operations[number], previous[number]
        for other in operation.after:
            if latest < 0 or end_ns[other] > end_ns[latest]:
                latest = other
        cause[number] = latest
        begin_ns[number] = end_ns[latest] if latest >= 0 else 0
        for at_ns, changed in later:
            if begin_ns[number] >= at_ns:
                operations[number] = operation._replace(parts=changed.operations[number].parts)
        end_ns[number] = begin_ns[number] + sum([part.ns for part in operations[number].parts])
        for waiter in waiters[number]:
            missing[waiter] -= 1
            if not missing[waiter]:
                ready.append(waiter)
    assert len(ready) == count, "operations wait for each other in a circle"
    return Timeline(operations, begin_ns, end_ns, cause)


def events(timeline: Timeline) -> Iterator[TraceEvent]:
    """Yield a trace with a track for each stream of each lane, and a slice for each part."""
    for number, operation in enumerate(timeline.operations):
        begin_ns = timeline.begin_ns[number]
        for kind, ns, _, _ in operation.parts:
            if ns:
                track = f"rank{operation.lane} {operation.stream}"
                yield TraceEvent("ranks", track, f"{operation.name}: {kind}", begin_ns, begin_ns + ns, {})
            begin_ns += ns
