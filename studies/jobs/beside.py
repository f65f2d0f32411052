"""Jobs beside each other: each one alone on its ranks, then all at once on the same ranks of the same fabric."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from cxlemu.cost import CostModel
from cxlemu.engines.shared import SharedFabric
from cxlemu.engines.virtual import Use
from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from studies.jobs.job import FabricJob, Figure, Played


@dataclass(frozen=True)
class ComparedFigure:
    name: str
    alone: float
    beside: float
    slowdown: float | None  # how many times as long, or how many times fewer in a second; None where it takes no time


@dataclass(frozen=True)
class JobBeside:
    job: FabricJob
    first_rank: int
    alone_ns: int  # when it had done what it was to do
    beside_ns: int
    until_ns: int  # how long it went on beside the others
    figures: list[ComparedFigure]


@dataclass(frozen=True)
class JobsCompared:
    jobs: list[JobBeside]
    shared: list[Use]  # links and cards that more than one job uses, as all use them together, the busiest first
    span_ns: int

    @property
    def together(self) -> float:
        """For which part of the time all jobs went on."""
        return min(job.until_ns for job in self.jobs) / self.span_ns if self.span_ns else 0.0


def compare(topology: Topology, jobs: Sequence[FabricJob]) -> JobsCompared:
    """Run each job alone, then all at once. Ranks are given out in the jobs' order."""
    total = sum(job.ranks for job in jobs)
    if total > topology.place_count:
        each = " + ".join(str(job.ranks) for job in jobs)
        raise ArgumentError(f"{topology.name} has places for {topology.place_count} ranks, but the jobs take {each}")
    firsts = [0, *accumulate(job.ranks for job in jobs)]
    places = [range(first, first + job.ranks) for first, job in zip(firsts, jobs, strict=False)]
    model = CostModel.of(topology, total)
    alone = [_played(model, [(job, ranks)]) for job, ranks in zip(jobs, places, strict=True)]
    together, fabric = _played(model, list(zip(jobs, places, strict=True)))
    users = [{use.resource.name for use in _shareable(each)} for _, each in alone]
    shared = [use for use in _shareable(fabric) if sum(use.resource.name in names for names in users) > 1]
    besides = []
    for job, ranks, ((before,), _), after in zip(jobs, places, alone, together, strict=True):
        figures = [_compared(*pair) for pair in zip(before.figures(), after.figures(), strict=True)]
        until_ns = fabric.now_ns if after.repeats else _end(after)
        besides.append(JobBeside(job, ranks[0], _end(before), _end(after), until_ns, figures))
    return JobsCompared(besides, sorted(shared, key=lambda use: -use.busy_ns), fabric.now_ns)


def _played(model: CostModel, jobs: Sequence[tuple[FabricJob, range]]) -> tuple[list[Played], SharedFabric]:
    fabric = SharedFabric(model)
    played = [job.begin(fabric, ranks) for job, ranks in jobs]
    fabric.run(lambda: any(job.over_ns is None for job in played))
    return played, fabric


def _end(played: Played) -> int:
    assert played.over_ns is not None, "a job stands still"
    return played.over_ns


def _shareable(fabric: SharedFabric) -> list[Use]:
    return [use for use in fabric.transfers.uses if use.resource.kind in ("link", "card") and use.resource.gbytes_per_s]


def _compared(alone: Figure, beside: Figure) -> ComparedFigure:
    less, more = (beside.value, alone.value) if alone.is_rate else (alone.value, beside.value)
    return ComparedFigure(alone.name, alone.value, beside.value, more / less if less else None)
