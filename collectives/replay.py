"""A workload replayed on a modelled fabric, in virtual time: its collectives as our plans, its computing as recorded.

Every rank computes one thing at a time, on its processor and on its accelerator, and is in one collective at a time. A
collective begins when all its ranks may and takes what its plan takes between just these ranks in the virtual engine;
so ranks that come late make the others wait. What may begin does so in the order in which it may, then of ranks and
nodes. Not modelled: collectives of different groups that slow each other.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from collectives.bench import AUTO, Case
from collectives.contracts import COLLECTIVES
from collectives.virtual import planned
from cxlemu.chakra.workload import Collective, Computing, Workload
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError, PlanFileError
from cxlemu.plan import Call
from cxlemu.rounding import round_up
from cxlemu.timing import CostModel
from cxlemu.topology import Accelerator, Topology
from cxlemu.trace import Event

ITEM_BYTES = 4  # blocks are whole f32
PEAK_OF = "bf16"


class Called(NamedTuple):
    """One collective of all its ranks. ``places``: which step of each. ``ready_ns``: when its first rank was ready."""

    what: Collective
    name: str
    members: tuple[int, ...]
    places: tuple[int, ...]
    variant: str
    ready_ns: int
    begin_ns: int
    end_ns: int


class Computed(NamedTuple):
    rank: int
    place: int
    begin_ns: int
    end_ns: int
    on_cpu: bool


@dataclass(frozen=True)
class Replay:
    workload: Workload
    calls: Sequence[Called]  # in the order of their begins
    computed: Sequence[Computed]

    @property
    def time_ns(self) -> int:
        ends = [call.end_ns for call in self.calls] + [its.end_ns for its in self.computed]
        return max(ends, default=0)

    def computing_ns(self, rank: int) -> int:
        """On processor and accelerator together."""
        return sum(end - begin for begin, end in self._computing[rank])

    def exposed_ns(self, rank: int) -> int:
        """In collectives, while it computes nothing."""
        mine = _joined(self._computing[rank])
        hidden = 0
        at = 0
        for begin, end in ((c.begin_ns, c.end_ns) for c in self.calls if rank in c.members):
            while at < len(mine) and mine[at][1] <= begin:
                at += 1
            hidden += sum(min(end, e) - max(begin, b) for b, e in mine[at:] if b < end)
        return self.communicating_ns(rank) - hidden

    def communicating_ns(self, rank: int) -> int:
        return sum(c.end_ns - c.begin_ns for c in self.calls if rank in c.members)

    @cached_property
    def _computing(self) -> list[list[tuple[int, int]]]:
        found: list[list[tuple[int, int]]] = [[] for _ in self.workload.ranks]
        for its in self.computed:
            found[its.rank].append((its.begin_ns, its.end_ns))
        return found

    def events(self) -> Iterator[Event]:
        """A track for each rank's processor, accelerator and collectives."""
        for its in self.computed:
            where = "processor" if its.on_cpu else "accelerator"
            name = self.workload.ranks[its.rank][its.place].name
            yield Event("ranks", f"rank{its.rank} {where}", name, its.begin_ns, its.end_ns, {})
        for call in self.calls:
            about: dict[str, int | str] = {"bytes": call.what.nbytes, "variant": call.variant}
            for rank in call.members:
                yield Event(
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


def replay(workload: Workload, topology: Topology, accelerator: Accelerator | None = None) -> Replay:
    """With an ``accelerator``, what it computes takes what it would; otherwise what was recorded.

    Raises PlanFileError for ranks that call different things or wait for each other, ArgumentError for computing that
    has no time, and for collectives that do not fit the topology.
    """
    return _Replayer(workload, topology, accelerator).run()


@dataclass
class _Match:
    """A collective whose ranks are still to be found ready."""

    what: Collective
    members: tuple[int, ...]
    places: tuple[int, ...]
    missing: int
    ready_ns: dict[int, int] = field(default_factory=dict)


class _Replayer:
    def __init__(self, workload: Workload, topology: Topology, accelerator: Accelerator | None) -> None:
        self._workload, self._topology, self._accelerator = workload, topology, accelerator
        self._model = CostModel.of(topology, len(workload.ranks))
        self._matches, self._match_of = _matched(workload)
        self._missing = [[len(step.after) for step in steps] for steps in workload.ranks]
        self._ready_ns = [[0] * len(steps) for steps in workload.ranks]
        self._waiters: list[list[list[int]]] = [[[] for _ in steps] for steps in workload.ranks]
        for rank, steps in enumerate(workload.ranks):
            for at, step in enumerate(steps):
                for other in step.after:
                    self._waiters[rank][other].append(at)
        self._free_ns: dict[tuple[int, str], int] = {}
        self._waiting: list[tuple[int, int, int]] = []  # (when it may begin, rank, place): a heap
        self._times: dict[tuple[Collective, tuple[int, ...]], tuple[int, str]] = {}
        self._calls: list[Called] = []
        self._computed: list[Computed] = []
        self._left = workload.steps

    def run(self) -> Replay:
        for rank, missing in enumerate(self._missing):
            for at, count in enumerate(missing):
                if not count:
                    self._offer(rank, at)
        while self._waiting:
            due_ns, rank, at = heapq.heappop(self._waiting)
            if (begin_ns := self._begin_ns(rank, at)) > due_ns:  # what it needs was taken meanwhile
                heapq.heappush(self._waiting, (begin_ns, rank, at))
            else:
                self._start(rank, at, begin_ns)
        if self._left:
            raise PlanFileError(self._stuck())
        return Replay(self._workload, self._calls, self._computed)

    def _offer(self, rank: int, at: int) -> None:
        """All that this step comes after is over."""
        what = self._workload.ranks[rank][at].what
        if what is None:
            self._over(rank, at, self._ready_ns[rank][at])
            return
        if isinstance(what, Collective):
            match = self._match_of[rank, at]
            match.ready_ns[rank] = self._ready_ns[rank][at]
            match.missing -= 1
            if match.missing:
                return
            rank, at = match.members[0], match.places[0]
        heapq.heappush(self._waiting, (self._begin_ns(rank, at), rank, at))

    def _begin_ns(self, rank: int, at: int) -> int:
        what = self._workload.ranks[rank][at].what
        if isinstance(what, Computing):
            return max(self._ready_ns[rank][at], self._free_ns.get((rank, _unit(what)), 0))
        match = self._match_of[rank, at]
        return max(max(ready, self._free_ns.get((r, "collectives"), 0)) for r, ready in match.ready_ns.items())

    def _start(self, rank: int, at: int, begin_ns: int) -> None:
        what = self._workload.ranks[rank][at].what
        if isinstance(what, Computing):
            end_ns = begin_ns + self._computing_ns(rank, at, what)
            self._free_ns[rank, _unit(what)] = end_ns
            if end_ns > begin_ns:
                self._computed.append(Computed(rank, at, begin_ns, end_ns, what.on_cpu))
            self._over(rank, at, end_ns)
            return
        match = self._match_of[rank, at]
        took_ns, variant = self._time(match)
        name, ready_ns = self._workload.ranks[rank][at].name, min(match.ready_ns.values())
        end_ns = begin_ns + took_ns
        self._calls.append(Called(match.what, name, match.members, match.places, variant, ready_ns, begin_ns, end_ns))
        for member, place in zip(match.members, match.places, strict=True):
            self._free_ns[member, "collectives"] = end_ns
            self._over(member, place, end_ns)

    def _over(self, rank: int, at: int, end_ns: int) -> None:
        self._left -= 1
        for waiter in self._waiters[rank][at]:
            self._ready_ns[rank][waiter] = max(self._ready_ns[rank][waiter], end_ns)
            self._missing[rank][waiter] -= 1
            if not self._missing[rank][waiter]:
                self._offer(rank, waiter)

    def _computing_ns(self, rank: int, at: int, what: Computing) -> int:
        accelerator = self._accelerator
        if accelerator is not None and not what.on_cpu and (what.operations or what.moved_bytes):
            computing_s = what.operations / (accelerator.peak_flop_per_s(PEAK_OF) * accelerator.gemm_efficiency)
            return round(max(computing_s, what.moved_bytes / accelerator.memory_bytes_per_s) * 1e9)
        if what.operations and not what.duration_us:
            step = self._workload.ranks[rank][at]
            raise ArgumentError(
                f"node {step.id} of rank {rank} says how much it computes, not how long: give --accelerator"
            )
        return what.duration_us * 1000

    def _time(self, match: _Match) -> tuple[int, str]:
        key = match.what, match.members
        if key not in self._times:
            self._times[key] = self._simulated(match)
        return self._times[key]

    def _simulated(self, match: _Match) -> tuple[int, str]:
        what, ranks = match.what, len(match.members)
        contract = COLLECTIVES[what.name]
        if ranks == 1 or (contract.moves_data and not what.nbytes):
            return 0, "nothing to do"
        blocks = ranks if contract.input_blocks == "ranks" else 1
        nbytes = round_up(-(-what.nbytes // blocks), ITEM_BYTES) if contract.moves_data else 0
        call = Call(what.name, AUTO, ranks, nbytes, "f32", "sum" if contract.reduces else "none")
        plan, choice = planned(self._topology, Case(call, in_place=what.name == "broadcast"))
        return simulate(self._model, [VirtualCall(plan, match.members)]).time_ns, choice.variant

    def _stuck(self) -> str:
        """Some step that waits for itself, or for a rank that waits for it."""
        for match in self._matches:
            if match.missing:
                absent = next(r for r in match.members if r not in match.ready_ns)
                step = self._workload.ranks[absent][match.places[match.members.index(absent)]]
                return f"nodes wait for each other: node {step.id} of rank {absent}, {match.what.name}, never begins"
        rank, at = next((r, a) for r, its in enumerate(self._missing) for a, left in enumerate(its) if left)
        return f"nodes wait for each other: node {self._workload.ranks[rank][at].id} of rank {rank} never begins"


def _unit(what: Computing) -> str:
    return "processor" if what.on_cpu else "accelerator"


def _matched(workload: Workload) -> tuple[list[_Match], dict[tuple[int, int], _Match]]:
    """The k-th collective of a group on one of its ranks is the k-th on all of them. Raises PlanFileError otherwise."""
    called: dict[str, dict[int, list[int]]] = {}
    for rank, steps in enumerate(workload.ranks):
        for at, step in enumerate(steps):
            if isinstance(step.what, Collective):
                called.setdefault(step.what.group, {}).setdefault(rank, []).append(at)
    matches, match_of = [], {}
    for group, by_rank in called.items():
        members = workload.groups[group]
        counts = {rank: len(by_rank.get(rank, ())) for rank in members}
        first = members[0]
        for rank, count in counts.items():
            if count != counts[first]:
                raise PlanFileError(
                    f"ranks {first} and {rank} call {counts[first]} and {count} collectives of {_named(group)}: "
                    "all of a group must call the same ones"
                )
        for places in zip(*(by_rank[rank] for rank in members), strict=True):
            whats = [workload.ranks[rank][at].what for rank, at in zip(members, places, strict=True)]
            match = _Match(_same(whats, members, places, workload), members, places, len(members))
            matches.append(match)
            match_of.update(dict.fromkeys(zip(members, places, strict=True), match))
    return matches, match_of


def _same(whats: Sequence[object], members: Sequence[int], places: Sequence[int], workload: Workload) -> Collective:
    first = whats[0]
    assert isinstance(first, Collective)
    for rank, at, what in zip(members, places, whats, strict=True):
        if what != first:
            assert isinstance(what, Collective)
            ids = workload.ranks[members[0]][places[0]].id, workload.ranks[rank][at].id
            raise PlanFileError(
                f"node {ids[0]} of rank {members[0]} is {first.name} of {first.nbytes} bytes, but node {ids[1]} of "
                f"rank {rank} is {what.name} of {what.nbytes}: all of {_named(first.group)} must call the same"
            )
    return first


def _named(group: str) -> str:
    return f"group {group!r}" if group else "all ranks"
