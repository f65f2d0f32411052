"""CCCL's plans in virtual time: what a call takes on a modelled topology, in any variant and number of chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from collectives.algorithms import catalog
from collectives.builder.part import VariantSpec
from collectives.builder.recipes import Recipe
from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.rings import virtual_layout
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, VirtualRun, simulate
from cxlemu.plan import Call, Layout, Plan
from cxlemu.rounding import round_up
from cxlemu.topology import Topology

RANKS = 3  # CCCL's test bed
CHUNKS = (1, 2, 4, 8)  # numbers of chunks that "all" is cut into, the fastest for each size; CCCL finds 4 or 8 best
# Where every rank folds, CCCL reads peers staggered; this variant does, and folds in rank order: the same bits on all.
STAGGERED = {("all_reduce", "all"): "staged", ("reduce_scatter", "all"): "staged"}

OurPlans: TypeAlias = dict[tuple[VariantSpec, Layout, Call], Plan]


@dataclass(frozen=True, slots=True)
class Time:
    us: float
    busiest: str  # what was busy longest
    utilization: float  # the share of the time for which it was busy
    chunks: int  # into how many chunks a block is cut at most


class Ours:
    """Our plans on a topology, each simulated once."""

    def __init__(self, topology: Topology, *, whole_chunks: bool = False, plans: OurPlans | None = None) -> None:
        self.topology = topology
        self._plans = plans
        self.whole_chunks = whole_chunks
        self._models: dict[int, CostModel] = {}
        self._times: dict[tuple[str, str, int, int, int], Time] = {}

    def time(
        self, collective: str, size_bytes: int, *, variant: str = "all", ranks: int = RANKS, chunks: int = 0
    ) -> Time:
        """Return the time of one call; ``chunks=0`` is one chunk, or for "all" the number of CHUNKS that is fastest."""
        if chunks == 0 and self._recipe(collective, variant).spec.chunks > 1:
            each = [self.time(collective, size_bytes, variant=variant, ranks=ranks, chunks=k) for k in CHUNKS]
            return min(each, key=lambda timing: timing.us)
        key = collective, variant, size_bytes, ranks, chunks or 1
        if key not in self._times:
            run = self._run(*key)
            uses = [(use.busy_ns / run.time_ns, use.resource.name) for use in run.uses]
            share, name = max(uses, key=lambda use: use[0])
            self._times[key] = Time(run.time_ns / 1e3, name, share, key[-1])
        return self._times[key]

    @staticmethod
    def _recipe(collective: str, variant: str) -> Recipe:
        return catalog.recipe(collective, STAGGERED.get((collective, variant), variant))

    def _run(self, collective: str, variant: str, size_bytes: int, ranks: int, chunks: int) -> VirtualRun:
        recipe = self._recipe(collective, variant)
        (case,) = Sweep((collective,), [size_bytes], variant=recipe.name, check=False).cases(ranks)
        call = replace(case.call, in_place=case.in_place)
        recipe = replace(recipe, spec=replace(recipe.spec, chunks=chunks, finely=not self.whole_chunks))
        layout = virtual_layout(self.topology, recipe, call)
        if self.whole_chunks:
            granule = 1 << (-(-call.nbytes // chunks) - 1).bit_length()
            room = round_up(layout.slot_bytes, granule) + layout.cards * granule
            layout = replace(layout, interleave_bytes=granule, slot_card_bytes=room)
        plan = catalog.build(recipe, layout, call)
        if self._plans is not None:
            plan = self._plans.setdefault((recipe.spec, layout, plan.call), plan)
        if ranks not in self._models:
            self._models[ranks] = CostModel.of(self.topology, ranks)
        return simulate(self._models[ranks], [VirtualCall(plan)])
