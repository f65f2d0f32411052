"""FLUX's operators on eight accelerators of modelled clusters, each tuned and simulated once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial

from collectives.fused.choice import Operator
from collectives.sweep.fused.metrics import Metrics
from collectives.sweep.fused.tuner import Tuned, tune
from collectives.sweep.fused.virtual import Simulator
from cxlemu.plan import Call, Layout, Plan
from cxlemu.signals import stops_exit
from cxlemu.topology import Accelerator, Topology
from faults.campaign.executors import Workers, cores, lost_are_told
from studies.published.flux_block import Block, Times, block
from studies.training.language_model import LanguageModel

RANKS = 8
MODEL = "gpt3-175b"

Described = Callable[[str], tuple[Topology, Accelerator | None]]
Case = tuple[str, Operator]  # an operator on a cluster


def shipped(cluster: str) -> tuple[Topology, Accelerator | None]:
    return Topology.load(cluster), None


@dataclass(frozen=True, slots=True)
class Shape:
    """One operator on one cluster, cut as it is fastest."""

    cluster: str
    operator: Operator
    metrics: Metrics
    tuned: Tuned


class Clusters:
    """Operators on shipped clusters, each tuned and simulated once."""

    def __init__(self, as_tuned: Clusters | None = None, described: Described = shipped) -> None:
        self._as_tuned, self._described = as_tuned, described
        self._plans: dict[tuple[Layout, Call], Plan] = {}  # of those that take these choices
        self._simulators: dict[str, Simulator] = {}
        self._shapes: dict[Case, Shape] = {}
        self._coming: dict[Case, Future[Shape]] = {}  # those that other processes simulate

    def ns(self, cluster: str, style: str, operator: Operator) -> float:
        if style == "unfused" and operator.kind == "gemm_all_reduce":
            machine = self.simulator(cluster)
            return machine.run(machine.fastest(operator, "unfused")).time_ns
        return float(getattr(self.shape(cluster, operator).metrics, f"{style}_ns"))

    def block(self, cluster: str, phase: str, tokens: int, times: Times | None = None) -> Block:
        """Return what one of the model's blocks takes, fused and unfused."""
        topology, accelerator = self.simulator(cluster).topology, self.simulator(cluster).model.accelerator
        assert accelerator is not None
        times, call_ns = times or partial(self.ns, cluster), topology.costs.call_ns or 0
        return block(LanguageModel.load(MODEL), accelerator, RANKS, phase, tokens, times, call_ns)

    def cases_of_block(self, cluster: str, phase: str, tokens: int) -> list[Case]:
        """List the shapes that a block needs."""
        asked: dict[Operator, float] = {}
        self.block(cluster, phase, tokens, lambda _, operator: asked.setdefault(operator, 1.0))
        return [(cluster, operator) for operator in asked if operator.kind != "gemm_all_reduce"]

    def simulator(self, cluster: str) -> Simulator:
        """Return a cluster's simulator, made once."""
        if cluster not in self._simulators:
            topology, accelerator = self._described(cluster)
            plans = None if self._as_tuned is None else self._as_tuned._plans
            self._simulators[cluster] = Simulator(topology, RANKS, accelerator, plans)
        return self._simulators[cluster]

    def shape(self, cluster: str, operator: Operator) -> Shape:
        """Return an operator on a cluster, tuned and simulated once."""
        key = cluster, operator
        if (coming := self._coming.pop(key, None)) is not None:
            self._shapes[key] = coming.result()
        elif key not in self._shapes:
            machine = self.simulator(cluster)
            tuned = self._as_tuned.shape(cluster, operator).tuned if self._as_tuned else _tuned(machine, operator)
            self._shapes[key] = Shape(cluster, operator, machine.metrics(operator, tuned.choice), tuned)
        return self._shapes[key]

    @contextmanager
    def ahead(self, cases: Iterable[Case]) -> Iterator[None]:
        """Let workers, one on each core, simulate what `shape` will be asked for; shipped clusters only."""
        new = [case for case in dict.fromkeys(cases) if case not in self._shapes]
        jobs = min(cores(), len(new)) if threading.active_count() == 1 else 1  # threads do not survive a fork
        if self._described is not shipped or jobs < 2:
            yield
            return
        with stops_exit(), lost_are_told():
            workers = Workers(jobs, copied=True)
            try:
                self._coming = {case: workers.submit(_simulated, *case) for case in new}
                yield
            finally:
                self._coming = {}
                workers.end()


@cache
def _clusters() -> Clusters:
    return Clusters()


def _simulated(cluster: str, operator: Operator) -> Shape:
    return _clusters().shape(cluster, operator)


def _tuned(its: Simulator, operator: Operator) -> Tuned:
    return tune(
        operator,
        RANKS,
        lambda choice: its.fused_ns(operator, choice),
        lambda choice: its.least_ns(operator, choice),
    )
