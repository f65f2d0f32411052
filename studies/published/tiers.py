"""ScalePool's study of tier 2 (arXiv 2510.14580): its three figures beside those of memory-bound workloads on tiers.

Rules: the hardware is the configs'; nothing is fitted. The baseline places pages once, as ZeRO-Offload does; where
memory is shared coherently or pooled, pages move to where they are hot. A figure is how many times as long an access
takes on the other system, the geometric mean over all three workloads and over working sets: larger than an
accelerator's memory, up to the cluster's; or larger than that, up to all that there is. Which workloads and sizes the
paper takes, its abstract does not say.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache

from cxlemu.topology import Topology
from cxlemu.units import format_bytes
from studies.choices import PAGES
from studies.published.rows import Row, row_of
from studies.tiering.study import Measured, Memory
from studies.tiering.workloads import Workload

BASELINE, CLUSTERS, SCALEPOOL = "tiers-rdma", "tiers-clusters", "tiers-scalepool"
STAYS, MOVES = "static", "hotness"  # policies
POLICIES = {BASELINE: STAYS, CLUSTERS: MOVES, SCALEPOOL: MOVES}
ACCELERATORS = (2, 8, 32, 72)  # working sets as large as the memories of these numbers of accelerators
TIMES_CLUSTER = (2, 3, 4)  # and of these numbers of clusters
CXL = ("bridge", "leaf", "spine", "far-leaf", "far-bridge")  # switches


class TierStudy:
    """The study of tier 2: simulated when asked for, and the same every time."""

    def __init__(self, pages: int = PAGES) -> None:
        self.memories = {name: Memory(Topology.load(name)) for name in (BASELINE, CLUSTERS, SCALEPOOL)}
        self.workloads = [Workload.load(name) for name in Workload.shipped()]
        nearest = self.memories[SCALEPOOL].tiers[0].capacity_bytes
        self.in_cluster = [number * nearest for number in ACCELERATORS]
        self.beyond = [times * self.in_cluster[-1] for times in TIMES_CLUSTER]

        @cache
        def measured(memory: Memory, workload: Workload, nbytes: int, policy: str) -> Measured:
            return memory.measure(workload, nbytes, policy=policy, pages=pages)

        self._measured = measured

    def varied(self, topologies: Mapping[str, Topology]) -> TierStudy:
        """Return the same study on other hardware; what does not change is not simulated again."""
        tier_study = TierStudy()
        tier_study.memories = self.memories | {name: Memory(topology) for name, topology in topologies.items()}
        tier_study._measured = self._measured
        return tier_study

    def gain(
        self, over: str, sizes: Sequence[int], *, policies: tuple[str, str] | None = None, only: Workload | None = None
    ) -> float:
        """Return how many times as long an access takes on another system, as a geometric mean."""
        its, ours = policies or (POLICIES[over], POLICIES[SCALEPOOL])
        return statistics.geometric_mean(
            self._measured(self.memories[over], workload, size, its).access_ns
            / self._measured(self.memories[SCALEPOOL], workload, size, ours).access_ns
            for workload in ([only] if only else self.workloads)
            for size in sizes
        )

    def measured(self) -> list[Measured]:
        """Return all measurements that the figures rest on."""
        return [
            self._measured(memory, workload, size, POLICIES[name])
            for workload in self.workloads
            for name, memory in self.memories.items()
            for size in (*self.in_cluster, *self.beyond)
        ]

    def gains(self, *, policies: tuple[str, str] | None = None) -> list[float]:
        """Return the three figures."""
        cases = ((BASELINE, self.in_cluster), (BASELINE, self.beyond), (CLUSTERS, self.beyond))
        return [self.gain(over, sizes, policies=policies) for over, sizes in cases]

    def rows(self) -> Iterable[Row]:
        """Yield a row for each of the three figures, and for two of them by another reading."""
        yield self._row("tier 2: beyond an accelerator", 1.4, "secondary", BASELINE, self.in_cluster)
        yield self._row("tier 2: beyond the cluster", 4.5, "abstract", BASELINE, self.beyond)
        yield self._row("tier 2: the same, over clusters", 1.6, "secondary", CLUSTERS, self.beyond)

        yield self._reached("tier 2: latency reached, beyond the cluster", 4.5, "abstract", BASELINE)
        yield self._reached("tier 2: latency reached, over clusters", 1.6, "secondary", CLUSTERS)

    def _reached(self, figure: str, published: float, read_in: str, over: str) -> Row:
        """Compare loads of the last tier alone: a working set that large reads from there, whatever the workload."""
        theirs, ours = (self.memories[system].tiers[-1].load_ns for system in (over, SCALEPOOL))
        return row_of(figure, published, theirs / ours, "reading", f"{theirs} against {ours} ns", read_in=read_in)

    def _row(self, figure: str, published: float, read_in: str, over: str, sizes: Sequence[int]) -> Row:
        ours = self.gain(over, sizes)
        each = ", ".join(f"{workload.name} {self.gain(over, sizes, only=workload):.2f}" for workload in self.workloads)
        loads = [self.memories[system].tiers[-1].load_ns for system in (over, SCALEPOOL)]
        shows = f"{each}; a load of the last tier takes {loads[0]} against {loads[1]} ns"
        return row_of(figure, published, ours, shows=shows, read_in=read_in)


def told(study: TierStudy) -> Iterator[str]:
    """Yield lines on what the figures rest on, and what they would be with other assumptions, one at a time."""
    sizes = (study.in_cluster[0], study.in_cluster[-1], study.beyond[-1])
    first, cluster, last = (format_bytes(size) for size in sizes)
    names = ", ".join(workload.name for workload in study.workloads)
    yield f"Tier 2: {names} on one accelerator, working sets of {first} to {cluster}, and from there to {last}."
    yield "Assumed: the baseline leaves pages where it placed them, the others move hot pages. The three would be:"
    for policy, what in ((STAYS, "left pages where they are"), (MOVES, "moved hot pages")):
        yield f"  {_shown(study.gains(policies=(policy, policy)))} if all {what}"
    for what, topologies in variations({name: memory.topology for name, memory in study.memories.items()}):
        yield f"  {_shown(study.varied(topologies).gains())} if {what}"


def variations(topologies: Mapping[str, Topology]) -> Iterator[tuple[str, dict[str, Topology]]]:
    """Yield each varied assumption, and the topologies that change by it."""
    for factor in (0.5, 2):
        ns, slower = _with_copies(topologies[BASELINE], factor)
        yield f"starting a copy took {ns} ns", {BASELINE: slower}
    for factor in (0.5, 2):
        changed = {name: _with_switches(topologies[name], factor) for name in (CLUSTERS, SCALEPOOL)}
        yield f"CXL switches and bridges took {factor:g} times as long", changed


def _with_copies(topology: Topology, factor: float) -> tuple[int, Topology]:
    *others, space = topology.spaces
    assert space.costs is not None and space.costs.copy_ns is not None
    ns = round(factor * space.costs.copy_ns)
    costs = space.costs.model_copy(update={"copy_ns": ns})
    return ns, topology.model_copy(update={"spaces": (*others, space.model_copy(update={"costs": costs}))})


def _with_switches(topology: Topology, factor: float) -> Topology:
    switches = [
        switch.model_copy(update={"port_latency_ns": round(factor * switch.port_latency_ns)})
        if switch.name in CXL
        else switch
        for switch in topology.switches
    ]
    return topology.model_copy(update={"switches": tuple(switches)})


def _shown(figures: Sequence[float]) -> str:
    return ", ".join(f"{figure:.2f}" for figure in figures)
