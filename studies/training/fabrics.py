"""What a collective takes between some ranks: our plans, in virtual time, each asked for once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from collectives.algorithms import catalog
from collectives.algorithms.hierarchical.levels import HIERARCHICAL
from collectives.algorithms.nccl import RECIPES
from collectives.defaults import AUTO
from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.plans import model_of, plan_of
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.cost import duration_ns
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.rounding import round_up
from cxlemu.topology import Topology
from cxlemu.topology.clusters import apart, cluster_memory, ranks_per_cluster
from cxlemu.topology.failures import Failure

DTYPE = "bf16"
TUNED = ("aggregate", "all", "two_shot")  # variants worth trying for large messages
SLICES = 8  # per block of a ring


class TrainingFabric(Protocol):
    """A fabric, and what collectives take on it.

    ``size_bytes`` is nccl-tests': of all blocks together where every rank has one.
    """

    @property
    def name(self) -> str:
        """What tables call the fabric."""
        ...

    @property
    def chosen(self) -> dict[str, str]:
        """Collective -> the plan that its last call took."""
        ...

    def line(self, ranks: int) -> str:
        """Say what stands for a number of ranks; empty where all are simulated."""
        ...

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        """Return what one call takes, in ns, begun by all ranks at once."""
        ...


class Modelled:
    """Plans on a modelled topology: those that ``auto`` takes, or with ``tuned`` the fastest that there are.

    Among these are rings, which send where others read: a rank that reads its peers one after another waits for a
    load's latency each time. And a reduce-scatter may be an all-to-all, after which every rank folds what it got: it
    reads its peers in any order, where a plan that folds what it reads has to go in the order of ranks. With
    ``two_levels``, also plans on two levels, where ranks in clusters reach each other over NICs as well.
    """

    def __init__(
        self,
        topology: Topology,
        *,
        tuned: bool = False,
        variant: str = AUTO,
        failures: Sequence[Failure] = (),
        two_levels: bool = False,
    ) -> None:
        self.topology, self.tuned, self.variant, self.two_levels = topology, tuned, variant, two_levels
        self._failures = [failure._replace(at_ns=0) for failure in failures]
        self.chosen: dict[str, str] = {}
        self._times_ns: dict[tuple[str, int, int], int] = {}

    @property
    def name(self) -> str:
        """The topology's name, with a word for failures."""
        return f"{self.topology.name}, failing" if self._failures else self.topology.name

    def line(self, ranks: int) -> str:
        """Say what stands for a number of ranks: always empty, as all are simulated."""
        return ""

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        """Return what one call takes, in ns; each call is simulated once."""
        key = collective, size_bytes, ranks
        if ranks < 2 or not size_bytes:
            return 0
        if key not in self._times_ns:
            ways = self._ways(*key) if self.tuned else [self._simulated(*key, self.variant)]
            self._times_ns[key], self.chosen[collective] = min(ways, key=lambda way: way[0])
        return self._times_ns[key]

    def _ways(self, collective: str, size_bytes: int, ranks: int) -> Iterator[tuple[int, str]]:
        for variant in TUNED:
            if variant in catalog.variants(collective):
                yield self._simulated(collective, size_bytes, ranks, variant)
            if collective == "reduce_scatter" and variant in catalog.variants("all_to_all"):
                yield self._folded(size_bytes, ranks, variant)
        if (collective, "ring") in RECIPES and self.topology.pool_space.owned:
            yield self._ring(collective, size_bytes, ranks)
        if self.two_levels and cluster_memory(apart(self.topology), ranks) is not None:
            yield self._simulated(collective, size_bytes, ranks, HIERARCHICAL)

    def _simulated(self, collective: str, size_bytes: int, ranks: int, variant: str) -> tuple[int, str]:
        """Simulate one plan: what it takes in ns, and its variant."""
        cluster = ranks_per_cluster(apart(self.topology) if self.two_levels else self.topology, ranks)
        sweep = Sweep((collective,), [size_bytes], dtypes=(DTYPE,), variant=variant, check=False, cluster=cluster)
        (case,) = sweep.cases(ranks)
        row, run = simulate_case(self.topology, case, failures=self._failures)
        return run.time_ns, row.variant

    def _folded(self, size_bytes: int, ranks: int, variant: str) -> tuple[int, str]:
        """Simulate an all-to-all, after which every rank reads all that came and writes the sum once."""
        exchanged_ns, plan = self._simulated("all_to_all", size_bytes, ranks, variant)
        folded_bytes = size_bytes + size_bytes // ranks
        fold_ns = duration_ns(folded_bytes, self.topology.costs.reduce_gbytes_per_s)
        return exchanged_ns + fold_ns, f"all_to_all ({plan}) and a fold"

    def _ring(self, collective: str, size_bytes: int, ranks: int) -> tuple[int, str]:
        """Simulate NCCL's ring, which sends a block in a few slices, however large it is."""
        (case,) = Sweep((collective,), [size_bytes], dtypes=(DTYPE,), check=False).cases(ranks)
        recipe = RECIPES[collective, "ring"]
        slice_bytes = max(recipe.spec.slice_bytes, round_up(-(-case.call.nbytes // SLICES), LINE_BYTES))
        recipe = replace(recipe, spec=replace(recipe.spec, slice_bytes=slice_bytes))
        space = self.topology.pool_space
        plan = plan_of(self.topology, recipe, replace(case.call, in_place=case.in_place), space)
        model = model_of(self.topology, ranks, tuple(self._failures))
        return simulate(model, [VirtualCall(plan, cards=model.cards_of(space))]).time_ns, recipe.name
