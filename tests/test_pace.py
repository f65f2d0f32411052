"""With a clock of the test's, paced plans end when the virtual engine says, to the nanosecond."""

from __future__ import annotations

import numpy as np
import pytest

from collectives import catalog, oracle
from collectives.layouts import layout_in
from cxlemu import _native
from cxlemu.engines.native import DONE, IDLE, ITS_TIME, NativeEngine
from cxlemu.engines.streams import Binding, Running
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.memory.protocol import Bytes
from cxlemu.pace import Clocks
from cxlemu.plan import Call, Layout, Plan
from cxlemu.timing import CostModel
from cxlemu.topology import Topology
from faults.lockstep import fresh_buffers
from tests.native_lockstep import card

CARD_BYTES = 1 << 20


class Paced:
    """All ranks in one thread, directly on the cards, with a clock that goes from event to event."""

    def __init__(self, topology: Topology, layout: Layout, *, time_scale: float = 1.0) -> None:
        self.layout = layout
        self.cards = [card(layout.extent_bytes) for _ in range(layout.cards)]
        self.now = np.zeros(1, np.int64)
        clocks = Clocks(CostModel.of(topology, layout.ranks), layout.extent_bytes)
        memory = card(clocks.nbytes)
        clocks.make(memory, time_scale)
        self.pacers = [
            _native.Pacer(memory, clocks.model.tables(), rank, layout.cards, layout.extent_bytes, self.now)
            for rank in range(layout.ranks)
        ]
        self.engines = [NativeEngine(self.cards, pacer=pacer) for pacer in self.pacers]
        self.epoch = 1

    def calls(self, plan: Plan, inputs: list[list[Bytes]]) -> tuple[list[list[int]], list[list[Bytes]]]:
        """Of each call: when each rank ended it, and what it has then. Ranks may be calls apart."""
        ranks = range(self.layout.ranks)
        buffers = [[fresh_buffers(plan.part(rank), given[rank]) for rank in ranks] for given in inputs]
        programs = []
        for rank in ranks:
            binding = Binding(self.layout, 0, self.epoch, plan.call.tag())
            programs.append(self.engines[rank].program(Running(plan.call, plan.frame, plan.part(rank), binding)))
        ends = [[-1] * len(ranks) for _ in inputs]
        begun = [-1] * len(ranks)
        while any(turn < len(inputs) for turn in begun):
            due = []
            for rank in ranks:
                while begun[rank] < len(inputs):
                    if begun[rank] >= 0:
                        status, found = programs[rank].advance(0, 0)
                        assert status in (DONE, IDLE), status
                        if status == IDLE:
                            due += [wanted for _, _, doorbell, wanted, _ in found if doorbell == ITS_TIME]
                            break
                        ends[begun[rank]][rank] = self.pacers[rank].ended_ns
                    begun[rank] += 1
                    if begun[rank] < len(inputs):
                        epoch = self.epoch + begun[rank] * plan.rounds
                        programs[rank].start(epoch, plan.call.tag(), *buffers[begun[rank]][rank])
            if due:
                self.now[0] = min(due)
        return ends, [[mine[1] for mine in each] for each in buffers]


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "broadcast", "all_to_all", "reduce_scatter"])
def test_calls_end_when_the_virtual_engine_says(collective: str, ranks: int) -> None:
    topology = Topology.load("titan2-6xcz120")
    layout = layout_in(CARD_BYTES, ranks, topology.card_count, topology.interleave_bytes, region_bytes=1 << 20)
    call = Call(collective, "all", ranks, 100_000, "f32", "sum" if "reduce" in collective else "none", 0)
    plan = catalog.build(catalog.recipe(collective, "all"), layout, call)
    inputs = [[_flat(oracle.inputs(call, rank, 1, turn)) for rank in range(ranks)] for turn in range(3)]
    ends, outputs = Paced(topology, layout).calls(plan, inputs)
    run = simulate(CostModel.of(topology, ranks), [VirtualCall(plan)] * len(inputs))
    assert ends == [each.tolist() for each in run.end_ns]
    for turn, each in enumerate(outputs):
        for rank, got in enumerate(each):
            right = oracle.expected(call, rank, 1, turn)
            assert right is None or got.tobytes() == right.tobytes()


def _flat(x: np.ndarray | None) -> Bytes:
    return np.empty(0, np.uint8) if x is None else x.reshape(-1).view(np.uint8)
