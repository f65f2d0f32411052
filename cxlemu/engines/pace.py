"""A world with a pace: on this machine's clock, ranks take the time that the cost model gives them, times a scale.

    launch(main, ranks=4, topology="six-cards", pace=Pace())                # as slow as this machine needs it
    launch(main, ranks=4, topology="six-cards", pace=Pace(time_scale=100))  # 100 ns here are one of the model

The native engine moves bytes for real and then holds every instruction until its modelled end (native/pace.h), so that
copies of several streams overlap as they would, and what a rank computes meanwhile is hidden as it would be. A rank's
Pacer holds what the rank does not share with others; the pool's clocks, a segment that all ranks map, hold when
engines, links and cards are free. Both use the C that the virtual engine uses (cxlemu/native/cost), so modelled times
are the same. COMPUTE takes the time that the topology's accelerator would take; without one, the time that it takes
here.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cxlemu import _native
from cxlemu.choices import TIME_SCALE_MAX, TIME_SCALE_MIN
from cxlemu.cost import CostModel
from cxlemu.cost.compute import kernel_costs
from cxlemu.errors import ArgumentError, DeadlineError
from cxlemu.memory.backend import BACKENDS
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import Frame, RankPart
from cxlemu.plan.instructions import Records
from cxlemu.plan.kernels import KERNELS
from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.clusters import cluster_memory, memories_behind_pool
from cxlemu.units import counted

# How late a rank wakes that slept: on a core that is otherwise idle, and on one that others compute on.
WAKING_NS, WAITING_NS = 100_000, 1_000_000
STEP_NS = 5_000  # of the order of what a collective's instructions take on modelled hardware
_MEASURED_BYTES = 1 << 25


@dataclass(frozen=True, slots=True)
class Pace:
    """Asks for a world whose ranks take modelled time."""

    # real nanoseconds per modelled one, from TIME_SCALE_MIN to TIME_SCALE_MAX; None: `suitable_time_scale` chooses
    time_scale: float | None = None

    def __post_init__(self) -> None:
        if self.time_scale is not None and not TIME_SCALE_MIN <= self.time_scale <= TIME_SCALE_MAX:
            raise ArgumentError(
                f"a time scale is a number from {TIME_SCALE_MIN:g} to {TIME_SCALE_MAX:g}, not {self.time_scale:g}"
            )


@dataclass(frozen=True)
class Pacer:
    """Makes the instructions of one rank take their modelled time."""

    native: _native.Pacer
    accelerator: Accelerator | None  # what the rank computes with; None where the topology has no accelerator
    link_gbytes_per_s: float  # the rate of its way to others

    @property
    def time_scale(self) -> float:
        """Nanoseconds of this machine for one of the model."""
        return self.native.time_scale

    def kernels(self, frame: Frame, part: RankPart) -> Records | None:
        """Return one row of COST_DTYPE per kernel; None where no model covers them, so that they take real time."""
        modelled = all(KERNELS[kernel.name].product for kernel in frame.kernels)
        if self.accelerator is None or not modelled:
            return None
        return kernel_costs(self.accelerator, frame, part, self.link_gbytes_per_s)


@dataclass(frozen=True)
class Clocks:
    """What all ranks of a world share to keep a pace, and how it lies in a segment of the pool."""

    model: CostModel
    card_bytes: int

    @classmethod
    def of(cls, topology: Topology, ranks: int) -> Clocks:
        if topology.pool_space.owned:
            raise ArgumentError(f"a pace needs a pool of cards, but {topology.name} has only memory that ranks own")
        return cls(CostModel.of(topology, ranks), topology.card_bytes)

    @cached_property
    def cards(self) -> NDArray[np.int32]:
        """For each card of this machine, the index of the model's: the pool's, then memories of ranks behind them."""
        topology, ranks = self.model.topology, len(self.model.hosts)
        cards = self.model.cards_of(topology.pool_space)
        if memories_behind_pool(topology, ranks):
            memory = cluster_memory(topology, ranks)
            assert memory is not None
            cards += self.model.cards_of(memory)
        return np.array(cards, np.int32)

    @cached_property
    def nbytes(self) -> int:
        """The size of the segment, which stays sparse, in bytes."""
        return _native.clocks_bytes(len(self.model.resources), len(self.cards), self.card_bytes)

    def make(self, memory: Bytes, time_scale: float) -> None:
        """Set up the clocks in a new segment of zeros; ``time_scale`` is real nanoseconds per modelled one."""
        _native.clocks_make(memory, len(self.model.resources), time_scale)

    def pacer(self, memory: Bytes, rank: int, test_ns: NDArray[np.int64] | None = None) -> Pacer:
        """Make the pacer of one rank after `make`; ``test_ns``, int64 of shape (1,), replaces the real clock."""
        try:
            native = _native.Pacer(memory, self.model.tables(), rank, self.cards, self.card_bytes, test_ns)
        except TimeoutError as error:
            raise DeadlineError(f"rank {rank}: {error}") from None
        return Pacer(native, self.model.accelerator, self.model.link_gbytes_per_s)


@dataclass(frozen=True, slots=True)
class TimeScale:
    value: float  # real nanoseconds per modelled one
    reason: str  # why this one, for people


def suitable_time_scale(topology: Topology, ranks: int, backend: str) -> TimeScale:
    """Choose a time scale with which this machine keeps up.

    It is the power of two with which this machine's copies and delays are at most half as long as what they stand for.
    The function measures for some milliseconds how fast one core copies.
    """
    cores = min(ranks, len(os.sched_getaffinity(0)))
    copied = _copied_gbytes_per_s()
    modelled = _modelled_gbytes_per_s(topology, ranks)
    slower = modelled * BACKENDS[backend].passes / (copied * cores)
    busy = os.getloadavg()[0] + cores > len(os.sched_getaffinity(0))
    later = (WAITING_NS if busy else WAKING_NS) / STEP_NS * ranks / cores
    value = 1.0
    while value < 2 * max(slower, later):
        value *= 2
    reason = (
        f"chosen: the model moves {modelled:.0f} GB/s, {counted(cores, 'core')} of this machine copy "
        f"{copied * cores:.0f} GB/s for {counted(ranks, 'rank')}" + ", and others use them" * busy
    )
    return TimeScale(value, reason)


def _modelled_gbytes_per_s(topology: Topology, ranks: int) -> float:
    cost = topology.costs
    cards = topology.cards_of(topology.pool_space)
    one_way, of_cards = (topology.carried_gbytes_per_s(cards, both_ways=both) for both in (False, True))
    of_ranks = ranks * sum(
        min(rate or one_way, one_way) for rate in (cost.to_pool_gbytes_per_s, cost.from_pool_gbytes_per_s)
    )
    return min(of_ranks, of_cards)


def _copied_gbytes_per_s() -> float:
    """Measure one core's memcpy of bytes that no cache holds."""
    source, target = (np.ones(_MEASURED_BYTES, np.uint8) for _ in range(2))
    best_ns = min(_timed_copy_ns(source, target) for _ in range(4))
    return _MEASURED_BYTES / best_ns


def _timed_copy_ns(source: Bytes, target: Bytes) -> int:
    begin = time.perf_counter_ns()
    target[:] = source
    return time.perf_counter_ns() - begin
