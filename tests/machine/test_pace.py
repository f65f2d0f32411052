"""With a clock of the test's, paced plans end when the virtual engine says, to the nanosecond."""

import math
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from collectives.algorithms import catalog
from collectives.checking import fused_oracle as fused_oracle
from collectives.checking import oracle
from collectives.communicator.communicator import Communicator
from collectives.contracts import COLLECTIVES
from collectives.fused import KINDS, STYLES, build, roomy_layout
from collectives.fused.plans import fused_call
from collectives.layouts import layout_in
from cxlemu import _native
from cxlemu.cost import CostModel
from cxlemu.engines.native import DONE, IDLE, KERNEL, MODELLED_TIME, NativeEngine, compute
from cxlemu.engines.pace import Clocks, Pace, suitable_time_scale
from cxlemu.engines.streams import Binding, Running
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError, DeadlineError, PeerLostError, PoolError
from cxlemu.memory import MemorySpec
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import Buffer, Call, Frame, InHeap, Instruction, Layout, Plan, RankPart, Region
from cxlemu.pool import catalog as pool_catalog
from cxlemu.pool import segments
from cxlemu.pool.shm import ShmPool
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch, launch_survivors
from cxlemu.world.world import World
from faults.lockstep.lockstep import fresh_buffers
from tests.helpers.by_hand import FENCE, streams, wait
from tests.helpers.by_hand import signal as ring
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.fabric_helpers import fabric, read, write
from tests.helpers.native_lockstep import card
from tests.helpers.tables import with_rows

CARD_BYTES = 1 << 20


class Paced:
    """All ranks in one thread, directly on the cards, with a clock that goes from event to event."""

    def __init__(self, topology: Topology, layout: Layout, *, memory: Bytes | None = None) -> None:
        self.layout = layout
        self.cards = [card(layout.extent_bytes) for _ in range(layout.cards)]
        self.now = np.zeros(1, np.int64)
        clocks = Clocks(CostModel.of(topology, layout.ranks), layout.extent_bytes)
        memory = card(clocks.nbytes) if memory is None else memory
        clocks.make(memory, 1.0)
        self.pacers = [clocks.pacer(memory, rank, self.now) for rank in range(layout.ranks)]
        self.engines = [NativeEngine(self.cards, pacer=pacer) for pacer in self.pacers]
        self.epoch = 1

    def calls(
        self, plan: Plan, inputs: list[list[Bytes]], *, late_ns: int = 0
    ) -> tuple[list[list[int]], list[list[Bytes]]]:
        """Of each call: when each rank ended it, and what it has then. Ranks may be calls apart. The clock is looked at
        only ``late_ns`` after something was due.
        """
        ranks = range(self.layout.ranks)
        buffers = [[fresh_buffers(plan.part(rank), given[rank]) for rank in ranks] for given in inputs]
        binding = Binding(self.layout, 0, self.epoch, plan.call.tag())
        running = [Running(plan.call, plan.frame, plan.part(rank), binding) for rank in ranks]
        programs = [engine.program(its) for engine, its in zip(self.engines, running, strict=True)]
        ends = [[-1] * len(ranks) for _ in inputs]
        begun = [-1] * len(ranks)
        while any(turn < len(inputs) for turn in begun):
            due = []
            for rank in ranks:
                while begun[rank] < len(inputs):
                    if begun[rank] >= 0:
                        status, found = programs[rank].advance(0, 0)
                        while status == KERNEL:
                            stream, at = found[0][:2]
                            compute(running[rank], buffers[begun[rank]][rank], stream=stream, at=at)
                            programs[rank].skip(stream)
                            status, found = programs[rank].advance(0, 0)
                        assert status in (DONE, IDLE), status
                        if status == IDLE:
                            due += [wanted for _, _, doorbell, wanted, _ in found if doorbell == MODELLED_TIME]
                            break
                        ends[begun[rank]][rank] = self.pacers[rank].native.ended_ns
                    begun[rank] += 1
                    if begun[rank] < len(inputs):
                        epoch = self.epoch + begun[rank] * plan.rounds
                        programs[rank].start(epoch, plan.call.tag(), *buffers[begun[rank]][rank])
            if due:
                self.now[0] = min(due) + late_ns
        return ends, [[mine[1] for mine in each] for each in buffers]


def planned(
    topology: Topology, collective: str, ranks: int, variant: str, nbytes: int = 30_000
) -> tuple[Plan, Call, Layout]:
    layout = layout_in(CARD_BYTES, ranks, topology.card_count, topology.interleave_bytes, region_bytes=1 << 18)
    redop = "sum" if COLLECTIVES[collective].reduces else "none"
    recipe = catalog.recipe(collective, variant)
    dtype = "f32" if recipe.fold_order == "rank" else "i32"  # the oracle's floats are folded in rank order
    call = Call(collective, variant, ranks, nbytes, dtype, redop, 0)
    if recipe.spec.zero_copy:
        call = replace(call, heap=InHeap(0))
    return catalog.build(recipe, layout, call), call, layout


