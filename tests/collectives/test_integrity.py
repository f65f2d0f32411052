"""Checksums that travel with doorbells: what is damaged or lost on its way is found, and it is said whose it was."""

import sys
import threading
from typing import Any

import numpy as np
import pytest

from collectives.algorithms.catalog import build, recipe, variants
from collectives.builder import LINE, Builder
from collectives.builder.recipes import algorithm, recipes_of, with_checksums
from collectives.communicator.communicator import Communicator
from cxlemu.errors import ArgumentError, BuilderError, IntegrityError, MismatchError, RankFailures
from cxlemu.memory import MemorySpec
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.plan import Call, Layout, Op, Plan, checksums, rules
from cxlemu.plan.kernels import KERNELS
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch
from faults.lockstep.lockstep import Lockstep
from faults.zero_copy_calls import lent, with_heap
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.expected import COLLECTIVES, REDUCTIONS, expected, input_bytes
from tests.helpers.tiers import PATIENT_S

LAPTOP = Topology.load("laptop")
RANKS = 3
LAYOUT = with_heap(Layout(RANKS, 2, 2, 2048, 2 * RANKS + 2, 256))
MOVING = [name for name in COLLECTIVES if name != "barrier"]
CASES = [(c, v) for c in MOVING for v in variants(c, checksums=True) if v != LINE.name]


def plan_for(collective: str, variant: str, *, checked: bool = True, nbytes: int = 200, root: int = 1) -> Plan:
    redop = "sum" if collective in REDUCTIONS else "none"
    call = Call(collective, variant, RANKS, nbytes, "i32", redop, root)
    chosen = recipe(collective, variant)
    return build(with_checksums(chosen) if checked else chosen, LAYOUT, lent(call) if variant == "zero_copy" else call)


def inputs_for(plan: Plan, seed: int = 0) -> list[Bytes]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, input_bytes(plan.call, rank), np.uint8) for rank in range(RANKS)]


class Faulty:
    """A rank's memory on a link that flips a bit in one read, or loses writes without a word."""

    def __init__(self, memory: HostMemory, reads: Any, flips: int = -1) -> None:
        self.memory, self.reads, self.flips, self.loses = memory, reads, flips, False

    def read(self, card: int, offset: int, out: Bytes) -> None:
        self.memory.read(card, offset, out)
        self.reads.append(out.size)
        if len(self.reads) - 1 == self.flips:
            flat = out.reshape(-1).copy()
            flat[self.flips * 7 % out.size] ^= 1 << self.flips % 8
            out[...] = flat.reshape(out.shape)

    def write(self, card: int, offset: int, data: Bytes) -> None:
        if not self.loses:
            self.memory.write(card, offset, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)


def faulty_world(flips: int = -1) -> tuple[Lockstep, list[Faulty], list[int]]:
    world, reads = Lockstep(LAYOUT), list[int]()
    faulty = [Faulty(memory, reads, flips) for memory in world.memories]
    world._reached = list(faulty)
    return world, faulty, reads


@pytest.mark.each_value_once
@pytest.mark.parametrize(("collective", "variant"), CASES)
def test_a_bit_that_flips_in_any_read_is_found(collective: str, variant: str) -> None:
    plan = plan_for(collective, variant)
    rules.check(plan)
    inputs = inputs_for(plan)
    world, _, reads = faulty_world()
    assert all(map(np.array_equal, world.call(plan, inputs), expected(plan.call, inputs)))
    assert reads
    for flips in range(len(reads)):
        with pytest.raises(IntegrityError) as caught:
            faulty_world(flips)[0].call(plan, inputs)
        assert 0 <= caught.value.rank < RANKS and caught.value.card < LAYOUT.cards


@pytest.mark.each_value_once
@pytest.mark.parametrize(("collective", "variant"), CASES)
def test_without_checksums_the_same_bits_are_wrong_results(collective: str, variant: str) -> None:
    """So the test above is one that can fail."""
    plan = plan_for(collective, variant, checked=False)
    inputs = inputs_for(plan)
    world, _, reads = faulty_world()
    world.call(plan, inputs)
    for flips in range(len(reads)):
        outputs = faulty_world(flips)[0].call(plan, inputs)
        assert not all(map(np.array_equal, outputs, expected(plan.call, inputs)))


@pytest.mark.each_value_once
@pytest.mark.parametrize("loser", range(RANKS))
@pytest.mark.parametrize(("collective", "variant"), [case for case in CASES if case[1] != "zero_copy"])
def test_writes_that_are_lost_are_found_on_every_lap_of_the_ring(collective: str, variant: str, loser: int) -> None:
    """On the second lap the slot still holds what it held on the first: whole, and wrong."""
    plan = plan_for(collective, variant)
    writes = any(i.op == Op.WRITE for stream in plan.part(loser).streams for i in stream.instructions)
    for lap in range(2):
        world, faulty, _ = faulty_world()
        for call in range(lap * LAYOUT.slots):
            world.call(plan, inputs_for(plan, call))
        faulty[loser].loses = True
        if not writes:
            world.call(plan, inputs_for(plan, 99))
            continue
        with pytest.raises(IntegrityError) as caught:
            world.call(plan, inputs_for(plan, 99))
        assert caught.value.rank == loser


