"""NCCL over InfiniBand: its algorithms as plans, in virtual time, in the protocol that it takes."""

from __future__ import annotations

from dataclasses import replace

from collectives.algorithms import catalog
from collectives.algorithms.nccl.protocols import NcclChoice, take
from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.plans import plan_of
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.plan import Plan
from cxlemu.topology import Topology


class Nccl:
    """NCCL on a topology whose pool has protocols. The first one, Simple, has the free parameter.

    Args:
        topology: The baseline.
        grouped_slice_bytes: Size of a slice of grouped sends and receives, instead of the algorithm's own.
    """

    def __init__(self, topology: Topology, *, grouped_slice_bytes: int | None = None) -> None:
        self.topology = topology
        self._grouped_slice_bytes = grouped_slice_bytes
        self._taken: dict[tuple[str, int, int], tuple[NcclChoice, Plan]] = {}
        self._times: dict[tuple[str, int, int, int], float] = {}

    @property
    def slice_ns(self) -> int:
        """What a slice costs its receiver in Simple beside its bytes, as the file states it."""
        protocols = self.topology.pool_space.protocols
        assert protocols is not None
        return protocols[0].costs.doorbell_observe_ns or 0

    def time_us(self, collective: str, size_bytes: int, ranks: int, slice_ns: int) -> float:
        """Return what one call takes, in us; each call is simulated once.

        Args:
            collective: Its name.
            size_bytes: As nccl-tests counts it.
            ranks: How many ranks call it.
            slice_ns: What a slice costs its receiver in Simple, instead of the file's figure.
        """
        key = collective, size_bytes, ranks, slice_ns
        if key not in self._times:
            taken, plan = self.taken(collective, size_bytes, ranks)
            topology = self._costing(taken, slice_ns)
            model = CostModel.of(topology, ranks)
            cards = model.cards_of(topology.pool_space)
            self._times[key] = simulate(model, [VirtualCall(plan, cards=cards)]).time_ns / 1e3
        return self._times[key]

    def taken(self, collective: str, size_bytes: int, ranks: int) -> tuple[NcclChoice, Plan]:
        """Return the algorithm and protocol that NCCL takes for a call, and its plan.

        Args:
            collective: Its name.
            size_bytes: As nccl-tests counts it.
            ranks: How many ranks call it.
        """
        key = collective, size_bytes, ranks
        if key not in self._taken:
            (case,) = Sweep((collective,), [size_bytes], check=False).cases(ranks)
            call = replace(case.call, in_place=case.in_place)
            catalog.check(call)
            taken = take(self.topology, self.topology.pool_space, call)
            if taken.recipe.name == "grouped" and self._grouped_slice_bytes is not None:
                spec = replace(taken.recipe.spec, slice_bytes=self._grouped_slice_bytes)
                taken = taken._replace(recipe=replace(taken.recipe, spec=spec))
            plan = plan_of(taken.topology, taken.recipe, call, taken.topology.pool_space)
            self._taken[key] = taken, plan
        return self._taken[key]

    def _costing(self, taken: NcclChoice, slice_ns: int) -> Topology:
        protocols, space = self.topology.pool_space.protocols, taken.topology.pool_space
        assert protocols is not None and space.costs is not None
        if taken.protocol != protocols[0].name:
            return taken.topology
        costs = space.costs.model_copy(update={"doorbell_observe_ns": slice_ns})
        return taken.topology.model_copy(update={"spaces": (space.model_copy(update={"costs": costs}),)})
