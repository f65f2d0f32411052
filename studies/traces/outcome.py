"""What a replayed workload did, and when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cxlemu.chakra.workload import ChakraCollective, ChakraWorkload
from cxlemu.engines.trace import TraceEvent


class Called(NamedTuple):
    """One collective, as all its ranks called it.

    Attributes:
        what: The collective.
        name: The name of its node on its first rank.
        members: The ranks of its group.
        places: For each member, the index of its step.
        variant: The algorithm that was run, or why nothing was.
        ready_ns: When its first rank was ready.
    """

    what: ChakraCollective
    name: str
    members: tuple[int, ...]
    places: tuple[int, ...]
    variant: str
    ready_ns: int
    begin_ns: int
    end_ns: int


class Computed(NamedTuple):
    """One step that a rank computed; ``place`` is the index of the step."""

    rank: int
    place: int
    begin_ns: int
    end_ns: int
    on_cpu: bool


@dataclass(frozen=True)
class Replay:
    """What a workload's ranks did, in virtual time from 0."""

    workload: ChakraWorkload
    calls: Sequence[Called]  # in the order of their begins
    computed: Sequence[Computed]

    @property
    def time_ns(self) -> int:
        """When the last step ended."""
        ends = [call.end_ns for call in self.calls] + [its.end_ns for its in self.computed]
        return max(ends, default=0)

    def computing_ns(self, rank: int) -> int:
        """Add up what a rank computed on processor and accelerator together."""
        return sum(end - begin for begin, end in self._computing[rank])

    def exposed_ns(self, rank: int) -> int:
        """Add up the time that a rank spent in collectives while it computed nothing."""
        mine = _joined(self._computing[rank])
        hidden = 0
        at = 0
        for begin, end in ((c.begin_ns, c.end_ns) for c in self.calls if rank in c.members):
            while at < len(mine) and mine[at][1] <= begin:
                at += 1
            hidden += sum(min(end, e) - max(begin, b) for b, e in mine[at:] if b < end)
        return self.communicating_ns(rank) - hidden

    def communicating_ns(self, rank: int) -> int:
        """Add up the time that a rank spent in collectives, from their begin to their end."""
        return sum(c.end_ns - c.begin_ns for c in self.calls if rank in c.members)

    @cached_property
    def _computing(self) -> list[list[tuple[int, int]]]:
        found: list[list[tuple[int, int]]] = [[] for _ in self.workload.ranks]
        for its in self.computed:
            found[its.rank].append((its.begin_ns, its.end_ns))
        return found

    def events(self) -> Iterator[TraceEvent]:
        """Yield a trace with one track for each rank's processor, accelerator and collectives."""
        for its in self.computed:
            where = "processor" if its.on_cpu else "accelerator"
            name = self.workload.ranks[its.rank][its.place].name
            yield TraceEvent("ranks", f"rank{its.rank} {where}", name, its.begin_ns, its.end_ns, {})
        for call in self.calls:
            about: dict[str, int | str] = {"bytes": call.what.nbytes, "variant": call.variant}
            for rank in call.members:
                yield TraceEvent(
                    "ranks",
                    f"rank{rank} collectives",
                    f"{call.what.name} {call.name}",
                    call.begin_ns,
                    call.end_ns,
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
