"""What an access takes on average, over working sets and policies, and how much each tier contributes to that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from cxlemu.cost import CostModel
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.suggest import unknown
from cxlemu.topology import Topology
from cxlemu.units import counted, format_bytes
from studies.choices import PAGES, SEED
from studies.tiering.placement import Move, fill
from studies.tiering.policies import POLICIES
from studies.tiering.program import Program, timed
from studies.tiering.snoops import SnoopFilter
from studies.tiering.tiers import tiers_of
from studies.tiering.workloads import Workload

PAGES_TIMES_MIN = 8  # the least multiple of PAGES in a sample, also where the nearest memory holds it all
PAGES_MAX = 1 << 20  # all ranks together
ACCESSES, WARM_UP_ACCESSES = 8192, 3 * 8192  # with policies that move pages: measured, and to learn


@dataclass(frozen=True, slots=True)
class TierUse:
    name: str
    capacity_bytes: int  # one rank's
    load_ns: int
    accesses: int
    bytes_read: int
    ns: int  # the time of all accesses to it together, waiting for moves included
    moved_in_bytes: int
    moved_out_bytes: int
    coherence_ns: int  # its directory and snoops, over all accesses to it
    back_invalidations: float = 0.0  # lines that its snoop filters gave up for others, over all accesses to it

    @property
    def access_ns(self) -> float:
        return self.ns / self.accesses if self.accesses else 0.0


@dataclass(frozen=True, slots=True)
class Measured:
    topology: str
    workload: str
    policy: str
    ranks: int
    working_set_bytes: int
    access_ns: float  # the mean time of an access, over all accesses of all ranks
    accesses: int
    moved_bytes: float  # by policies, for each access
    tiers: tuple[TierUse, ...]


class Memory:
    """A topology's tiers, as the first ``ranks`` ranks have them; the others lend their memory."""

    def __init__(self, topology: Topology, ranks: int = 1) -> None:
        self.topology, self.ranks = topology, ranks
        self.model = CostModel.of(topology, topology.host_count * topology.hosts.ranks_per_host)
        self.tiers = tiers_of(self.model, ranks)

    @cached_property
    def capacity_bytes(self) -> int:
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
        """Measure the accesses to a working set, on a sample of its pages.

        Where pages stay, one pass over the working set is measured; otherwise ACCESSES of them, after those in which
        the policy learned.
        """
        if policy not in POLICIES:
            raise ArgumentError(unknown("policy", policy, POLICIES))
        sample = self._sample(workload, working_set_bytes, pages)
        runs = [_follow(policy, workload, sample, seed + rank) for rank in range(self.ranks)]
        # memory that takes copies is read a page at a time, all other as much as is asked for
        each = np.array([workload.page_bytes if tier.copied else workload.access_bytes for tier in self.tiers])
        programs = [Program(run.tiers, run.pages, each[run.tiers], workload.page_bytes, run.moves) for run in runs]
        _, times = timed(self.model, [tier.regions for tier in self.tiers], programs)
        uses = tuple(
            self._snooped(number, workload, policy, sample, seed, self._use(number, workload, runs, times))
            for number in range(len(self.tiers))
        )
        accesses = sum(time.size for time in times)
        return Measured(
            topology=self.topology.name,
            workload=workload.name,
            policy=policy,
            ranks=self.ranks,
            working_set_bytes=working_set_bytes,
            access_ns=sum(use.ns for use in uses) / accesses,
            accesses=accesses,
            moved_bytes=sum(use.moved_in_bytes for use in uses) / accesses,
            tiers=uses,
        )

    def _sample(self, workload: Workload, working_set_bytes: int, pages: int) -> Sample:
        nearest = self.tiers[0].capacity_bytes
        if not 0 < working_set_bytes <= self.capacity_bytes:
            raise ArgumentError(
                f"a working set of {format_bytes(working_set_bytes)} does not fit {self.topology.name}, which has "
                f"{format_bytes(self.capacity_bytes)} for each of {counted(self.ranks, 'rank')}"
            )
        real = -(-working_set_bytes // workload.page_bytes)
        count = min(real, pages * max(-(-working_set_bytes // nearest), PAGES_TIMES_MIN))
        if count * self.ranks > PAGES_MAX:
            raise ArgumentError(
                f"a working set of {format_bytes(working_set_bytes)} is {working_set_bytes // nearest} times the "
                f"nearest memory, too much to be modelled with {pages} pages there for each rank: take fewer"
            )
        room = [tier.capacity_bytes * count // (real * workload.page_bytes) for tier in self.tiers[:-1]]
        room.append(count - min(sum(room), count))  # the last has room for the rest, as was seen above
        return Sample(count, real, tuple(room))

    def _use(
        self, number: int, workload: Workload, runs: Sequence[_Followed], times: Sequence[NDArray[np.int64]]
    ) -> TierUse:
        tier = self.tiers[number]
        here = [run.tiers == number for run in runs]
        accesses = sum(int(mask.sum()) for mask in here)
        moves = [move for run in runs for moves in run.moves.values() for move in moves]
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

    def _snooped(
        self, number: int, workload: Workload, policy: str, sample: Sample, seed: int, use: TierUse
    ) -> TierUse:
        """Add what a tier's bounded snoop filters cost, line by line: a round trip for each line that they give up.

        They see what the policies' ranks touch, warmed up as these are; where pages stay, the same accesses as where
        they move, because a filter knows lines that come again from those that do not. The sample's filters have room
        for the same part of its lines. Ranks take turns; nothing else has to wait for what a round trip delays.
        """
        tier = self.tiers[number]
        if tier.filter_lines is None or not use.accesses:
            return use
        traces = [_traced(policy, workload, sample, seed + rank) for rank in range(self.ranks)]
        nbytes = workload.page_bytes if tier.copied else workload.access_bytes
        lines_read, page_lines = -(-nbytes // LINE_BYTES), workload.page_bytes // LINE_BYTES
        snoops = SnoopFilter(max(tier.filter_lines * sample.pages // sample.real_pages, 1))
        given_up, accesses = 0, 0
        for step in range(WARM_UP_ACCESSES + ACCESSES):
            for rank, (pages, tiers) in enumerate(traces):
                if tiers[step] == number:
                    first = (rank * sample.pages + int(pages[step])) * page_lines
                    asked = snoops.read(range(first, first + lines_read))
                    given_up += asked * (step >= WARM_UP_ACCESSES)
                    accesses += step >= WARM_UP_ACCESSES
        expected = given_up / max(accesses, 1) * use.accesses
        cost_ns = round(expected * (tier.space.back_invalidate_ns or 0))
        return replace(use, ns=use.ns + cost_ns, coherence_ns=use.coherence_ns + cost_ns, back_invalidations=expected)


@dataclass(frozen=True)
class Sample:
    """A few pages that stand for a working set."""

    pages: int  # of the sample
    real_pages: int  # how many pages of the working set they stand for
    room: tuple[int, ...]  # for each tier, how many of the sample's pages it holds


@dataclass(frozen=True)
class _Followed:
    """One rank's measured accesses: pages, the tiers where they lay, and moves by the access that they precede."""

    pages: NDArray[np.int64]
    tiers: NDArray[np.int64]
    moves: dict[int, list[Move]]


def _follow(name: str, workload: Workload, sample: Sample, seed: int) -> _Followed:
    if name != "static":
        return _moved(name, workload, sample, seed)
    pages = workload.evenly(sample.pages, seed)
    return _Followed(pages, fill(range(sample.pages), sample.room).tier_of[pages], {})


@lru_cache(maxsize=64)  # what moves does not depend on what it costs: topologies with tiers as large have it alike
def _moved(name: str, workload: Workload, sample: Sample, seed: int) -> _Followed:
    pages, tiers, moves = _whole(name, workload, sample, seed)
    late = {step - WARM_UP_ACCESSES: move for step, move in moves.items() if step >= WARM_UP_ACCESSES}
    return _Followed(pages[WARM_UP_ACCESSES:], tiers[WARM_UP_ACCESSES:], late)


def _traced(name: str, workload: Workload, sample: Sample, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the pages, and the tiers that they lie in when touched, warming up included."""
    pages, tiers, _ = _whole(name, workload, sample, seed)
    return pages, tiers


@lru_cache(maxsize=64)
def _whole(
    name: str, workload: Workload, sample: Sample, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[int, list[Move]]]:
    placement = fill(range(sample.pages), sample.room)
    pages = workload.trace(sample.pages, sample.real_pages, WARM_UP_ACCESSES + ACCESSES, seed)
    policy, schedule = POLICIES[name](), pages.tolist()
    tiers = np.empty(len(schedule), np.int64)
    moves = {0: policy.begin(placement, schedule)}
    for step, page in enumerate(schedule):
        tiers[step] = placement.tier_of[page]
        if moved := policy.touched(step, page):
            moves[step + 1] = moved
    return pages, tiers, moves