def test_a_checksum_is_crc32c() -> None:
    data = np.frombuffer(b"123456789", np.uint8)
    assert checksums.checksum(data).tobytes() == (0xE3069283).to_bytes(8, "little")  # the CRC catalogue's check value
    assert KERNELS["crc32c"].sizes((9,)) == (8, 9)
    for parameters in ((), (0,), (1, 2), (1 << 41,)):
        for kernel in ("crc32c", "crc32c_check"):
            with pytest.raises(ArgumentError, match=f"{kernel} takes a number of bytes"):
                KERNELS[kernel].sizes(parameters)


@pytest.mark.parametrize(
    "collective, variant", [("all_reduce", "ring"), ("all_to_all", "grouped"), ("reduce", "hierarchical")]
)
def test_what_sends_no_checksums_is_refused(collective: str, variant: str) -> None:
    with pytest.raises(ArgumentError, match=f"{variant} carries no checksums"):
        with_checksums(recipe(collective, variant))


def test_the_line_variant_stays_as_it_is() -> None:
    for collective in COLLECTIVES:
        line = recipe(collective, LINE.name)
        assert with_checksums(line) is line


@algorithm("broadcast", variants=("aggregate",))
def in_halves(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, spread="cards", writers=[b.root]):
        for chunk in chunks:
            half = chunk._replace(nbytes=chunk.nbytes // 2)
            if b.is_root:
                b.publish(half, b.input(chunk.offset))


def test_an_algorithm_that_cuts_chunks_itself_is_told_how() -> None:
    [chosen] = recipes_of(in_halves)
    with pytest.raises(BuilderError, match=r"make a part of a chunk with the builder's part\(\)"):
        build(with_checksums(chosen), LAYOUT, Call("broadcast", chosen.name, RANKS, 200, "u8")).part(0)


# --- in a communicator ----------------------------------------------------------------------------------------------


@pytest.mark.each_value_once
@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("variant", ["naive", "aggregate", "all"])
def test_a_bit_that_flips_in_the_pool_is_an_integrity_error_everywhere(engine: str, variant: str) -> None:
    published, flipped = threading.Event(), threading.Event()

    def program(context: RankContext) -> tuple[type, int, int | None]:
        comm = Communicator.world(context, engine=engine, integrity="crc32c", deadline_s=PATIENT_S)
        x = np.arange(1000) * (comm.rank == 1)
        if comm.rank == 1:
            comm.broadcast(x, root=1, variant=variant)  # returns at once
            for card in context.pool.cards:
                begin = comm._base + comm.layout.data_offset
                ring = card[begin : begin + comm.layout.slots * comm.layout.slot_card_bytes]
                if ring.any():
                    ring[np.flatnonzero(ring)[0]] ^= 16
                    break
            published.set()
        published.wait(PATIENT_S)
        with pytest.raises(IntegrityError) as caught:
            if comm.rank == 0:
                comm.broadcast(x, root=1, variant=variant)
            elif comm.rank == 2:
                flipped.wait(PATIENT_S)
            comm.barrier()
        flipped.set()
        return type(caught.value), caught.value.rank, caught.value.reported_by

    told = launch(program, ranks=3, topology=LAPTOP, memory=MemorySpec("shm"), deadline_s=PATIENT_S)
    assert told == [(IntegrityError, 1, None), (IntegrityError, 1, 0), (IntegrityError, 1, 0)]


def test_ranks_that_differ_in_it_are_told_so() -> None:
    def program(context: RankContext) -> None:
        comm = Communicator.world(context, integrity="crc32c" if context.rank else None)
        comm.all_gather(np.zeros(1000))

    with pytest.raises(RankFailures) as raised:
        launch(program, ranks=2, topology=LAPTOP, deadline_s=PATIENT_S)
    assert any(isinstance(error, MismatchError) for error in raised.value.failures.values())


def test_split_and_shrunken_communicators_check_as_well() -> None:
    def program(context: RankContext) -> list[str]:
        comm = Communicator.world(context, integrity="crc32c")
        half = comm.split(0)
        return [c._planner._recipe("all_gather", "all").name for c in (comm, half, half.shrink())]

    assert launch(program, ranks=2, topology="six-cards") == [["all+crc32c"] * 3] * 2


def test_another_checksum_or_none_at_hand_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="unknown integrity 'md5': choose from crc32c, or None"):
        checksums.check_integrity("md5")
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    checksums._library.cache_clear()
    ran = cxlemu("run", "--integrity", "crc32c")
    checksums._library.cache_clear()
    assert (ran.exit_code, ran.output) == (
        2,
        "cxlemu: integrity crc32c needs google-crc32c, which is not installed: pip install 'cxlemu[integrity]'\n",
    )


@pytest.mark.deep(rows=lambda backend: backend == "shm")
@pytest.mark.parametrize("backend", ["emulated", "shm"])
def test_cxlemu_run_checks_every_variant(backend: str) -> None:
    words = "run -n 3 -c laptop --launch threads --integrity crc32c --variant every -b 40K -e 40K --iters 1"
    ran, document = with_json(*words.split(), "--backend", backend, code=0)
    assert "crc32c with every doorbell" in ran.output
    assert (document["integrity"], document["wrong"]) == ("crc32c", 0)
