"""ScalePool's study of tier 2 (arXiv 2510.14580): its three figures beside those of memory-bound workloads on tiers.

Rules: the hardware is the configs'; nothing is fitted. The baseline places pages once, as ZeRO-Offload does; where
memory is shared coherently or pooled, pages move to where they are hot. A figure is how many times as long an access
takes on the other system, the geometric mean over all three workloads and over working sets: larger than an
accelerator's memory, up to the cluster's; or larger than that, up to all that there is. Which workloads and sizes the
paper takes, its abstract does not say.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from functools import cache, cached_property

from collectives.reproduce.rows import Row, row_of
from collectives.tiering.study import PAGES, Memory
from collectives.tiering.workloads import Workload
from cxlemu.topology import Topology
from cxlemu.units import format_bytes

BASELINE, CLUSTERS, SCALEPOOL = "tiers-rdma", "tiers-clusters", "tiers-scalepool"
STAYS, MOVES = "static", "hotness"  # policies
ACCELERATORS = (2, 8, 32, 72)  # working sets of so many accelerators' memories
TIMES_CLUSTER = (2, 3, 4)  # and of so many clusters'
PUBLISHED = {"accelerator": 1.4, "cluster": 4.5, "clusters": 1.6}


class TierStudy:
    """Simulated when asked for, and the same every time."""

    def __init__(self, pages: int = PAGES) -> None:
        self.pages = pages
        self.memories = {name: Memory(Topology.load(name)) for name in (BASELINE, CLUSTERS, SCALEPOOL)}
        self.workloads = [Workload.load(name) for name in Workload.shipped()]
        self.access_ns = cache(self._access_ns)

    def _access_ns(self, system: str, workload: Workload, nbytes: int, policy: str) -> float:
        return self.memories[system].measure(workload, nbytes, policy=policy, pages=self.pages).access_ns

    @cached_property
    def in_cluster(self) -> list[int]:
        nearest = self.memories[SCALEPOOL].tiers[0].capacity_bytes
        return [number * nearest for number in ACCELERATORS]

    @cached_property
    def beyond(self) -> list[int]:
        return [times * self.in_cluster[-1] for times in TIMES_CLUSTER]

    def gain(
        self, over: str, sizes: Sequence[int], *, policies: tuple[str, str] | None = None, only: Workload | None = None
    ) -> float:
        """How many times as long an access takes on another system as on ScalePool's tiers, with a policy for each."""
        its, ours = policies or (STAYS if over == BASELINE else MOVES, MOVES)
        return statistics.geometric_mean(
            self.access_ns(over, one, size, its) / self.access_ns(SCALEPOOL, one, size, ours)
            for one in ([only] if only else self.workloads)
            for size in sizes
        )

    def alike(self, policy: str) -> str:
        """The three figures if all systems had one policy."""
        cases = ((BASELINE, self.in_cluster), (BASELINE, self.beyond), (CLUSTERS, self.beyond))
        return ", ".join(f"{self.gain(over, sizes, policies=(policy, policy)):.2f}" for over, sizes in cases)

    def rows(self) -> Iterable[Row]:
        yield self._row("beyond an accelerator", "accelerator", BASELINE, self.in_cluster)
        yield self._row("beyond the cluster", "cluster", BASELINE, self.beyond)
        yield self._row("the same, over clusters alone", "clusters", CLUSTERS, self.beyond)

    def _row(self, what: str, which: str, over: str, sizes: Sequence[int]) -> Row:
        published, ours = PUBLISHED[which], self.gain(over, sizes)
        each = ", ".join(f"{one.name} {self.gain(over, sizes, only=one):.2f}" for one in self.workloads)
        loads = [self.memories[system].tiers[-1].load_ns for system in (over, SCALEPOOL)]
        shows = f"{each}; a load of the last tier takes {loads[0]} against {loads[1]} ns"
        return row_of(f"tier 2: {what}", published, ours, shows=shows)


def told(study: TierStudy) -> str:
    """What the figures are of, and what they would be if all systems moved pages alike."""
    sizes = (study.in_cluster[0], study.in_cluster[-1], study.beyond[-1])
    first, cluster, last = (format_bytes(size) for size in sizes)
    names = ", ".join(workload.name for workload in study.workloads)
    return (
        f"Tier 2: {names} on one accelerator, working sets of {first} to {cluster}, and from there to {last}. Assumed: "
        f"the baseline leaves pages where it placed them, as ZeRO-Offload does, and the others move what is hot. If "
        f"all left them, the three would be {study.alike(STAYS)}; if all moved them, {study.alike(MOVES)}."
    )
