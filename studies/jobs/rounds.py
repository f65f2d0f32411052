"""Jobs that do the same again and again: calls of a collective, or training steps.

They go on beyond what they were to do while another job goes on, so that this one is beside them to its end.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from collectives.sweep.sweep import Case, Sweep
from collectives.sweep.virtual.plans import planned
from cxlemu.engines.shared import SharedFabric
from cxlemu.engines.virtual import VirtualCall
from cxlemu.topology import Topology
from studies.jobs.job import Figure
from studies.training.fabrics import DTYPE
from studies.training.step import TrainingStep
from studies.training.timeline import ordered


@dataclass
class RepeatedJob:
    """Rounds of a job, one after another; ``begin`` begins one, and calls what it is given at its end."""

    name: str
    wanted: int
    begin: Callable[[int, Callable[[int], None]], object]
    ends_ns: list[int] = field(default_factory=list)
    repeats: bool = True

    def go_on(self, now_ns: int = 0) -> None:
        self.begin(now_ns, self._ended)

    def _ended(self, now_ns: int) -> None:
        self.ends_ns.append(now_ns)
        self.go_on(now_ns)

    @property
    def over_ns(self) -> int | None:
        """When the rounds that it was to do were done; None before."""
        return self.ends_ns[self.wanted - 1] if len(self.ends_ns) >= self.wanted else None

    def figures(self) -> list[Figure]:
        return [Figure(f"{self.name}, ms", self.ends_ns[-1] / len(self.ends_ns) / 1e6)]


@dataclass(frozen=True)
class CollectiveJob:
    topology: Topology
    case: Case
    wanted: int

    @property
    def name(self) -> str:
        return self.case.call.collective

    @property
    def ranks(self) -> int:
        return self.case.call.ranks

    def begin(self, fabric: SharedFabric, ranks: range) -> RepeatedJob:
        """Begin the first call at time 0."""
        call = call_of(self.topology, self.case, fabric, ranks)
        rounds = RepeatedJob("call", self.wanted, partial(fabric.begin, call))
        rounds.go_on()
        return rounds


@dataclass(frozen=True)
class TrainingJob:
    """Training steps, one after another, as `train` has them: its collectives take their time on the fabric."""

    topology: Topology
    step: TrainingStep
    wanted: int
    name: str = "training"

    @property
    def ranks(self) -> int:
        return self.step.parallelism.ranks

    def begin(self, fabric: SharedFabric, ranks: range) -> RepeatedJob:
        """Begin the first step at time 0."""
        rounds = RepeatedJob("step", self.wanted, partial(_Step, self, fabric, ranks, {}))
        rounds.go_on()
        return rounds


class _Step:
    """One step: an operation begins when those before it are over, as in `timeline.run`."""

    def __init__(
        self,
        job: TrainingJob,
        fabric: SharedFabric,
        ranks: range,
        calls: dict[tuple[str, int, int], VirtualCall],  # those of all steps
        now_ns: int,
        done: Callable[[int], None],
    ) -> None:
        self._job, self._fabric, self._ranks, self._calls, self._done = job, fabric, ranks, calls, done
        self._operations = job.step.timeline.operations
        _, self._waiters, self._missing = ordered(self._operations)
        self._left = len(self._operations)
        for number in [number for number, count in enumerate(self._missing) if not count]:
            self._go_on(number, 0, now_ns)

    def _go_on(self, number: int, index: int, now_ns: int) -> None:
        parts = self._operations[number].parts
        while index < len(parts):
            part, index = parts[index], index + 1
            then = partial(self._go_on, number, index)
            if part.call is not None:
                self._fabric.begin(self._call(part.call), now_ns, then)
                return
            if part.ns:
                self._fabric.schedule(now_ns + part.ns, then)
                return
        self._left -= 1
        for waiter in self._waiters[number]:
            self._missing[waiter] -= 1
            if not self._missing[waiter]:
                self._go_on(waiter, 0, now_ns)
        if not self._left:
            self._left = -1
            self._done(now_ns)

    def _call(self, key: tuple[str, int, int]) -> VirtualCall:
        if key not in self._calls:
            collective, size_bytes, ranks = key
            (case,) = Sweep((collective,), [size_bytes], dtypes=(DTYPE,), check=False).cases(ranks)
            self._calls[key] = call_of(self._job.topology, case, self._fabric, self._ranks)
        return self._calls[key]


def call_of(topology: Topology, case: Case, fabric: SharedFabric, ranks: range) -> VirtualCall:
    """Plan a call through the pool alone: ranks of a job need not be whole clusters."""
    space = topology.pool_space
    plan, _ = planned(topology, case, space=space, levels=False)
    return VirtualCall(plan, tuple(ranks), fabric.model.cards_of(space))
