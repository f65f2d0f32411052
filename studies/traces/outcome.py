"""What a replayed workload did, and when."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cxlemu.chakra.workload import ChakraCollective, ChakraMessage, ChakraWorkload
from cxlemu.engines.trace import TraceEvent

MEMORY = "memory"  # the unit of a rank that loads from the pool and stores to it


class Called(NamedTuple):
    """One collective, as all its ranks called it, or one message."""

    what: ChakraCollective | ChakraMessage  # name of the collective or message
    name: str  # the name of its node on its first rank
    members: tuple[int, ...]  # the ranks of its group; of a message its sender and receiver
    places: tuple[int, ...]  # for each member, the index of its step
    variant: str  # the algorithm that was run, or why nothing was
    ready_ns: int  # when its first rank was ready
    begin_ns: int
    end_ns: int
    # for each member, from when to when it was in it, in ns; empty where all were from begin to end
    spans: tuple[tuple[int, int], ...] = ()

    def span(self, rank: int) -> tuple[int, int]:
        """Return from when to when a member was in it, in ns."""
        return self.spans[self.members.index(rank)] if self.spans else (self.begin_ns, self.end_ns)


class Computed(NamedTuple):
    """One step that a rank did by itself; ``place`` is its index, ``unit`` its processor, accelerator or memory."""

    rank: int
    place: int
    begin_ns: int
    end_ns: int
    unit: str


@dataclass(frozen=True)
class Replay:
    """The work of a workload's ranks, in virtual time from 0."""

    workload: ChakraWorkload
    calls: Sequence[Called]  # in the order of their begins
    computed: Sequence[Computed]

    @property
    def time_ns(self) -> int:
        """When the last step ended."""
        ends = [call.end_ns for call in self.calls] + [computed.end_ns for computed in self.computed]
        return max(ends, default=0)

    def computing_ns(self, rank: int) -> int:
        """Add up what a rank computed on processor and accelerator together."""
        return sum(end - begin for begin, end in self._computing[rank])

    def accessing_ns(self, rank: int) -> int:
        """Add up what a rank loaded from the pool and stored to it by itself."""
        return sum(
            computed.end_ns - computed.begin_ns
            for computed in self.computed
            if computed.rank == rank and computed.unit == MEMORY
        )

    def exposed_ns(self, rank: int) -> int:
        """Add up the time that a rank spent in collectives and messages while it computed nothing."""
        mine = _joined(self._computing[rank])
        hidden = 0
        moment = 0
        for begin, end in self._communicating[rank]:
            while moment < len(mine) and mine[moment][1] <= begin:
                moment += 1
            hidden += sum(min(end, e) - max(begin, b) for b, e in mine[moment:] if b < end)
        return self.communicating_ns(rank) - hidden

    def communicating_ns(self, rank: int) -> int:
        """Add up the time in which a rank was in a collective or a message, from their begin to their end."""
        return sum(end - begin for begin, end in self._communicating[rank])

    @cached_property
    def _communicating(self) -> list[list[tuple[int, int]]]:
        spans: list[list[tuple[int, int]]] = [[] for _ in self.workload.ranks]
        for call in self.calls:
            for rank in call.members:
                spans[rank].append(call.span(rank))
        return [_joined(intervals) for intervals in spans]

    @cached_property
    def _computing(self) -> list[list[tuple[int, int]]]:
        spans: list[list[tuple[int, int]]] = [[] for _ in self.workload.ranks]
        for work in self.computed:
            if work.unit != MEMORY:
                spans[work.rank].append((work.begin_ns, work.end_ns))
        return spans

    def events(self) -> Iterator[TraceEvent]:
        """Yield a trace with a track for each rank's processor, accelerator, memory, collectives and messages."""
        for work in self.computed:
            name = self.workload.ranks[work.rank][work.place].name
            yield TraceEvent("ranks", f"rank{work.rank} {work.unit}", name, work.begin_ns, work.end_ns, {})
        for call in self.calls:
            about: dict[str, int | str] = {"bytes": call.what.nbytes, "variant": call.variant}
            for rank in call.members:
                yield TraceEvent(
                    "ranks",
                    f"rank{rank} {'messages' if isinstance(call.what, ChakraMessage) else 'collectives'}",
                    f"{call.what.name} {call.name}",
                    *call.span(rank),
                    about,
                )


def _joined(intervals: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined
