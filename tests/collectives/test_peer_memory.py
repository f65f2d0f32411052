"""Arrays that travel from process to process: the same results, read in place, and only where that is asked for."""

import errno
import os
import subprocess
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms.catalog import build, recipe
from collectives.builder.carriers import HeapCarrier
from collectives.communicator.calls.transport import check_transport, in_processes, layout_in_processes
from collectives.communicator.communicator import Communicator
from collectives.communicator.heap.heap_blocks import lines
from cxlemu import _native
from cxlemu.accelerator.arrays import FakeArray
from cxlemu.accelerator.fake import FakeDevice
from cxlemu.engines.native import NativeEngine
from cxlemu.engines.peer_memory import PeerMemory
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.engines.streams import Binding, Running
from cxlemu.errors import ArgumentError, PeerLostError, PlanError, RunError
from cxlemu.memory import BACKENDS, MemorySpec
from cxlemu.memory.backend import CoherenceStep
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import (
    DTYPES,
    Buffer,
    Call,
    Frame,
    InHeap,
    Instruction,
    Kind,
    Layout,
    Op,
    Operand,
    Plan,
    RankPart,
    Region,
    Stream,
)
from cxlemu.plan.instructions import encode
from cxlemu.world import RankContext, launch, launch_survivors
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import in_random_order, slow
from faults.prove.calls import prove_calls
from faults.prove.sequences import among_others
from faults.verdict import Verdict
from tests.helpers import worlds
from tests.helpers.commands import cxlemu
from tests.helpers.expected import COLLECTIVES, REDUCTIONS, assert_right, expected, input_bytes, some_inputs
from tests.helpers.tables import with_rows
from tests.helpers.tiers import PATIENT_S, examples
from tests.helpers.worlds import Program, calls_of

ONE_HOST, COHERENT = "one-host-four-ranks", MemorySpec("shm")
MOVES = tuple(collective for collective in COLLECTIVES if collective not in ("barrier", "send"))
ANYWHERE: dict[str, Any] = {"host_cache": None, "host": 0, "rank": 0}
LARGE = 2_200_000  # elements of an f32 that auto takes from process to process
FEW_ROUNDS = 1 << 20  # of region_bytes, where such arrays go through the pool


def _main(context: RankContext, program: Program, engine: str, region_bytes: int) -> Any:
    with Communicator.world(context, region_bytes=region_bytes, engine=engine, transport="process") as comm:
        return program(comm)


def together(
    program: Program, ranks: int = 3, *, engine: str = "native", region_bytes: int = 1 << 16, **where: Any
) -> list[Any]:
    main = partial(_main, program=program, engine=engine, region_bytes=region_bytes)
    return launch(main, ranks=ranks, topology=ONE_HOST, memory=COHERENT, deadline_s=PATIENT_S, **where)


on_ranks = partial(worlds.on_ranks, by=together)


# --- results ------------------------------------------------------------------------------------------------------