def inputs_of(call: Call, calls: int) -> list[list[Bytes]]:
    """Of each call, of each rank."""
    arrays = [[oracle.inputs(call, rank, 1, turn) for rank in range(call.ranks)] for turn in range(calls)]
    return [[np.empty(0, np.uint8) if x is None else x.reshape(-1).view(np.uint8) for x in each] for each in arrays]


def all_variants() -> list[tuple[str, str]]:
    return [(name, variant) for name in COLLECTIVES for variant in catalog.variants(name) if variant != "zero_copy"]


@pytest.mark.each_value_once
@pytest.mark.parametrize(("collective", "variant"), all_variants())
def test_calls_end_when_the_virtual_engine_says(collective: str, variant: str) -> None:
    """Three ranks, calls that follow each other and come round their ring; results are right, too."""
    topology = Topology.load("titan2-6xcz120")
    plan, call, layout = planned(topology, collective, 3, variant)
    inputs = inputs_of(call, -(-layout.slots // plan.rounds) + 2)
    ends, outputs = Paced(topology, layout).calls(plan, inputs)
    run = simulate(CostModel.of(topology, 3), [VirtualCall(plan)] * len(inputs))
    assert ends == [each.tolist() for each in run.end_ns]
    for turn, each in enumerate(outputs):
        for rank, got in enumerate(each):
            right = oracle.expected(call, rank, 1, turn)
            assert right is None or got.tobytes() == right.tobytes()


@pytest.mark.each_value_once
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("kind", KINDS)
def test_products_take_what_the_accelerator_would(kind: str, style: str) -> None:
    """The topology's, while this machine's BLAS computes; without one, a COMPUTE takes what it takes here."""
    bare = Topology.load("titan2-6xcz120")
    topology = bare.model_copy(update={"accelerator": "a100-sxm"})
    call = fused_call(kind, style, 2, 256, 256, 256)
    layout = roomy_layout(call, topology.pool_card_count, topology.interleave_bytes, CARD_BYTES)
    plan = build(layout, call)
    inputs = [[fused_oracle.as_bytes(call, rank, 1, turn) for rank in range(2)] for turn in range(2)]
    ends, outputs = Paced(topology, layout).calls(plan, inputs)
    assert ends == [each.tolist() for each in simulate(CostModel.of(topology, 2), [VirtualCall(plan)] * 2).end_ns]
    for turn, each in enumerate(outputs):
        for rank, got in enumerate(each):
            assert got.tobytes() == fused_oracle.expected(call, rank, 1, turn).tobytes()
    unknown, _ = Paced(bare, layout).calls(plan, inputs)
    assert max(unknown[0]) < max(ends[0])  # on the test's clock nothing is computed


WHOLE, PART = 12_800, 3200
BUFFERS = (Buffer("input", WHOLE), Buffer("output", WHOLE), Buffer("scratch", 0))
SMALL = {"read": 10, "write": 8, "total": 12, "both_gbytes_per_s": 15, "copy_ns": 100, "call_ns": 50}


def by_hand(ranks: Sequence[Sequence[Sequence[Instruction]]], rounds: int = 1) -> Plan:
    """Of these streams of each rank, on one card, with a region for each rank."""
    layout = Layout(len(ranks), 1, slots=4, slot_card_bytes=1 << 16, doorbells_per_rank=2, interleave_bytes=4096)
    regions = tuple(Region(0, 1, 4096, rank << 14, 0, WHOLE) for rank in range(len(ranks)))

    def build(rank: int) -> tuple[Frame, RankPart]:
        return Frame(rounds, regions, ()), RankPart(rank, BUFFERS, streams(ranks[rank]), 0)

    return Plan(Call("by hand", "by hand", len(ranks), WHOLE), layout, build)


def check_by_hand(plan: Plan, *, calls: int = 1, late_ns: int = 0) -> None:
    topology = fabric(plan.ranks, 1, **SMALL)
    given = [[np.zeros(WHOLE, np.uint8)] * plan.ranks] * calls
    ends, _ = Paced(topology, plan.layout).calls(plan, given, late_ns=late_ns)
    run = simulate(CostModel.of(topology, plan.ranks), [VirtualCall(plan)] * calls)
    assert ends == [each.tolist() for each in run.end_ns]


@pytest.mark.parametrize("late_ns", [0, 1, 777, 10**9])
def test_a_rank_that_comes_late_still_makes_its_requests_in_their_order(late_ns: int) -> None:
    """Its streams share an engine and a card, so that another order would be another time."""
    writes, reads = ([its(0, PART // k) for k in (1, 4, 2, 8)] for its in (write, read))
    check_by_hand(by_hand([[[*writes, FENCE], reads]]), late_ns=late_ns)


def test_a_done_doorbell_may_skip_rounds() -> None:
    """Rank 1 rings once for two rounds, and rank 0 sees both at that time."""
    done = 2 * 2 + 1  # the published ones are 0 to 3
    waits = [wait(done, 0), wait(done, 1)]
    check_by_hand(by_hand([[waits], [[read(1, WHOLE), ring(done, 1), read(1, PART)]]], rounds=2), calls=3)


@pytest.mark.parametrize("late_ns", [0, 10**9])
def test_a_done_doorbell_may_be_rounds_ahead_of_a_rank_that_comes_late(late_ns: int) -> None:
    """Rank 0 waits for the first of three rings, and may look only after the last one, twice around the slots."""
    done = 2 * 2 + 1
    rings = [its for k in (0, 4, 8) for its in (read(1, PART), ring(done, k))]
    check_by_hand(by_hand([[[wait(done, 0)]], [rings]], rounds=9), late_ns=late_ns)


def test_a_warm_ring_costs_looks_at_its_slots() -> None:
    topology = Topology.load("titan2-6xcz120")
    plan, _, layout = planned(topology, "all_gather", 2, "aggregate", 1000)
    calls = layout.slots // plan.rounds + 2
    model = CostModel.of(topology, 2)
    warm, cold = (simulate(model, [VirtualCall(plan)] * calls, warm=warm) for warm in (True, False))
    assert warm.call_ns(0) == cold.call_ns(calls - 1) > cold.call_ns(0)


def test_a_rank_that_dies_with_the_clocks_stops_nobody() -> None:
    topology = Topology.load("laptop")
    plan, call, layout = planned(topology, "all_gather", 2, "all")
    nbytes = Clocks(CostModel.of(topology, 2), layout.extent_bytes).nbytes
    memory = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)  # shared with a child
    world = Paced(topology, layout, memory=memory)
    if (child := os.fork()) == 0:
        lock = _native.HostLock(memory[:64])  # which lets go when it goes itself
        os._exit(0 if lock.acquire(1.0) else 1)
    assert os.waitpid(child, 0)[1] == 0
    ends, _ = world.calls(plan, inputs_of(call, 1))
    assert ends == [simulate(CostModel.of(topology, 2), [VirtualCall(plan)]).end_ns[0].tolist()]


def test_clocks_of_another_model_are_refused() -> None:
    clocks = Clocks(CostModel.of(Topology.load("laptop"), 2), 1 << 20)
    memory = card(clocks.nbytes)
    with pytest.raises(ValueError, match="another model"):
        clocks.pacer(memory, 0)  # zeros
    clocks.make(memory, 2.0)
    with pytest.raises(ValueError, match="no such rank"):
        clocks.pacer(memory, 2)
    with pytest.raises(ValueError, match="another model"):
        Clocks(CostModel.of(Topology.load("laptop"), 3), 1 << 20).pacer(memory, 0)


# --- real ranks ------------------------------------------------------------------------------------------------------


def gathered(context: RankContext) -> tuple[float, bool, bool]:
    """The time scale; whether no call returned before its modelled end; whether all were right."""
    with Communicator.world(context) as comm:
        pacer, x = context.pacer, np.full(10_000, comm.rank, np.float32)
        assert pacer is not None
        call, never_early, ended_ns = comm.persistent.all_gather(x), True, 0
        for _ in range(5):
            out = call()
            never_early &= time.monotonic_ns() >= int(pacer.native.ended_ns * pacer.time_scale)
            never_early &= pacer.native.ended_ns >= ended_ns + context.topology.costs.call_ns
            ended_ns = pacer.native.ended_ns
        return pacer.time_scale, never_early, bool((out == np.arange(comm.size)[:, None]).all())


@pytest.mark.deep(rows=lambda how: how == "processes")
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_no_call_returns_before_its_modelled_end(how: str) -> None:
    name = f"paced-{how}-{os.getpid()}"
    found = launch(gathered, ranks=2, topology="laptop", how=how, pace=Pace(8.0), pool_name=name)
    assert found == [(8.0, True, True)] * 2
    assert segments.find(name) == []


def killed(context: RankContext) -> str:
    comm = Communicator.world(context, deadline_s=2.0)
    x = np.zeros(1 << 20, np.float32)
    if comm.rank == 1:
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGKILL]).start()
    try:
        while True:
            comm.all_reduce(x)
    except PeerLostError as error:
        return type(error).__name__


@pytest.mark.deep
def test_a_rank_killed_in_the_middle_is_noticed_and_leaves_nothing() -> None:
    name = f"killed-{os.getpid()}"
    ended = launch_survivors(killed, ranks=2, topology="laptop", how="processes", pace=Pace(64.0), pool_name=name)
    assert ended.results == {0: "PeerLostError"} and list(ended.failures) == [1]
    assert segments.find(name) == []


ORPHAN = """
import os, signal, sys
from functools import partial
from cxlemu.engines.pace import Clocks
from cxlemu.pool.shm import NewClocks, ShmPool
from cxlemu.topology import Topology
clocks = Clocks.of(Topology.load("laptop"), 2)
new = NewClocks(clocks.nbytes, partial(clocks.make, time_scale=2.0))
pool = ShmPool.create(sys.argv[1], cards=2, card_bytes=8 << 20, interleave_bytes=4096, hosts=1, clocks=new)
assert clocks.pacer(pool.clocks(), 1).time_scale == 2.0
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_clocks_go_with_their_pool() -> None:
    """Also where its owner was killed: then with ``cxlemu pool clean``."""
    name = f"orphan-{os.getpid()}"
    assert subprocess.run([sys.executable, "-c", ORPHAN, name]).returncode == -signal.SIGKILL
    assert [f"{segment.kind}{segment.index}" for segment in segments.find(name)] == [
        "card0",
        "card1",
        "clock0",
        "host0",
    ]
    (cleaned,) = pool_catalog.clean(name)
    assert cleaned.removed and segments.find(name) == []
    without = ShmPool.create(name, cards=1, card_bytes=8 << 20, interleave_bytes=4096, hosts=0)
    with without as pool, pytest.raises(PoolError, match="clock0 does not exist"):
        pool.clocks()


def referenced(context: RankContext) -> None:
    Communicator.world(context, engine="reference")


def test_only_what_can_be_paced_is() -> None:
    with pytest.raises(ArgumentError, match="reference engine has no pace"):
        launch(referenced, ranks=1, topology="laptop", pace=Pace(1.0))
    with pytest.raises(ArgumentError, match="real cards"):
        World(1, Topology.load("laptop"), MemorySpec("dax", devices=("none",)), 1.0, "threads", Pace(1.0))
    with pytest.raises(ArgumentError, match=r"from 0\.001 to"):
        Pace(0.0)


def test_a_time_scale_that_is_chosen_says_why() -> None:
    chosen = suitable_time_scale(Topology.load("six-cards"), 4, "emulated")
    assert chosen.value >= 1 and math.log2(chosen.value).is_integer()
    assert "160 GB/s" in chosen.reason  # four ranks of 40 are less than six ports of 47


# --- the command -----------------------------------------------------------------------------------------------------


def test_run_prints_the_model_beside_the_time() -> None:
    arguments = ["run", "all_gather", "-n", "2", "-b", "4K", "-e", "4K", "-c", "laptop", "--launch", "threads"]
    result, document = with_json(*arguments, "--pace", "--time-scale", "50", "--iters", "2", code=0)
    assert "1 ns of the model takes 50 ns here (given)" in result.output and "model" in result.output
    (row,) = document["rows"]
    assert document["time_scale"] == 50 and row["time_us"] >= 0.95 * row["model_us"] > 20


def test_a_machine_that_cannot_keep_up_is_told() -> None:
    """A thousand modelled nanoseconds in one of this machine's: nothing is as fast."""
    arguments = ["run", "all_gather", "-n", "2", "-b", "4K", "-e", "4K", "-c", "laptop", "--launch", "threads"]
    result = cxlemu(*arguments, "--pace", "--time-scale", "0.001", "--iters", "2", code=0)
    assert "1 of 1 took more than 10% longer than the model says" in result.output
    assert "--time-scale 0.004 gives them more" in result.output


@with_rows(
    (["--time-scale", "2"], "--time-scale is for --pace"),
    (["--pace", "--engine", "reference"], "needs the native engine"),
    (["--pace", "--integrity", "crc32c"], "does not go with --integrity"),
    (["--pace", "--backend", "dax", "--device", "none"], "real cards"),
)
def test_flags_that_do_not_go_with_a_pace(flags: list[str], why: str) -> None:
    assert why in cxlemu("run", *flags, code=2).output


def test_clocks_that_another_rank_keeps_are_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    def held(*_: object) -> None:
        raise TimeoutError("another rank holds the pool's clocks, it may be stopped")

    clocks = Clocks.of(Topology.load("laptop"), 2)
    monkeypatch.setattr("cxlemu._native.Pacer", held)
    with pytest.raises(DeadlineError, match="rank 1: another rank holds the pool's clocks"):
        clocks.pacer(np.zeros(clocks.nbytes, np.uint8), 1)
