"""ScalePool (arXiv 2510.14580): its published training speedups beside ours, and what makes them.

Rules: hardware is the configs', parallelisms are those of the models' papers; nothing is fitted, all is predicted. The
baseline runs NCCL's plans in the protocols that it takes. As Calculon does, with which the paper computes, tensor
parallelism is billed to the inside of clusters and all else to what is between them; `two_levels` says what it would be
if only what has to cross did.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cxlemu.topology import Accelerator, Costs, LocalMemory, Topology
from cxlemu.topology.described import Described
from cxlemu.topology.fields import LinkFigures, Model, Name
from studies.cores import on_all_cores
from studies.published.rows import Row, row_of
from studies.training.durations import BETWEEN, LEVELS
from studies.training.fabrics import Modelled, TrainingFabric
from studies.training.hierarchical import TwoLevels
from studies.training.language_model import LanguageModel
from studies.training.machine import Offload, TrainingMachine
from studies.training.offload import NOT_SAID, passing_gbytes_per_s
from studies.training.parallelism import Parallelism
from studies.training.step import TrainingStep, train
from studies.training.symmetric import Symmetric

GEOMEAN, COMMUNICATION = 1.22, 3.79
SYSTEMS = ("baseline", "scalepool")

Key = tuple[int, str]  # the number of a case, and the system that it runs on


class ScalePoolCase(Model):
    model: Name = Field(description="a shipped language model")
    parallel: str = Field(description="as --parallel of cxlemu simulate training")
    microbatch: int = Field(ge=1, le=4096, description="sequences")
    published: float = Field(gt=0, description="speedup over the baseline")
    read_in: Literal["abstract", "paper", "secondary"] = Field(description="where the published speedup was read")


class Host(Model):
    """The baseline's place for the optimizer's state: one accelerator's share of the memory beside it."""

    port: Costs = Field(description="to_pool_gbytes_per_s and from_pool_gbytes_per_s between the two")
    memory: LocalMemory = Field(description="the bandwidth of that memory for the processor that updates")

    @property
    def offload(self) -> Offload:
        """The same place, as a training step takes it."""
        to, back = (rate or NOT_SAID for rate in (self.port.to_pool_gbytes_per_s, self.port.from_pool_gbytes_per_s))
        return Offload("host", to, back, at_memory=True, update_gbytes_per_s=passing_gbytes_per_s(self.memory))


class Setup(Described):
    """The two systems, and the cases that they are compared on."""

    noun: ClassVar[str] = "setup"
    folder: ClassVar[Path] = Path(__file__).parent

    name: Name = Field(description="the setup's name")
    accelerator: Name = Field(description="a shipped accelerator")
    cluster_ranks: int = Field(ge=1, le=1024, description="accelerators of a cluster")
    inside: Name = Field(description="the topology inside a cluster")
    baseline: Name = Field(description="the baseline's topology between clusters")
    scalepool: Name = Field(description="ScalePool's topology between clusters")
    overlap: bool = Field(description="whether communication between data ranks overlaps with computing")
    host: Host = Field(description="the baseline's place for the optimizer's state")
    tier2: LinkFigures = Field(description="one accelerator's path to ScalePool's")
    cases: Annotated[tuple[ScalePoolCase, ...], Field(strict=False, min_length=1, max_length=16)] = Field(
        description="model, parallel, microbatch and published speedup of each"
    )


@dataclass(frozen=True)
class Pair:
    """A model's step on both systems."""

    case: ScalePoolCase
    baseline: TrainingStep
    scalepool: TrainingStep

    @property
    def speedup(self) -> float:
        """How many times as long the step takes on the baseline."""
        return self.baseline.time_ns / self.scalepool.time_ns

    @property
    def communication(self) -> float:
        """How many times as long communication between clusters takes on the baseline, exposed or hidden."""
        return self.baseline.timeline.spent_ns(BETWEEN) / self.scalepool.timeline.spent_ns(BETWEEN)


