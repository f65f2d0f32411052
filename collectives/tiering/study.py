"""What an access takes on average, over working sets and policies, and what each tier had to do with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from collectives.tiering.placement import Move, fill
from collectives.tiering.policies import POLICIES
from collectives.tiering.program import Access, Program, timed
from collectives.tiering.tiers import Tier, tiers_of
from collectives.tiering.workloads import Workload
from cxlemu.errors import ArgumentError
from cxlemu.timing import CostModel
from cxlemu.topology import Topology
from cxlemu.units import format_bytes

PAGES = 4096  # of a sample
WARM_UP_PASSES = 3  # of policies that move pages
SEED = 1


@dataclass(frozen=True, slots=True)
class TierUse:
    """What the ranks had of one tier. ``ns``: of all accesses to it, waiting for moves included."""

    name: str
    capacity_bytes: int  # of one rank
    load_ns: int
    accesses: int
    bytes_read: int
    ns: int
    moved_in_bytes: int
    moved_out_bytes: int
    coherence_ns: int  # of all accesses to it, what its directory and snoops took

    @property
    def access_ns(self) -> float:
        return self.ns / self.accesses if self.accesses else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    """A working set of each of ``ranks`` ranks; ``access_ns`` is the mean over all accesses of all of them."""

    topology: str
    workload: str
    policy: str
    ranks: int
    working_set_bytes: int
    access_ns: float
    accesses: int
    tiers: tuple[TierUse, ...]


class Memory:
    """A topology's tiers, as the first ``ranks`` ranks have them; the others lend their memory."""

    def __init__(self, topology: Topology, ranks: int = 1) -> None:
        """Raises ArgumentError as ``tiers_of``."""
        self.topology, self.ranks = topology, ranks
        self.model = CostModel.of(topology, topology.host_count * topology.hosts.ranks_per_host)
        self.tiers = tiers_of(self.model, ranks)

    @cached_property
    def capacity_bytes(self) -> int:
        """Of one rank, all tiers together."""
        return sum(tier.capacity_bytes for tier in self.tiers)

    def measure(
        self,
        workload: Workload,
        working_set_bytes: int,
        *,
        policy: str = "static",
        pages: int = PAGES,
        seed: int = SEED,
    ) -> Measured:
        """One pass over the working set, after others in which policies learn.

        Raises ArgumentError for a working set that does not fit, or of which ``pages`` pages are too small a sample.
        """
        if policy not in POLICIES:
            raise ArgumentError(f"there is no policy {policy!r}: it is one of {', '.join(POLICIES)}")
        count, room = self._sampled(workload, working_set_bytes, pages)
        warm_up = 0 if policy == "static" else WARM_UP_PASSES
        runs = [
            _follow(policy, workload.trace(count, 1 + warm_up, seed + rank), count, room, warm_up)
            for rank in range(self.ranks)
        ]
        programs = [
            Program(self._accesses(workload, its), workload.page_bytes, its.moves) for its in runs
        ]
        _, times = timed(self.model, [tier.regions for tier in self.tiers], programs)
        uses = tuple(self._use(number, workload, runs, times) for number in range(len(self.tiers)))
        accesses = sum(its.size for its in times)
        mean = sum(int(its.sum()) for its in times) / accesses
        return Measured(
            self.topology.name, workload.name, policy, self.ranks, working_set_bytes, mean, accesses, uses
        )

    def _sampled(self, workload: Workload, working_set_bytes: int, pages: int) -> tuple[int, list[int]]:
        """How many pages stand for the working set, and for how many of them each tier has room."""
        if working_set_bytes > self.capacity_bytes:
            raise ArgumentError(
                f"a working set of {format_bytes(working_set_bytes)} does not fit {self.topology.name}, which has "
                f"{format_bytes(self.capacity_bytes)} for each of {self.ranks} rank{'s' * (self.ranks != 1)}"
            )
        real = -(-working_set_bytes // workload.page_bytes)
        count = min(real, pages)
        room = [tier.capacity_bytes * count // (real * workload.page_bytes) for tier in self.tiers]
        if min(room) < 1:
            small = self.tiers[room.index(min(room))].name
            raise ArgumentError(f"{count} pages are too few to stand for {format_bytes(working_set_bytes)}: none of them fits {small}")
        room[-1] += max(count - sum(room), 0)  # what rounding down lost
        return count, room

    def _accesses(self, workload: Workload, run: _Followed) -> list[Access]:
        """Memory that takes copies is read a page at a time, all other as much as is asked for."""
        nbytes = [workload.page_bytes if tier.copied else workload.access_bytes for tier in self.tiers]
        return [
            Access(tier, page * workload.page_bytes, nbytes[tier])
            for page, tier in zip(run.pages.tolist(), run.tiers.tolist(), strict=True)
        ]

    def _use(
        self, number: int, workload: Workload, runs: Sequence[_Followed], times: Sequence[NDArray[np.int64]]
    ) -> TierUse:
        tier = self.tiers[number]
        here = [its.tiers == number for its in runs]
        accesses = sum(int(mask.sum()) for mask in here)
        moves = [move for its in runs for moves in its.moves.values() for move in moves]
        return TierUse(
            name=tier.name,
            capacity_bytes=tier.capacity_bytes,
            load_ns=tier.load_ns,
            accesses=accesses,
            bytes_read=accesses * (workload.page_bytes if tier.copied else workload.access_bytes),
            ns=sum(int(ns[mask].sum()) for ns, mask in zip(times, here, strict=True)),
            moved_in_bytes=sum(move.target == number for move in moves) * workload.page_bytes,
            moved_out_bytes=sum(move.source == number for move in moves) * workload.page_bytes,
            coherence_ns=accesses * tier.coherence_ns,
        )


@dataclass(frozen=True)
class _Followed:
    """The pass that is measured: pages, the tiers they lay in when touched, and moves by the access that they follow."""

    pages: NDArray[np.int64]
    tiers: NDArray[np.int64]
    moves: dict[int, list[Move]]


def _follow(name: str, trace: NDArray[np.int64], page_count: int, room: Sequence[int], warm_up: int) -> _Followed:
    placement = fill(range(page_count), room)
    policy = POLICIES[name]()
    schedule = trace.tolist()
    first = len(schedule) * warm_up // (warm_up + 1)
    tiers = np.empty(len(schedule) - first, np.int64)
    moves: dict[int, list[Move]] = {}
    begun = policy.begin(placement, schedule)
    if first == 0 and begun:
        moves[0] = begun
    for step, page in enumerate(schedule):
        if step >= first:
            tiers[step - first] = placement.tier_of[page]
        moved = policy.touched(step, page)
        if moved and first <= step + 1 < len(schedule):
            moves[step + 1 - first] = moved
    return _Followed(trace[first:], tiers, moves)