def wrong_results(comm: Communicator) -> list[str]:
    """Every collective on ordinary arrays: apart, and in place as far as it can be."""
    wrong = []
    for number, (collective, dtype) in enumerate(zip(MOVES, DTYPES, strict=False)):
        root, redop = number % comm.size, "sum" if collective in REDUCTIONS else "none"
        call = Call(collective, "", comm.size, 301 * DTYPES[dtype].itemsize, dtype, redop, root)
        inputs = []
        for rank in range(comm.size):
            rng = np.random.default_rng(rank)
            values = rng.integers(1, 4, input_bytes(call, rank) // DTYPES[dtype].itemsize)
            inputs.append(values.astype(DTYPES[dtype]).view(np.uint8))
        right = expected(call, inputs)[comm.rank].tobytes()
        x = inputs[comm.rank].view(DTYPES[dtype])
        rooted = {"root": root} if collective in ("broadcast", "gather", "scatter", "reduce") else {}
        verb = partial(getattr(comm, collective), variant="zero_copy", **rooted)
        results = []
        if collective == "broadcast":
            x = x if comm.rank == root else np.empty(301, DTYPES[dtype])
            results.append(verb(x))
        elif collective == "scatter":
            results.append(verb(x if comm.rank == root else None, out=np.empty(301, x.dtype)))
        else:
            gathers = collective in ("all_gather", "all_to_all", "gather")
            out = np.empty(301 * comm.size if gathers else 301, x.dtype)
            results.append(verb(x.copy(), out=out))
        if collective in ("all_gather", "gather"):
            whole = np.zeros(301 * comm.size, x.dtype)
            whole[comm.rank * 301 :][:301] = x
            results.append(verb(whole[comm.rank * 301 :][:301], out=whole))
        if collective == "reduce_scatter":
            whole = x.copy()
            results.append(verb(whole, out=whole[comm.rank * 301 :][:301]))
        if collective in ("all_reduce", "reduce"):
            results.append(verb(x.copy()))
        found = [b"" if result is None or not right else result.tobytes() for result in results]
        wrong += [f"{collective} {way}" for way, result in enumerate(found) if result != right]
    return wrong


@pytest.mark.deep
@pytest.mark.parametrize("how", ["threads", "processes"])
@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_results_are_those_of_the_contracts(how: str, engine: str, ranks: int) -> None:
    assert together(wrong_results, ranks, engine=engine, how=how) == [[]] * ranks


@on_ranks(3, gives=[True] * 3)
def test_large_operands_of_a_fold_come_piece_by_piece(comm: Communicator) -> bool:
    x = np.arange(500_001, dtype=np.int64) * (comm.rank + 1)  # two pieces of a stage, and a rest
    return bool((comm.all_reduce(x, variant="zero_copy") == np.arange(500_001) * 6).all())


@on_ranks(gives=[[True] * 60] * 3)
def test_an_input_may_change_when_its_call_returns(comm: Communicator) -> list[bool]:
    x, y = np.empty(20_000, np.int32), np.empty((comm.size, 20_000), np.int32)
    right = []
    for number in range(30):
        x[:] = np.arange(20_000) * number + comm.rank
        comm.all_gather(x, out=y, variant="zero_copy")
        x[:] = -1
        right.append(all((y[k] == np.arange(20_000) * number + k).all() for k in range(comm.size)))
        x[:] = number + comm.rank
        comm.all_reduce(x, variant="zero_copy")
        right.append((x == comm.size * number + sum(range(comm.size))).all())
    return right


RING = Layout(3, 2, 2, 1024, 8, 256)


def plan_in_processes(call: Call, in_place: frozenset[int] = frozenset()) -> Plan:
    """The plan of a call whose arrays lie in the ranks' processes, in place on some of the ranks alone."""
    its, layout = recipe(call.collective, "zero_copy"), layout_in_processes(call, RING)
    call = replace(call, heap=in_processes(call))
    plans = [build(its, layout, replace(call, in_place=here)) for here in (False, True)]

    def part(rank: int) -> Any:
        plan = plans[rank in in_place]
        return plan.frame, plan.part(rank)

    return Plan(plans[bool(in_place)].call, layout, part)


@pytest.mark.parametrize("collective", MOVES)
@examples(30, derandomize=True)
@given(st.data())
def test_arrays_of_peers_are_right_in_any_order_of_steps(collective: str, data: st.DataObject) -> None:
    """Every rank rewrites its arrays as soon as its call is over, in place or not, whatever its peers do."""
    nbytes = data.draw(st.sampled_from([1, 63, 64, 200, 1000]))
    redop = "sum" if collective in REDUCTIONS else "none"
    call = Call(collective, "zero_copy", 3, nbytes, "u8", redop, data.draw(st.integers(0, 2)))
    if collective in ("broadcast", "scatter"):
        call = replace(call, in_place=collective == "broadcast")
    here = data.draw(st.frozensets(st.integers(0, 2))) if collective not in ("all_to_all", "broadcast") else frozenset()
    plan, seed = plan_in_processes(call, here), data.draw(st.integers(0, 99))
    rng = np.random.default_rng(seed)
    program = [(plan, some_inputs(call, rng)) for _ in range(3)]
    order = data.draw(st.sampled_from([in_random_order(seed), slow(seed % 3)]))
    world = Lockstep(RING, memory=COHERENT, order=order, mapped=True)
    assert_right(world, program)


# --- proofs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", MOVES)
def test_the_plan_is_that_of_zero_copy_which_is_proved(collective: str) -> None:
    """Apart the plan itself is proved; in place the same instructions, on arrays that lie in each other."""
    redop = "sum" if collective in REDUCTIONS else "none"
    call = Call(collective, "zero_copy", 3, 1000, "u8", redop)
    apart = plan_in_processes(call)
    assert prove_calls(among_others(apart), mapped=True, obliges=True).verdict is Verdict.OK
    if collective in ("all_to_all", "scatter"):
        return
    in_place = plan_in_processes(call, frozenset(range(3)))
    step = 1000 if collective == "all_gather" else 0
    aliased = InHeap(0, step, 0 if collective == "all_reduce" else None, in_process=True)
    proved = build(recipe(collective, "zero_copy"), in_place.layout, replace(in_place.call, heap=aliased))
    for ours, its in zip(in_place.parts, proved.parts, strict=True):
        assert (ours.streams, ours.buffers, ours.events) == (its.streams, its.buffers, its.events)
    assert prove_calls(among_others(proved), mapped=True, obliges=True).verdict is Verdict.OK


def test_addresses_are_not_stored_over_a_payload_that_a_late_rank_has_not_taken() -> None:
    """The first call's doorbell, which carried a payload, is rung again in a call whose doorbells carry addresses."""
    layout = layout_in_processes(Call("all_gather", "zero_copy", 3, 64), RING)
    line = build(recipe("broadcast", "line"), layout, Call("broadcast", "line", 3, 48))
    plans = [*[line] * RING.slots, plan_in_processes(Call("all_gather", "zero_copy", 3, 64))]
    rng = np.random.default_rng(0)
    world = Lockstep(layout, memory=COHERENT, order=slow(1), mapped=True)
    assert_right(world, [(plan, some_inputs(plan.call, rng)) for plan in plans])


def test_a_plan_that_stores_addresses_without_waiting_for_the_slot_is_not_proved(monkeypatch: Any) -> None:
    monkeypatch.setattr(HeapCarrier, "takes_slot", HeapCarrier.in_slot)
    proof = prove_calls(among_others(plan_in_processes(Call("all_gather", "zero_copy", 3, 1000))), obliges=True)
    assert proof.verdict is Verdict.VIOLATION and "without having waited until" in proof.reason


# --- which calls travel so ----------------------------------------------------------------------------------------


def test_large_arrays_travel_so_by_themselves_and_others_through_the_pool() -> None:
    def program(comm: Communicator) -> list[str]:
        taken = calls_of(comm)
        large, small = np.zeros(LARGE, np.float32), np.zeros(30_000, np.float32)
        pooled = comm.heap.zeros(30_000, np.float32)
        taken.clear()
        comm.all_gather(large)
        comm.reduce_scatter(large)
        comm.scatter(large if comm.rank == 1 else None, out=np.empty(LARGE // 2, np.float32), root=1)
        comm.all_to_all(large, out=large)
        comm.all_gather(small)
        comm.all_gather(pooled)
        comm.scan(large)
        assert comm.choice("all_gather", 4 * LARGE).variant == "zero_copy"
        return [its.algorithm + " in process" * bool(its.heap and its.heap.in_process) for its in taken]

    so = "zero_copy in process"
    shown = together(program, 2, region_bytes=FEW_ROUNDS)
    assert shown == [[so, "all", so, "all", "all", "zero_copy", "all"]] * 2


@on_ranks(2, region_bytes=FEW_ROUNDS, gives=[[1.0, 2.0]] * 2)
def test_arrays_of_a_device_go_through_the_pool(comm: Communicator) -> list[float]:
    x = FakeArray.of(FakeDevice(comm.rank), np.full(LARGE, comm.rank + 1.0, np.float32))
    return comm.all_gather(x).get()[:, -1].tolist()


def pool_bytes_changed(comm: Communicator) -> tuple[int, list[bool]]:
    cards = [card.copy() for card in comm._context.pool.cards]
    right = []
    for number in range(3):  # new arrays each time, for which C finds the program of the first
        x = np.full(LARGE, 10 * number + comm.rank, np.float32)
        y = comm.all_gather(x)
        right.append(all((y[k] == 10 * number + k).all() for k in range(comm.size)))
    changed = [int((card != before).sum()) for card, before in zip(comm._context.pool.cards, cards, strict=True)]
    return sum(changed), right


def test_nothing_but_doorbells_is_in_the_pool_and_one_program_serves_any_arrays() -> None:
    for changed, right in together(pool_bytes_changed, 2, heap_bytes="cards"):
        assert right == [True] * 3
        assert changed < 4096


def variants_of_groups(comm: Communicator) -> list[str]:
    half = comm.split(comm.rank % 2)
    assert half is not None
    pair = comm.group([0, 2]) if comm.rank != 1 else half
    x = np.full(LARGE, comm.rank, np.float32)
    assert float(half.all_reduce(x.copy(), variant="zero_copy")[-1]) == (2.0 if comm.rank != 1 else 1.0)
    assert pair.size == 1 or float(pair.all_reduce(x, variant="zero_copy")[0]) == 2.0
    return [each.choice("all_gather", 4 * LARGE).variant for each in (half, pair, comm.dup())]


def test_groups_inherit_the_transport() -> None:
    assert together(variants_of_groups, 3) == [["zero_copy"] * 3] * 3


def _survive(context: RankContext) -> Any:
    with Communicator.world(context, region_bytes=1 << 16, transport="process", deadline_s=2.0) as comm:
        x = np.full(LARGE, 1 << comm.rank, np.float32)
        comm.all_reduce(x.copy(), variant="zero_copy")
        if comm.rank == 1:
            os._exit(0)
        with pytest.raises(RunError):
            while True:
                comm.all_reduce(x.copy(), variant="zero_copy")
        survivors = comm.shrink()
        return float(survivors.all_reduce(x, variant="zero_copy")[-1]), survivors.choice(
            "all_gather", 4 * LARGE
        ).variant


@pytest.mark.deep
def test_survivors_go_on_from_process_to_process() -> None:
    became = launch_survivors(
        _survive, ranks=3, topology=ONE_HOST, memory=COHERENT, how="processes", deadline_s=PATIENT_S
    )
    assert became.failures.keys() == {1}
    assert became.results == {0: (5.0, "zero_copy"), 2: (5.0, "zero_copy")}


# --- refusals -----------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"integrity": None, "tenant": False, "paced": False}
REFUSED: dict[str, tuple[str, list[int], dict[str, Any], str]] = {
    "an emulated cache": ("emulated", [0, 0], {}, "needs coherent shared memory, the backend shm"),
    "real cards": ("dax", [0, 0], {}, "needs coherent shared memory, the backend shm"),
    "two hosts": ("shm", [0, 0, 1], {}, "rank 0 is on host 0 and rank 2 on host 1, .* ranks_per_host of 3 or more"),
    "checksums": ("shm", [0, 0], {"integrity": "crc32c"}, "leave out integrity"),
    "a tenant": ("shm", [0, 0], {"tenant": True}, "a tenant's ranks may use only its grants"),
    "a pace": ("shm", [0, 0], {"paced": True}, "the model has no times for it"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_have_it_is_told_why(what: str) -> None:
    backend, hosts, others, why = REFUSED[what]
    with pytest.raises(ArgumentError, match=f"^transport 'process' copies from process to process: .*{why}"):
        check_transport("process", BACKENDS[backend], hosts, **(GOOD | others))
    check_transport("pool", BACKENDS[backend], hosts, **(GOOD | others))


class OwnEngine:
    """An engine of a user's own."""


def test_communicators_check_it_before_anything_is_made() -> None:
    def main(context: RankContext) -> list[str]:
        told = []
        for how in ({"transport": "carrier pigeon"}, {"transport": "process"}):
            with pytest.raises(ArgumentError) as error:
                Communicator.world(context, **how)
            with pytest.raises(ArgumentError):
                Communicator.of(context, [0, 1], **how)
            told.append(str(error.value))
        with pytest.raises(ArgumentError, match="the custom engine OwnEngine has no transport 'process'"):
            Communicator.of(context, [context.rank], transport="process", engine=OwnEngine())  # type: ignore[arg-type]
        with Communicator.of(context, [context.rank], transport="process") as alone:  # a group on one host
            alone.all_reduce(np.zeros(LARGE))
        return told

    told = launch(main, ranks=2, topology="laptop", memory=COHERENT, deadline_s=PATIENT_S)
    for pigeon, hosts in told:
        assert pigeon == "unknown transport 'carrier pigeon': choose from pool, process"
        assert "rank 1 on host 1" in hosts


@pytest.mark.parametrize("number", [errno.EPERM, 0])
def test_all_ranks_say_the_same_where_one_may_not_read(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel refuses, or the number is another process's, as in another namespace."""
    read = _native.read_process

    def refuses(pid: int, address: int, out: Any) -> None:
        if number:
            raise OSError(number, os.strerror(number))
        read(pid, address, out)
        out[:] = 0

    monkeypatch.setattr(_native, "read_process", refuses)

    def main(context: RankContext) -> str:
        with pytest.raises(ArgumentError) as error:
            Communicator.world(context, transport="process")
        return str(error.value)

    one, other = launch(main, ranks=2, topology=ONE_HOST, memory=COHERENT, deadline_s=PATIENT_S)
    assert one == other
    assert "rank 0 may not read the memory of rank" in one
    assert "kernel.yama.ptrace_scope 0" in one


# --- what fails in a call -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_a_peer_that_ended_is_lost(engine: str) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass

    def program(comm: Communicator) -> str:
        own = comm._planner.peers
        assert own is not None
        if comm.rank == 0:
            comm._planner.peers = replace(own, pids=(own.pids[0], ended.pid))
            with pytest.raises(PeerLostError, match="the process of rank 1 ended while this rank read from it") as lost:
                comm.all_gather(np.zeros(LARGE))
            assert lost.value.ranks == (1,)
        else:
            with pytest.raises(RunError):
                comm.all_gather(np.zeros(LARGE))
        return "told"

    assert together(program, 2, engine=engine) == ["told"] * 2


def test_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(RunError, match="the memory of rank 0 cannot be read: Bad address"):
        PeerMemory(0, (os.getpid(),)).read(0, 4096, np.empty(8, np.uint8))


# --- C ------------------------------------------------------------------------------------------------------------


def test_c_refuses_regions_that_leave_the_ranks_own_array() -> None:
    plan = plan_in_processes(Call("all_gather", "zero_copy", 3, 1000, "u8"))
    cards = [lines(1 << 16) for _ in range(RING.cards)]

    def program(peers: PeerMemory, frame: Frame = plan.frame, **others: Any) -> object:
        running = Running(plan.call, frame, plan.part(0), Binding(plan.layout, 4096, 1, 0, peers))
        return NativeEngine(cards, **others).program(running)

    peers = PeerMemory(0, (os.getpid(),) * 3)
    assert program(peers)
    wide = tuple(replace(region, nbytes=region.nbytes + 1) for region in plan.frame.regions)
    with pytest.raises(PlanError, match="the plan's tables do not fit its layout"):
        program(peers, replace(plan.frame, regions=wide))
    with pytest.raises(PlanError, match="in the processes of all ranks, or all in the pool"):
        program(PeerMemory(0, (os.getpid(),) * 2))
    with pytest.raises(PlanError, match="on coherent memory"):
        program(peers, elides=CoherenceStep.FLUSH)


@pytest.mark.parametrize("engine", ["native", "reference"])
def test_what_a_rank_writes_to_its_region_is_in_its_array(engine: str) -> None:
    call = Call("all_gather", "zero_copy", 1, 64, "u8", heap=InHeap(0, output=64, in_process=True))
    layout = layout_in_processes(call, replace(RING, ranks=1))
    region = Region(0, 1, LINE_BYTES, 0, 64, 64, heap=True)
    write = Instruction(Op.WRITE, nbytes=64, dst=Operand(Kind.REGION, 0), a=Operand(Kind.BUFFER, 0))
    sizes = (Buffer("input", 64), Buffer("output", 64), Buffer("scratch", 0))
    part = RankPart(0, sizes, (Stream("publish", encode([write])),))
    cards = [lines(1 << 16) for _ in range(RING.cards)]
    runs = NativeEngine(cards) if engine == "native" else ReferenceEngine(COHERENT.open(cards, **ANYWHERE))
    x, out = np.arange(64, dtype=np.uint8), np.zeros(64, np.uint8)
    running = Running(call, Frame(1, (region,)), part, Binding(layout, 4096, 1, 0, PeerMemory(0, (os.getpid(),))))
    runs.run(running, [x, out, np.empty(0, np.uint8)], deadline_s=PATIENT_S)
    assert (out == x).all()


# --- the command --------------------------------------------------------------------------------------------------


def test_run_says_that_copies_go_from_process_to_process() -> None:
    words = ["run", "all_gather", "all_to_all", "-c", "one-host-four-ranks", "--backend", "shm", "--iters", "1"]
    words += ["-n", "2", "-b", "16M", "-e", "16M"]
    ran = cxlemu(*words, "--transport", "process", code=0)
    assert "# copies   from process to process, arrays of 8 MiB and more" in ran.output
    assert ran.output.count("zero_copy") == 2
    ran = cxlemu(*words, "--launch", "threads", code=0)
    assert "copies" not in ran.output and "zero_copy" not in ran.output


@with_rows(("", "it needs coherent shared memory"), ("--backend shm -c laptop", "hosts have nothing but the pool"))
def test_run_refuses_it_in_a_sentence(flags: str, why: str) -> None:
    words = ["run", "all_gather", "-n", "2", "-c", "one-host-four-ranks", "--transport", "process"]
    assert why in " ".join(cxlemu(*words, *flags.split(), code=2).output.split())
