"""CCCL (arXiv 2602.22457): its published figures beside those of our plans on its modelled test bed.

Rules: the hardware is the configs'; one free parameter of the baseline, what a slice costs its receiver in NCCL beside
its bytes, is fitted on the average of AllGather alone; all else is predicted. Sizes are nccl-tests', powers of two;
averages are arithmetic means of speedups over sizes. AllReduce is one-shot, as CCCL's. Growth is that of our time, from
3 hosts on.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from cxlemu.topology import Topology
from cxlemu.units import format_bytes
from studies.published.nccl import Nccl
from studies.published.ours import RANKS, Ours
from studies.published.rows import Row
from studies.published.rows import row_of as _row
from studies.published.training import Training

TEST_BED, GROWN, BASELINE = "titan2-6xcz120", "twelve-hosts", "infiniband-3xh100"
SIZES = tuple(1 << power for power in range(20, 33))  # 1 MB - 4 GB
VARIANTS = ("naive", "aggregate", "all")
CHUNKS = (2, 4, 8, 16)
GROWTH_RANKS = (3, 6, 12)
SLICE_NS_MAX = 1_000_000  # nothing that could be fitted

AVERAGES = {
    "all_gather": 1.34,
    "broadcast": 1.84,
    "gather": 1.94,
    "scatter": 1.04,
    "all_reduce": 1.50,
    "reduce_scatter": 1.43,
    "reduce": 1.70,
    "all_to_all": 1.53,
}
FITTED_ON = "all_gather"
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
GROUPED = ("gather", "scatter", "all_to_all")
LOWS = {"reduce_scatter": 0.48, "scatter": 0.46, "all_to_all": 0.7}
# collective: for 6 and for 12 hosts, the published range
GROWTH = {
    "all_reduce": ((2.1, 3.0), (8.7, 12.2)),
    "broadcast": ((1.3, 1.3), (2.5, 2.5)),
    "all_to_all": ((1.5, 1.6), (3.6, 3.6)),
}
NAIVE_GATHER = (4.2, 8.0)
BEST_CHUNKS = (4, 8)
SWING = (0.09, 0.20)  # from one collective to another; of which numbers is not said, ours is of CHUNKS


class Reproduction:
    """CCCL's figures beside ours: simulated when asked for, and the same every time.

    Args:
        sizes: In bytes, as nccl-tests counts them; powers of two, ascending.
    """

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        self.sizes = tuple(sizes)
        self.nccl = Nccl(Topology.load(BASELINE))
        self.ours = Ours(Topology.load(TEST_BED))
        self.grown = Ours(Topology.load(GROWN))
        self.training = Training(self.ours.topology, self.nccl.topology)
        self.grown_whole = Ours(Topology.load(GROWN), whole_chunks=True)

    # --- the baseline and its one free parameter ------------------------------------------------------------------

    @cached_property
    def slice_ns(self) -> int:
        """The fitted cost of a slice: the least with which our average is as good as the published one.

        The more a slice costs NCCL's receiver, the better we look.
        """
        return bisect_left(
            range(SLICE_NS_MAX),
            AVERAGES[FITTED_ON],
            key=lambda slice_ns: statistics.fmean(self.speedups(FITTED_ON, slice_ns=slice_ns)),
        )

    def speedups(self, collective: str, variant: str = "all", *, slice_ns: int | None = None) -> list[float]:
        """Compare our plans with NCCL on InfiniBand.

        Args:
            collective: Its name.
            variant: Ours: one of VARIANTS.
            slice_ns: What a slice costs NCCL's receiver; None: the fitted cost.

        Returns:
            NCCL's time divided by ours, for each size.
        """
        cost_ns = self.slice_ns if slice_ns is None else slice_ns
        return [
            self.nccl.time_us(collective, size, RANKS, cost_ns) / self.ours.time(collective, size, variant=variant).us
            for size in self.sizes
        ]

    def with_grouped_slices(self, nbytes: int, sizes: Sequence[int]) -> Reproduction:
        """Return the same reproduction, at other sizes, where NCCL's grouped sends and receives come in other slices.

        Args:
            nbytes: The size of such a slice.
            sizes: In bytes, powers of two, ascending.
        """
        other = Reproduction(sizes)
        other.nccl, other.ours = Nccl(self.nccl.topology, grouped_slice_bytes=nbytes), self.ours
        other.slice_ns = self.slice_ns
        return other

    @cached_property
    def folding(self) -> Reproduction:
        """The same reproduction where kernels that fold read the pool by themselves, as fast as their host's link."""
        other, topology = Reproduction(self.sizes), self.ours.topology
        link = next(link for link in topology.links if "hosts" in link.ends)
        costs = topology.costs.model_copy(update={"fold_from_pool_gbytes_per_s": link.gbytes_per_s})
        other.nccl, other.ours = self.nccl, Ours(topology.model_copy(update={"costs": costs}))
        other.slice_ns = self.slice_ns
        return other

    def gains(self, collective: str, over: str) -> list[float]:
        """Return, for each size, how many times as long another variant takes as "all".

        Args:
            collective: Its name.
            over: The other variant.
        """
        return [
            self.ours.time(collective, size, variant=over).us / self.ours.time(collective, size).us
            for size in self.sizes
        ]

    def growth(self, collective: str, ranks: int, *, whole_chunks: bool = False) -> list[float]:
        """Return, for each size, our time on a number of hosts divided by that on three.

        Args:
            collective: Its name.
            ranks: How many hosts, with a rank each.
            whole_chunks: Whether a chunk lies on one card, not on all.
        """
        ours = self.grown_whole if whole_chunks else self.grown
        return [ours.time(collective, size, ranks=ranks).us / ours.time(collective, size).us for size in self.sizes]

    def by_chunks(self, collective: str) -> dict[int, float]:
        """Compare numbers of chunks per block.

        Returns:
            For each of CHUNKS, the mean over sizes of its time divided by that of the best number for this size.
        """
        times = {k: [self.ours.time(collective, size, chunks=k).us for size in self.sizes] for k in CHUNKS}
        best = [min(column) for column in zip(*times.values(), strict=True)]
        return {k: statistics.fmean(us / b for us, b in zip(its, best, strict=True)) for k, its in times.items()}

    # --- the table ------------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Return the whole table, the training case included."""
        rows = [*self._config(), *self.averages(), *self._lows(), *self._variants(), *self._chunks(), *self._growth()]
        return [*rows, *self.training.rows()]

    def _config(self) -> Iterable[Row]:
        topology = self.ours.topology
        yield _row("pool load latency (ns)", 658, topology.load_latency_ns(0, 0), "config")
        yield _row("local load latency (ns)", 214, topology.hosts.memory.latency_ns, "config")
        yield _row("copy engine (GB/s)", 20, topology.costs.from_pool_gbytes_per_s or 0, "config")

    def averages(self) -> Iterable[Row]:
        """Yield a row for each collective's average speedup."""
        for collective, published in AVERAGES.items():
            kind = "fitted" if collective == FITTED_ON else "predicted"
            row = _row(f"{collective}: average speedup", published, statistics.fmean(self.speedups(collective)), kind)
            us = self.nccl.time_us(collective, self.sizes[-1], RANKS, self.slice_ns)
            rate = self.sizes[-1] / us / 1e3
            met = self.sizes[-1] / self.ours.time(collective, self.sizes[-1]).us / 1e3 / published
            yield _explained(row, f"{self._busiest(collective, -1)}; NCCL's algbw {rate:.1f} GB/s, met at {met:.1f}")

    def _lows(self) -> Iterable[Row]:
        for collective, published in LOWS.items():
            its = self.speedups(collective)
            row = _row(f"{collective}: lowest speedup", published, min(its), "predicted")
            at = its.index(min(its))
            us = self.ours.time(collective, self.sizes[at]).us
            nccl_us = self.nccl.time_us(collective, self.sizes[at], RANKS, self.slice_ns)
            size = format_bytes(self.sizes[at])
            yield _explained(row, f"{size}: {us:.0f} us, NCCL {nccl_us:.0f} us; {self._busiest(collective, at)}")

    def _variants(self) -> Iterable[Row]:
        gains = {collective: statistics.fmean(self.gains(collective, "aggregate")) for collective in AVERAGES}
        for which, published, pick in (("smallest", 1.16, min), ("largest", 4.2, max)):
            collective = pick(gains, key=lambda name: gains[name])
            row = _row(f"all over aggregate: {which} average", published, gains[collective], "predicted")
            yield _explained(row, f"{collective}; {self._busiest(collective, -1)}")
        row = _row("gather: all over naive", NAIVE_GATHER, statistics.fmean(self.gains("gather", "naive")), "predicted")
        # the root reads all blocks but its own
        read_bytes = self.sizes[-1] * (RANKS - 1) / RANKS
        naive_gbytes_per_s = read_bytes / (self.ours.time("gather", self.sizes[-1]).us * 1e3 * NAIVE_GATHER[0])
        bound = self._busiest("gather", -1, "naive")
        yield _explained(row, f"naive: {bound}; published, the root reads at {naive_gbytes_per_s:.1f} GB/s or less")

    def _chunks(self) -> Iterable[Row]:
        each = {collective: self.by_chunks(collective) for collective in AVERAGES}
        mean = {k: statistics.fmean(its[k] for its in each.values()) for k in CHUNKS}
        best = min(mean, key=lambda k: mean[k])
        yield _row("chunks a block: best number", BEST_CHUNKS, best, "predicted")
        swings = {collective: max(its.values()) / min(its.values()) - 1 for collective, its in each.items()}
        for which, published, pick in (("smallest", SWING[0], min), ("largest", SWING[1], max)):
            collective = pick(swings, key=lambda name: swings[name])
            row = _row(f"chunks a block: {which} swing", published, swings[collective], "predicted")
            worst = max(CHUNKS, key=lambda k: each[collective][k])
            yield _explained(row, f"{collective}, of {', '.join(map(str, CHUNKS))} chunks: worst {worst}")

    def _growth(self) -> Iterable[Row]:
        for collective, published in GROWTH.items():
            for ranks, range_ in zip(GROWTH_RANKS[1:], published, strict=True):
                its = statistics.fmean(self.growth(collective, ranks))
                row = _row(f"{collective}: growth {RANKS} to {ranks} hosts", range_, its, "predicted")
                whole = statistics.fmean(self.growth(collective, ranks, whole_chunks=True))
                bound = self._busiest(collective, -1, ranks=ranks)
                yield _explained(row, f"{bound}; {whole:.2f} where a chunk lies on one card, not on all")

    def _busiest(self, collective: str, size: int, variant: str = "all", ranks: int = RANKS) -> str:
        ours = self.ours if ranks == RANKS else self.grown
        its = ours.time(collective, self.sizes[size], variant=variant, ranks=ranks)
        return f"{its.busiest} {100 * its.utilization:.0f}% busy"


def _explained(row: Row, shows: str) -> Row:
    return replace(row, shows=shows) if row.missed else row