class Reproduction:
    """ScalePool's figures beside ours: simulated when asked for, and the same every time."""

    def __init__(self, setup: Setup | None = None, *, two_levels: bool = False) -> None:
        self.setup = setup or Setup.load("scalepool")
        self.accelerator = Accelerator.load(self.setup.accelerator)
        self.baseline, self.scalepool = (
            between(Topology.load(name)) for name in (self.setup.baseline, self.setup.scalepool)
        )
        self.inside: TrainingFabric = Modelled(Topology.load(self.setup.inside), tuned=True)
        self.two_levels = two_levels
        self._steps: dict[Key, TrainingStep] = {}  # as far as simulated
        self._coming: Iterator[tuple[Key, TrainingStep]] = iter(())  # of workers

    def step(self, case: ScalePoolCase, fabric: TrainingFabric, offload: Offload) -> TrainingStep:
        how = replace(Parallelism.parse(case.parallel, None), overlap=self.setup.overlap)
        clusters = self.setup.cluster_ranks
        sharing = next(n for n in range(clusters // how.tensor, 0, -1) if how.data % n == 0) if self.two_levels else 1
        outer = TwoLevels(self.inside, fabric, sharing)
        machine = TrainingMachine(self.accelerator, outer, self.inside, clusters, offload)
        return train(LanguageModel.load(case.model), how, machine, microbatch=case.microbatch)

    @contextmanager
    def on_all_cores(self) -> Iterator[None]:
        """Simulate steps side by side."""
        keys = list(product(range(len(self.setup.cases)), SYSTEMS))
        with on_all_cores(self._simulated) as each:
            self._coming = zip(keys, each(keys), strict=True)
            yield
        self._coming = iter(())

    def _simulated(self, key: Key) -> TrainingStep:
        number, system = key
        if system == "baseline":
            return self.step(self.setup.cases[number], self.baseline, self.setup.host.offload)
        rate = self.setup.tier2.payload_gbytes_per_s
        return self.step(self.setup.cases[number], self.scalepool, Offload("tier 2", rate, rate, at_memory=False))

    def _step(self, number: int, system: str) -> TrainingStep:
        wanted = number, system
        while wanted not in self._steps:
            key, step = next(self._coming, None) or (wanted, self._simulated(wanted))
            self._steps[key] = step
        return self._steps[wanted]

    def each_pair(self) -> Iterator[Pair]:
        """Yield every case's steps on both systems as they are simulated; each is simulated once."""
        for number, case in enumerate(self.setup.cases):
            yield Pair(case, *(self._step(number, system) for system in SYSTEMS))

    @property
    def pairs(self) -> list[Pair]:
        """Every case's steps on both systems."""
        return list(self.each_pair())

    @cached_property
    def crossing_once(self) -> dict[str, float]:
        """By model, the speedup if collectives took two levels."""
        reproduction = Reproduction(self.setup, two_levels=True)
        reproduction.baseline, reproduction.scalepool, reproduction.inside = self.baseline, self.scalepool, self.inside
        return {pair.case.model: pair.speedup for pair in reproduction.pairs}

    def varied(self, *, baseline: Topology | None = None, scalepool: Topology | None = None) -> Reproduction:
        """Return the same reproduction with another fabric; what does not change is not simulated again."""
        reproduction = Reproduction(self.setup)
        reproduction.inside = self.inside
        if baseline is not None:
            reproduction.baseline = between(baseline)
        if scalepool is not None:
            reproduction.scalepool = between(scalepool)
        same = [system for system, other in zip(SYSTEMS, (baseline, scalepool), strict=True) if other is None]
        numbers = range(len(self.setup.cases))
        reproduction._steps = {key: self._step(*key) for key in product(numbers, same)}
        return reproduction

    @property
    def geomean(self) -> float:
        """The geometric mean of all speedups."""
        return statistics.geometric_mean(pair.speedup for pair in self.pairs)

    @property
    def communication(self) -> float:
        """The mean of all ratios of communication between clusters."""
        return statistics.fmean(pair.communication for pair in self.pairs)

    def rows(self) -> Iterable[Row]:
        """Yield the table, row by row as it is simulated."""
        for pair in self.each_pair():
            figure, where = f"{pair.case.model}: training speedup", pair.case.read_in
            yield row_of(figure, pair.case.published, pair.speedup, shows=why(pair), read_in=where)
        shows = "of those above"
        yield row_of("geometric mean of the five", GEOMEAN, self.geomean, shows=shows, read_in="abstract")
        yield row_of(
            "communication: mean speedup",
            COMMUNICATION,
            self.communication,
            shows=self._excludes(),
            read_in="secondary",
        )

    def _excludes(self) -> str:
        """Say what the case that communicates most would be if bandwidths gave the published ratio of communication."""
        pair = max(self.pairs, key=lambda pair: pair.baseline.between_bytes / pair.baseline.time_ns)
        slower_ns, faster_ns = (
            sum(step.billed_ns.get(kind, 0.0) for kind in BETWEEN) for step in (pair.baseline, pair.scalepool)
        )
        times = COMMUNICATION / self.communication
        slower = (pair.baseline.time_ns + (times - 1) * slower_ns) / pair.scalepool.time_ns
        faster = pair.baseline.time_ns / (pair.scalepool.time_ns - (1 - 1 / times) * faster_ns)
        return (
            f"the ratio of the links' bandwidths; RDMA so slow, or CXL so fast, that it is {COMMUNICATION} would make "
            f"{pair.case.model} {slower:.2f} or {faster:.2f}: {COMMUNICATION} and the published "
            f"{pair.case.published} exclude each other by bandwidth"
        )


def between(topology: Topology) -> Symmetric:
    """Model a fabric between clusters: NCCL's plans where the topology states protocols, else the fastest of ours."""
    return Symmetric(Modelled(topology, tuned=topology.pool_space.protocols is None))


def why(pair: Pair) -> str:
    """Say what a step consists of, on the baseline."""
    billed_ns, whole = pair.baseline.billed_ns, pair.baseline.time_ns
    shares = {
        level: sum(billed_ns.get(kind, 0) for kind in LEVELS if LEVELS[kind] == level) for level in LEVELS.values()
    }
    return "baseline: " + ", ".join(f"{level} {100 * ns / whole:.0f}%" for level, ns in shares.items() if ns)
