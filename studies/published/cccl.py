"""CCCL (arXiv 2602.22457): its published figures beside those of its plans, as ours, on its modelled test bed.

Rules: the hardware is the configs'; one free parameter of the baseline, what a slice costs its receiver in NCCL beside
its bytes, is fitted on the average of AllGather alone; all else is predicted. Sizes are nccl-tests', powers of two;
averages are arithmetic means of speedups over sizes. AllReduce is one-shot, as CCCL's; where every rank folds, peers
are read staggered. A call is cut into as many chunks as the model says are fastest, up to eight. Growth is that of our
time, from 3 hosts on.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from cxlemu.topology import Topology
from cxlemu.units import format_bytes
from studies.published.nccl import Nccl, NcclPlans
from studies.published.ours import RANKS, OurPlans, Ours
from studies.published.rows import Row, row_of
from studies.published.training import Training

TEST_BED, GROWN, BASELINE = "titan2-6xcz120", "twelve-hosts", "infiniband-3xh100-cccl"
SIZES = tuple(1 << power for power in range(20, 33))  # 1 MB - 4 GB
FEW = SIZES[::6]  # for what is simulated many times
VARIANTS = ("naive", "aggregate", "all")
CURVE = (2, 4, 8, 16)  # chunks; which numbers CCCL compares is not known
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
IN_ABSTRACT = ("all_gather", "broadcast", "gather", "scatter")  # others were read in secondary sources
FITTED_ON = "all_gather"
LARGE_FROM, LARGE_ALL_REDUCE = 256 << 20, 1.05  # the average of larger sizes
LOWS = {"reduce_scatter": 0.48, "scatter": 0.46, "all_to_all": 0.7}
# collective: for 6 and for 12 hosts, the published range; CCCL emulated them, says a secondary source
GROWTH = {
    "all_reduce": ((2.1, 3.0), (8.7, 12.2)),
    "broadcast": ((1.3, 1.3), (2.5, 2.5)),
    "all_to_all": ((1.5, 1.6), (3.6, 3.6)),
}
NAIVE_GATHER = (4.2, 8.0)
OVER_AGGREGATE, OVER_NAIVE = (1.16, 4.2), (0.7, 2.9)  # of "all", and of "aggregate": the least and the largest average
BEST_CHUNKS = (4, 8)
SWINGS = {256 << 20: 0.20, 1 << 30: 0.09}  # all_gather: by how much its slowest number of chunks is slower at most


class Reproduction:
    """CCCL's figures beside ours: simulated when asked for, and the same every time."""

    def __init__(self, sizes: Sequence[int] = SIZES) -> None:
        self.sizes = tuple(sizes)
        self.nccl = Nccl(Topology.load(BASELINE))
        self.ours = Ours(Topology.load(TEST_BED))
        self.grown = Ours(Topology.load(GROWN))
        self.training = Training(self.ours.topology, self.nccl.topology)
        self.grown_whole = Ours(Topology.load(GROWN), whole_chunks=True)
        self._our_plans: OurPlans = {}  # of all that `on` returns: hardware whose times differ has the same plans
        self._nccl_plans: NcclPlans = {}

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

    def speedups(
        self, collective: str, variant: str = "all", *, slice_ns: int | None = None, chunks: int = 0
    ) -> list[float]:
        """Return NCCL's time divided by ours, for each size; ``chunks=0`` takes the fastest number of chunks."""
        cost_ns = self.slice_ns if slice_ns is None else slice_ns
        nccl_us = self.nccl.times_us(collective, self.sizes, RANKS, cost_ns)
        return [
            us / self.ours.time(collective, size, variant=variant, chunks=chunks).us
            for size, us in zip(self.sizes, nccl_us, strict=True)
        ]

    def on(self, ours: Topology, grown: Topology, baseline: Topology, sizes: Sequence[int]) -> Reproduction:
        """Return the same reproduction on other hardware and sizes (powers of two), with nothing fitted anew."""
        reproduction = Reproduction(sizes)
        reproduction.slice_ns = self.slice_ns
        if ours is self.ours.topology:
            reproduction.ours, reproduction.grown, reproduction.grown_whole = self.ours, self.grown, self.grown_whole
        else:
            reproduction.ours, reproduction.grown = (
                Ours(topology, plans=self._our_plans) for topology in (ours, grown)
            )
            reproduction.grown_whole = Ours(grown, whole_chunks=True, plans=self._our_plans)
        reproduction.nccl = self.nccl if baseline is self.nccl.topology else Nccl(baseline, self._nccl_plans)
        reproduction.training = Training(ours, baseline, self.training)
        return reproduction

    def gain(self, collective: str, over: str, variant: str = "all") -> float:
        """Return how many times as long one variant takes as another, the mean over sizes."""
        return statistics.fmean(
            self.ours.time(collective, size, variant=over).us / self.ours.time(collective, size, variant=variant).us
            for size in self.sizes
        )

    def growth(self, collective: str, ranks: int, *, whole_chunks: bool = False) -> list[float]:
        """Return, for each size, our time on a number of hosts divided by that on three."""
        ours = self.grown_whole if whole_chunks else self.grown
        return [ours.time(collective, size, ranks=ranks).us / ours.time(collective, size).us for size in self.sizes]

    def by_chunks(self, collective: str) -> dict[int, float]:
        """Compare numbers of chunks per block."""
        curves = [self.curve(collective, size) for size in self.sizes]
        return {k: statistics.fmean(curve[k] for curve in curves) for k in CURVE}

    def curve(self, collective: str, size: int) -> dict[int, float]:
        """Return, for each of CURVE, a call's time by that of the best of these numbers of chunks."""
        us = {k: self.ours.time(collective, size, chunks=k).us for k in CURVE}
        return {k: time_us / min(us.values()) for k, time_us in us.items()}

    def chosen(self, collective: str) -> list[int]:
        """Return, for each size, the number of chunks that the model finds fastest."""
        return [self.ours.time(collective, size).chunks for size in self.sizes]

    # --- the table ------------------------------------------------------------------------------------------------

    def rows(self) -> list[Row]:
        """Return the whole table, the training case included."""
        return list(self.each_row())

    def each_row(self) -> Iterator[Row]:
        """Yield the rows of the table as they are simulated."""
        yield from self._config()
        yield from self.averages()
        yield from self._lows()
        yield from self._variants()
        yield from self._chunks()
        yield from self._growth()
        yield from self.training.rows()

    def _config(self) -> Iterable[Row]:
        topology = self.ours.topology
        load_ns, local_ns = topology.load_latency_ns(0, 0), topology.hosts.memory.latency_ns
        yield row_of("pool load latency (ns)", 658, load_ns, "config", read_in="paper")
        yield row_of("local load latency (ns)", 214, local_ns, "config", read_in="paper")
        rate = topology.costs.from_pool_gbytes_per_s or 0
        yield row_of("copy engine (GB/s)", 20, rate, "config", read_in="secondary")

    def averages(self) -> Iterable[Row]:
        """Yield a row for each collective's average speedup, and one for all_reduce of large sizes."""
        for collective, published in AVERAGES.items():
            kind = "fitted" if collective == FITTED_ON else "predicted"
            ours = statistics.fmean(self.speedups(collective))
            where = "abstract" if collective in IN_ABSTRACT else "secondary"
            row = row_of(f"{collective}: average speedup", published, ours, kind, read_in=where)
            us = self.nccl.time_us(collective, self.sizes[-1], RANKS, self.slice_ns)
            rate = self.sizes[-1] / us / 1e3
            met = self.sizes[-1] / self.ours.time(collective, self.sizes[-1]).us / 1e3 / published
            yield _explained(row, f"{self._busiest(collective, -1)}; NCCL's algbw {rate:.1f} GB/s, met at {met:.1f}")
        large = [
            speedup for speedup, size in zip(self.speedups("all_reduce"), self.sizes, strict=True) if size > LARGE_FROM
        ]
        if large:
            figure = f"all_reduce: average above {format_bytes(LARGE_FROM)}"
            row = row_of(figure, LARGE_ALL_REDUCE, statistics.fmean(large), read_in="secondary")
            yield _explained(row, self._busiest("all_reduce", -1))

    def _lows(self) -> Iterable[Row]:
        for collective, published in LOWS.items():
            ratios = self.speedups(collective)
            row = row_of(f"{collective}: lowest speedup", published, min(ratios), read_in="secondary")
            index = ratios.index(min(ratios))
            ours = self.ours.time(collective, self.sizes[index])
            nccl_us = self.nccl.time_us(collective, self.sizes[index], RANKS, self.slice_ns)
            what = (
                f"{format_bytes(self.sizes[index])} in {_chunks(ours.chunks)}: {ours.us:.0f} us, NCCL {nccl_us:.0f} us"
            )
            eight = min(self.speedups(collective, chunks=8))
            yield _explained(row, f"{what}; with 8 chunks at every size {eight:.2f}")

    def _variants(self) -> Iterable[Row]:
        pairs = (("all", "aggregate", OVER_AGGREGATE), ("aggregate", "naive", OVER_NAIVE))
        for variant, over, ends in pairs:
            gains = {collective: self.gain(collective, over, variant) for collective in AVERAGES}
            for which, published, pick in (("smallest", ends[0], min), ("largest", ends[1], max)):
                name = pick(gains, key=lambda name: gains[name])
                figure = f"{variant} over {over}: {which} average"
                row = row_of(figure, published, gains[name], read_in="secondary")
                yield _explained(row, f"{name}; {over}: {self._busiest(name, -1, over)}")
        row = row_of("gather: all over naive", NAIVE_GATHER, self.gain("gather", "naive"), read_in="secondary")
        # the root reads all blocks but its own
        read_bytes = self.sizes[-1] * (RANKS - 1) / RANKS
        naive_gbytes_per_s = read_bytes / (self.ours.time("gather", self.sizes[-1]).us * 1e3 * NAIVE_GATHER[0])
        bound = self._busiest("gather", -1, "naive")
        yield _explained(row, f"naive: {bound}; published, the root reads at {naive_gbytes_per_s:.1f} GB/s or less")

    def _chunks(self) -> Iterable[Row]:
        each = [self.by_chunks(collective) for collective in AVERAGES]
        mean = {k: statistics.fmean(curve[k] for curve in each) for k in CURVE}
        best = min(mean, key=lambda k: mean[k])
        yield row_of("chunks of a block: best number", BEST_CHUNKS, best, read_in="secondary")
        for size, published in SWINGS.items():
            ratios = self.curve("all_gather", size)
            figure = f"all_gather, {format_bytes(size)}: varies by chunks"
            row = row_of(figure, published, max(ratios.values()) - 1, read_in="secondary")
            shown = ", ".join(f"{k}: {100 * (time - 1):+.0f}%" for k, time in ratios.items())
            yield _explained(row, f"{shown}; which numbers CCCL compares is not known")

    def _growth(self) -> Iterable[Row]:
        for collective, published in GROWTH.items():
            for ranks, range_ in zip(GROWTH_RANKS[1:], published, strict=True):
                its = statistics.fmean(self.growth(collective, ranks))
                row = row_of(f"{collective}: growth {RANKS} to {ranks} hosts", range_, its, read_in="secondary")
                whole = statistics.fmean(self.growth(collective, ranks, whole_chunks=True))
                bound = self._busiest(collective, -1, ranks=ranks)
                yield _explained(row, f"{bound}; {whole:.2f} where a chunk lies on one card, not on all")

    def _busiest(self, collective: str, size: int, variant: str = "all", ranks: int = RANKS) -> str:
        ours = self.ours if ranks == RANKS else self.grown
        time = ours.time(collective, self.sizes[size], variant=variant, ranks=ranks)
        return f"{time.busiest} {100 * time.utilization:.0f}% busy"


def _chunks(number: int) -> str:
    return "1 chunk" if number == 1 else f"{number} chunks"


def _explained(row: Row, shows: str) -> Row:
    return replace(row, shows=shows) if row.missed else row
