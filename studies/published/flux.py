"""FLUX (arXiv 2406.06858): its published figures beside those of our fused plans on modelled clusters.

Rules: hardware is the configs', and so is what each chip's GEMMs reach, which others measured; nothing is fitted to
FLUX's figures. Both sides of an efficiency are ours: the unfused call is the fastest of our plans, at the links' full
rate. Published are the lowest and the best efficiency of each cluster; which rows they are of is not said in what we
have, here they are those from 1,024 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from collectives.fused.choice import Operator
from collectives.sweep.fused.metrics import Metrics
from studies.published.flux_block import Block
from studies.published.flux_clusters import RANKS, Clusters, Shape
from studies.published.rows import Row, row_of

# cluster: the lowest and the best overlap efficiency that is published, if any is
CLUSTERS: dict[str, tuple[float, float] | None] = {
    "pcie-8xa100": (0.41, 0.57),
    "nvlink-8xa100": (0.36, 0.96),
    "nvlink-8xh800": (0.37, 0.93),
    "cxl-8xh100": None,
}
MEASURED = tuple(name for name, published in CLUSTERS.items() if published is not None)
# the least and the largest share of communication before fusing
SHARES = {"pcie-8xa100": (0.40, 0.75), "nvlink-8xa100": (0.10, 0.25), "nvlink-8xh800": (0.20, 0.50)}
OVER_TRANSFORMER_ENGINE = {"training": 1.38, "prefill": 2.06, "decoding": 2.10}  # at best
IN_ABSTRACT = 0.96  # of these efficiencies
SHAPES = {"all_gather_gemm": (49152, 12288), "gemm_reduce_scatter": (12288, 49152)}  # n, k: GPT-3's
SHORT = {"all_gather_gemm": "AG+GEMM", "gemm_reduce_scatter": "GEMM+RS"}  # FLUX's names
ROWS = (64, 512, 1024, 2048, 4096, 8192)
RANGE_FROM = 1024
# For GPT-3's blocks: the published best speedup, over Megatron-LM and vLLM; and tokens, which we assume.
SPEEDUPS = {"training": (1.24, (2048,)), "prefill": (1.66, (8192,)), "decoding": (1.30, (64, 512))}


@dataclass(frozen=True, slots=True)
class Report:
    """Times of m = 4096, in ms: the faster of two GEMMs (github.com/bytedance/flux, docs/performance_report.md)."""

    gemm: float
    comm: float
    unfused: float
    fused: float

    @property
    def efficiency(self) -> float:
        """The overlap efficiency: 1 if the fused call takes as long as its GEMM, 0 if it takes as long as unfused."""
        return 1 - (self.fused - self.gemm) / (self.unfused - self.gemm)


REPORTED_ROWS = 4096
REPORTED = {
    ("nvlink-8xa800", "all_gather_gemm"): Report(2.378, 0.662, 3.099, 2.469),
    ("nvlink-8xa800", "gemm_reduce_scatter"): Report(2.429, 0.646, 3.100, 2.508),
    ("nvlink-8xh800", "all_gather_gemm"): Report(0.814, 0.583, 1.429, 0.957),
    ("nvlink-8xh800", "gemm_reduce_scatter"): Report(0.818, 0.590, 1.408, 0.932),
}
# How much longer kernels take beside NCCL's: the mean over models, A100, H100, MI250 and MI210 (arXiv 2507.03114).
SLOWED = 0.189


class Reproduction:
    """FLUX's figures beside ours: simulated when asked for, and the same every time."""

    def __init__(
        self,
        rows: Iterable[int] = ROWS,
        clusters: Clusters | None = None,
    ) -> None:
        self.m = tuple(sorted(set(rows)))
        self.clusters = clusters or Clusters()
        self._names = tuple(CLUSTERS) if clusters is None else MEASURED
        self._shapes: list[Shape] = []  # those simulated so far

    @property
    def is_whole(self) -> bool:
        """Whether all rows are asked for: published ranges say nothing about some of them."""
        return self.m == ROWS

    def _shape(self, cluster: str, kind: str, m: int) -> Shape:
        return self.clusters.shape(cluster, Operator(kind, m, *SHAPES[kind]))

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Use all cores for what `each_shape` and `each_row` will ask for."""
        asked = [*self._asked(), *((cluster, kind, REPORTED_ROWS) for cluster, kind in REPORTED)]
        cases = [(cluster, Operator(kind, m, *SHAPES[kind])) for cluster, kind, m in asked]
        for cluster, phase, tokens in self._phases() if self.is_whole else ():
            cases += self.clusters.cases_of_block(cluster, phase, tokens)
        with self.clusters.ahead(cases):
            yield

    def _asked(self) -> list[tuple[str, str, int]]:
        return [(cluster, kind, m) for cluster in self._names for kind in SHAPES for m in self.m]

    def _phases(self) -> list[tuple[str, str, int]]:
        each = [(phase, its) for phase, (_, tokens) in SPEEDUPS.items() for its in tokens]
        return [(cluster, *phase) for cluster in self._names for phase in each]

    def each_shape(self) -> Iterator[Shape]:
        """Yield the operators on every cluster, with every number of rows, as they are simulated; each is simulated
        once."""
        for number, case in enumerate(self._asked()):
            if number == len(self._shapes):
                self._shapes.append(self._shape(*case))
            yield self._shapes[number]

    @property
    def shapes(self) -> list[Shape]:
        """The operators on every cluster, with every number of rows."""
        return list(self.each_shape())

    def each_row(self) -> Iterator[Row]:
        """Yield the table, as it is simulated; ranges and blocks are in it where all rows are asked for."""
        yield from self._reported()
        if self.is_whole:
            for part in (self._ranges, self._shares, self._blocks, self._over_engine):
                yield from part()

    @cached_property
    def rows(self) -> list[Row]:
        return list(self.each_row())

    @cached_property
    def blocks(self) -> dict[tuple[str, str, int], Block]:
        """The model's blocks, by cluster, phase and tokens."""
        return {phase: self.clusters.block(*phase) for phase in self._phases()}

    def _reported(self) -> Iterable[Row]:
        for (cluster, kind), report in REPORTED.items():
            metrics = self._shape(cluster, kind, REPORTED_ROWS).metrics
            words = f"{cluster.removeprefix('nvlink-8x')} {SHORT[kind]}"
            gemm_ns = metrics.gemm_ns - (self.clusters.simulator(cluster).topology.costs.call_ns or 0)
            yield row_of(f"{words}: GEMM (ms)", report.gemm, gemm_ns / 1e6, read_in="repository")
            moved_bytes = REPORTED_ROWS * 12288 * 2 * (RANKS - 1) / RANKS
            ours, theirs = moved_bytes / metrics.comm_ns, moved_bytes / (report.comm * 1e6)
            shows = f"a rank receives at {ours:.0f} GB/s, with NCCL {theirs:.0f}: ours copy at the link's full rate"
            yield row_of(
                f"{words}: collective (ms)", report.comm, metrics.comm_ns / 1e6, shows=shows, read_in="repository"
            )
            for style, theirs_ms in (("unfused", report.unfused), ("fused", report.fused)):
                ms, shows = getattr(metrics, f"{style}_ns") / 1e6, _beside(report, metrics, style)
                yield row_of(f"{words}: {style} (ms)", theirs_ms, ms, shows=shows, read_in="repository")
            efficiency, published = efficiency_of(metrics), round(report.efficiency, 3)
            yield row_of(f"{words}: overlap", published, efficiency, shows=shows, read_in="repository")

    def slowed(self) -> dict[str, tuple[float, float]]:
        """Return what efficiencies would be if tiles took `SLOWED` longer while anything moves."""
        ranges = {}
        for cluster, published in CLUSTERS.items():
            if published is not None:
                efficiencies = [slowed_efficiency_of(shape.metrics) for shape in self._ranged(cluster)]
                ranges[cluster] = min(efficiencies), max(efficiencies)
        return ranges

    def _ranged(self, cluster: str) -> list[Shape]:
        return [shape for shape in self.shapes if shape.cluster == cluster and shape.operator.m >= RANGE_FROM]

    def _ranges(self) -> Iterable[Row]:
        for cluster, published in CLUSTERS.items():
            if published is None:
                continue
            ranged = self._ranged(cluster)
            for which, theirs, pick in (("lowest", published[0], min), ("best", published[1], max)):
                shape = pick(ranged, key=lambda shape: efficiency_of(shape.metrics))
                operator, metrics = shape.operator, shape.metrics
                shows = (
                    f"{SHORT[operator.kind]}, m = {operator.m}: GEMM {metrics.gemm_ns / 1e3:.0f} us, collective "
                    f"{metrics.comm_ns / 1e3:.0f} us, exposed {metrics.ect_ns('fused') / 1e3:.0f} us"
                )
                where = "abstract" if theirs == IN_ABSTRACT else "paper"
                yield row_of(f"{cluster}: {which} overlap", theirs, efficiency_of(metrics), shows=shows, read_in=where)

    def _shares(self) -> Iterable[Row]:
        for cluster, published in SHARES.items():
            if cluster not in CLUSTERS:
                continue
            for which, theirs, pick in (("least", published[0], min), ("largest", published[1], max)):
                shape = pick(self._ranged(cluster), key=lambda shape: _share_of(shape.metrics))
                operator, metrics = shape.operator, shape.metrics
                shows = (
                    f"{SHORT[operator.kind]}, m = {operator.m}: {metrics.ect_ns('unfused') / 1e3:.0f} of "
                    f"{metrics.unfused_ns / 1e3:.0f} us; which calls the published share is of is not known"
                )
                figure = f"{cluster}: {which} share of communication"
                yield row_of(figure, theirs, _share_of(metrics), shows=shows, read_in="secondary")

    def _blocks(self) -> Iterable[Row]:
        """Yield rows for the clusters that were measured: the pool is not one of them."""
        for phase, (published, _) in SPEEDUPS.items():
            theirs = [key for key in self.blocks if key[1] == phase and CLUSTERS[key[0]] is not None]
            cluster, _, tokens = best = max(theirs, key=lambda key: self.blocks[key].speedup)
            block = self.blocks[best]
            share, gain = 1 - block.rest_ns / (block.unfused_ns + block.rest_ns), block.unfused_ns / block.fused_ns
            shows = (
                f"{cluster}, {tokens} tokens: {share:.0%} of a block are GEMMs with collectives, fused {gain:.2f} "
                f"times as fast"
            )
            figure = f"{phase}: best speedup of a block"
            yield row_of(figure, published, block.speedup, shows=shows, read_in="abstract")

    def _over_engine(self) -> Iterable[Row]:
        """Yield rows against TransformerEngine, which overlaps medium-grained."""
        for phase, published in OVER_TRANSFORMER_ENGINE.items():
            theirs = [key for key in self.blocks if key[1] == phase and CLUSTERS[key[0]] is not None]
            if theirs:
                best = max(theirs, key=lambda key: self.blocks[key].speedup_over_medium)
                block = self.blocks[best]
                where = f"{best[0]}, {best[2]} tokens"
                shows = f"{where}: medium-grained in the fastest order and transport, unlike TransformerEngine's"
                figure = f"{phase}: best over TransformerEngine"
                yield row_of(figure, published, block.speedup_over_medium, shows=shows, read_in="secondary")


def _share_of(metrics: Metrics) -> float:
    """Return which share of an unfused call is communication."""
    return metrics.ect_ns("unfused") / metrics.unfused_ns


def _beside(report: Report, its: Metrics, style: str) -> str:
    """Say what a style exposes there and here."""
    theirs = {"unfused": report.unfused, "fused": report.fused}[style] - report.gemm
    return f"FLUX exposes {theirs * 1e3:.0f} us beside its GEMM, the model {its.ect_ns(style) / 1e3:.0f} us"


def efficiency_of(metrics: Metrics) -> float:
    """Return an operator's overlap efficiency."""
    efficiency = metrics.overlap_efficiency()
    assert efficiency is not None  # eight ranks communicate
    return efficiency


def slowed_efficiency_of(metrics: Metrics) -> float:
    """Return the efficiency if tiles took `SLOWED` longer while anything moves.

    Something moves for as long as they compute at most.
    """
    longer_ns = SLOWED * min(metrics.comm_ns, metrics.gemm_ns)
    return efficiency_of(metrics) - longer_ns / metrics.ect_ns("unfused")
