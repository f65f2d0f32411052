"""Our plans in virtual time: what a call takes on a modelled topology, in any variant and number of chunks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from collectives.algorithms import catalog
from collectives.builder import VARIANTS
from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.rings import virtual_layout
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, VirtualRun, simulate
from cxlemu.rounding import round_up
from cxlemu.topology import Topology

RANKS = 3  # CCCL's test bed


@dataclass(frozen=True, slots=True)
class Time:
    """What a call takes.

    Attributes:
        busiest: What was busy longest.
        utilization: For which share of the time.
    """

    us: float
    busiest: str
    utilization: float


class Ours:
    """Our plans on a topology, each simulated once.

    Args:
        topology: The test bed.
        whole_chunks: Interleave the pool so that a chunk lies on one card.
    """

    def __init__(self, topology: Topology, *, whole_chunks: bool = False) -> None:
        self.topology = topology
        self.whole_chunks = whole_chunks
        self._models: dict[int, CostModel] = {}
        self._times: dict[tuple[str, str, int, int, int], Time] = {}

    def time(
        self, collective: str, size_bytes: int, *, variant: str = "all", ranks: int = RANKS, chunks: int = 0
    ) -> Time:
        """Return what one call takes.

        Args:
            collective: Its name.
            size_bytes: As nccl-tests counts it.
            variant: One of `collectives.builder.VARIANTS`.
            ranks: How many ranks call it.
            chunks: The most chunks of a block; 0: the variant's own number.
        """
        key = collective, variant, size_bytes, ranks, chunks or VARIANTS[variant].chunks
        if key not in self._times:
            run = self._run(*key)
            uses = [(use.busy_ns / run.time_ns, use.resource.name) for use in run.uses]
            share, name = max(uses, key=lambda use: use[0])
            self._times[key] = Time(run.time_ns / 1e3, name, share)
        return self._times[key]

    def _run(self, collective: str, variant: str, size_bytes: int, ranks: int, chunks: int) -> VirtualRun:
        (case,) = Sweep((collective,), [size_bytes], variant=variant, check=False).cases(ranks)
        call = replace(case.call, in_place=case.in_place)
        recipe = catalog.recipe(collective, variant)
        recipe = replace(recipe, spec=replace(recipe.spec, chunks=chunks))
        layout = virtual_layout(self.topology, recipe, call)
        if self.whole_chunks:
            granule = 1 << (-(-call.nbytes // chunks) - 1).bit_length()
            room = round_up(layout.slot_bytes, granule) + layout.cards * granule
            layout = replace(layout, interleave_bytes=granule, slot_card_bytes=room)
        plan = catalog.build(recipe, layout, call)
        if ranks not in self._models:
            self._models[ranks] = CostModel.of(self.topology, ranks)
        return simulate(self._models[ranks], [VirtualCall(plan)])
