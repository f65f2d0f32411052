"""NCCL over InfiniBand: its algorithms as plans, in virtual time, in the protocol that it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from collectives.algorithms import catalog
from collectives.algorithms.nccl import SLICE_BYTES
from collectives.algorithms.nccl.protocols import NcclChoice, take
from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.plans import plan_of
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.plan import Call, Layout, Plan
from cxlemu.topology import Topology
from studies.cores import on_all_cores

Key: TypeAlias = tuple[str, int, int, int]  # collective, bytes, ranks and what a slice costs
NcclPlans: TypeAlias = dict[tuple[str, str, Layout, Call], Plan]


class Nccl:
    """NCCL on a topology whose pool has protocols. The first one, Simple, has the free parameter.

    The parameter is what a slice costs its receiver in a ring, a chain or a tree, beside its bytes. LL128 and LL carry
    their shares, 0.7 and 0.25 in NCCL's tuning, of what a ring's slices carry at that cost: if they carried shares of
    the wire's rate, LL128 would be the fastest for every size, which it is not in NCCL. Sends in groups have a measured
    cost, and no parameter.
    """

    def __init__(self, topology: Topology, plans: NcclPlans | None = None) -> None:
        self.topology = topology
        self._plans: NcclPlans = {} if plans is None else plans
        self._times: dict[Key, float] = {}
        self._each: Callable[[Iterable[Key]], Iterator[float]] = partial(map, self._simulated)
        self._costing: dict[int, Topology] = {}

    @property
    def slice_ns(self) -> int:
        """What a slice costs its receiver in Simple beside its bytes, as the file states it."""
        protocols = self.topology.pool_space.protocols
        assert protocols is not None
        return protocols[0].costs.doorbell_observe_ns or 0

    def costing(self, slice_ns: int) -> Topology:
        """Return the topology where a slice costs its receiver something else in a ring."""
        if slice_ns not in self._costing:
            space = self.topology.pool_space
            simple, *others = space.protocols or ()
            costs = simple.costs.model_copy(update={"doorbell_observe_ns": slice_ns})
            rate = ring_gbytes_per_s(costs.from_pool_gbytes_per_s, slice_ns)
            protocols = [simple.model_copy(update={"costs": costs})]
            for rates in others:
                share = round(rates.share_of_rate * rate, 2)
                slower = rates.costs.model_copy(update={"from_pool_gbytes_per_s": share})
                protocols.append(rates if rates.sends else rates.model_copy(update={"costs": slower}))
            spaces = [
                its.model_copy(update={"protocols": tuple(protocols)}) if its is space else its
                for its in self.topology.spaces
            ]
            self._costing[slice_ns] = self.topology.model_copy(update={"spaces": tuple(spaces)})
        return self._costing[slice_ns]

    def time_us(self, collective: str, size_bytes: int, ranks: int, slice_ns: int) -> float:
        """Return the time of one call in us, simulated once; ``slice_ns`` replaces the file's cost of a slice."""
        return self.times_us(collective, (size_bytes,), ranks, slice_ns)[0]

    def times_us(self, collective: str, sizes: Sequence[int], ranks: int, slice_ns: int) -> list[float]:
        """Return the same for each of some sizes."""
        keys = [(collective, size_bytes, ranks, slice_ns) for size_bytes in sizes]
        new = [key for key in keys if key not in self._times]
        self._times.update(zip(new, self._each(new), strict=True))
        return [self._times[key] for key in keys]

    @contextmanager
    def on_all_cores(self) -> Iterator[None]:
        """Simulate sizes that are asked for together side by side."""
        alone = self._each
        with on_all_cores(self._simulated) as self._each:
            yield
        self._each = alone

    def _simulated(self, key: Key) -> float:
        collective, size_bytes, ranks, slice_ns = key
        taken, plan = self.taken(collective, size_bytes, ranks, slice_ns)
        model = CostModel.of(taken.topology, ranks)
        cards = model.cards_of(taken.topology.pool_space)
        return simulate(model, [VirtualCall(plan, cards=cards)]).time_ns / 1e3

    def taken(
        self, collective: str, size_bytes: int, ranks: int, slice_ns: int | None = None
    ) -> tuple[NcclChoice, Plan]:
        """Return the algorithm and protocol that NCCL takes for a call, and its plan."""
        (case,) = Sweep((collective,), [size_bytes], check=False).cases(ranks)
        call = replace(case.call, in_place=case.in_place)
        catalog.check(call)
        topology = self.topology if slice_ns is None else self.costing(slice_ns)
        taken = take(topology, topology.pool_space, call)
        plan = plan_of(taken.topology, taken.recipe, call, taken.topology.pool_space)
        return taken, self._plans.setdefault((taken.recipe.name, taken.protocol, plan.layout, plan.call), plan)


def ring_gbytes_per_s(copied_gbytes_per_s: float | None, slice_ns: int) -> float:
    """Return the rate at which slices of a ring carry bytes in Simple, in GB/s."""
    nbytes = SLICE_BYTES["ring"]
    return nbytes / (nbytes / (copied_gbytes_per_s or float("inf")) + slice_ns)
