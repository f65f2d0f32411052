"""Doorbells that tell where arrays in the heap lie: what comes out of the pool is compared with the strip first."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from collectives.algorithms.catalog import build, recipe
from collectives.checking.symbolic import verify
from collectives.communicator.communicator import Communicator
from collectives.communicator.heap.heap_blocks import lines
from collectives.contracts import COLLECTIVES, NO_ZERO_COPY_IN_PLACE
from collectives.in_heap import lends, told_in_heap
from cxlemu import _native
from cxlemu.capacity.touches import touches
from cxlemu.engines.native import NativeEngine, told_places
from cxlemu.engines.reference import PLACES, ReferenceEngine, Runner
from cxlemu.engines.streams import NO_PLACE, Binding, Running
from cxlemu.errors import ArgumentError, IntegrityError, PlaceError, PlanError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.plan import Call, Flag, Layout, Op, Plan, Stream
from cxlemu.plan.instructions import encode
from cxlemu.plan.layout import PLACES_AT, doorbell_word
from cxlemu.plan.plan import berths
from faults.explore.plans import explore_plan, tiny_layout
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import in_random_order
from faults.prove.calls import prove_calls
from faults.prove.sequences import among_others
from faults.verdict import Verdict
from faults.zero_copy_calls import in_heap
from tests.helpers import worlds
from tests.helpers.expected import REDUCTIONS, assert_right, some_inputs
from tests.helpers.tiers import PATIENT_S, seeds

MOVES = tuple(name for name, its in COLLECTIVES.items() if its.among_all)
NBYTES, STRIP_BYTES = 1000, 8192
RING = Layout(2, 2, 2, 1024, 8, 256, heap_card_bytes=STRIP_BYTES)
BASE, EPOCH, TAG = 4096, 1, 2
ENGINES = ("reference, direct", "reference, emulated", "native, direct", "native, emulated")


def plan_of(collective: str = "all_gather", layout: Layout = RING, **others: Any) -> Plan:
    redop = "sum" if collective in REDUCTIONS else "none"
    call = Call(collective, "zero_copy", layout.ranks, NBYTES, "u8", redop, **others)
    return build(recipe(collective, "zero_copy"), layout, replace(call, heap=told_in_heap(call, layout, output=True)))


# --- what a doorbell tells ----------------------------------------------------------------------------------------


def rank_0(engine: str, plan: Plan, told: tuple[int, int], **others: Any) -> tuple[bytes, np.ndarray]:
    """Run rank 0's part alone, after rank 1 has rung all doorbells and told where its arrays lie."""
    cards = [lines(1 << 16) for _ in range(RING.cards)]
    for rank in range(2):
        strip = RING.heap_strip(rank)
        at = BASE + RING.heap_offset + strip.offset
        cards[strip.card][at : at + STRIP_BYTES] = np.arange(STRIP_BYTES) % 251
    for doorbell in range(RING.doorbells_per_rank, RING.published_count):
        card, at = RING.doorbell_address(doorbell, EPOCH)
        line = cards[card][BASE + at :][:64]
        line[:8] = np.frombuffer(doorbell_word(EPOCH, TAG).to_bytes(8, "little"), np.uint8)
        line[8 + PLACES_AT :] = np.frombuffer(PLACES.pack(*told), np.uint8)
    card, at = RING.doorbell_address(RING.done(1), EPOCH)
    cards[card][BASE + at :][:8] = np.frombuffer(doorbell_word(EPOCH, 0).to_bytes(8, "little"), np.uint8)
    shadow = ShadowMemory(HostCache.private(cards))
    direct = MemorySpec("shm").open(cards, host_cache=None, host=0, rank=0)
    runs = {
        "reference, direct": lambda: ReferenceEngine(direct),
        "reference, emulated": lambda: ReferenceEngine(shadow),
        "native, direct": lambda: NativeEngine(cards),
        "native, emulated": lambda: NativeEngine(cards, through=shadow.native),
    }[engine]()
    x, out = np.zeros(NBYTES, np.uint8), np.zeros(2 * NBYTES, np.uint8)
    binding = Binding(RING, BASE, EPOCH, TAG, **{"places": (64, NO_PLACE), **others})
    running = Running(plan.call, plan.frame, plan.part(0), binding)
    runs.run(running, [x, out, np.empty(1 << 16, np.uint8)], deadline_s=PATIENT_S)
    return out[NBYTES:].tobytes(), cards[1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("place", [0, 1, 64, 3001, STRIP_BYTES - NBYTES])
def test_an_array_is_read_where_its_rank_says(engine: str, place: int) -> None:
    got, _ = rank_0(engine, plan_of(), (place, NO_PLACE))
    assert got == bytes((np.arange(place, place + NBYTES) % 251).astype(np.uint8))


WRONG = [NO_PLACE, -64, STRIP_BYTES - NBYTES + 1, STRIP_BYTES, 1 << 40, (1 << 63) - 1, -(1 << 63)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("place", WRONG)
def test_a_place_outside_of_the_strip_is_an_error_and_nothing_is_read_there(engine: str, place: int) -> None:
    with pytest.raises(
        PlaceError, match="rank 1 reports an address of its array that lies outside its part of the heap, on card 1"
    ):
        rank_0(engine, plan_of(), (place, 0))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_rank_tells_of_an_array_that_nobody_reads_does_not_matter(engine: str) -> None:
    got, _ = rank_0(engine, plan_of(), (64, -(1 << 63)))
    assert got == bytes((np.arange(64, 64 + NBYTES) % 251).astype(np.uint8))


@pytest.mark.parametrize("engine", ENGINES)
def test_an_array_is_not_read_before_its_rank_has_said_where(engine: str) -> None:
    """Waits that do not ask: a file may say so."""
    plan = plan_of()
    part = plan.part(0)
    unasked = [
        Stream(each.name, encode([i._replace(flags=0) if i.op == Op.WAIT else i for i in each.instructions]))
        for each in part.streams
    ]
    with pytest.raises(PlanError, match="reads an array of rank 1 without having waited for a doorbell that carries"):
        rank_0(engine, plan.with_part(replace(part, streams=tuple(unasked))), (64, NO_PLACE))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("place", WRONG)
def test_a_rank_whose_own_array_is_elsewhere_does_not_begin(engine: str, place: int) -> None:
    with pytest.raises(PlanError, match=r"does not lie in its part of the heap|do not fit its layout"):
        rank_0(engine, plan_of(), (64, NO_PLACE), places=(place, NO_PLACE))


def test_c_refuses_tables_that_leave_the_heap() -> None:
    plan = plan_of()
    running = Running(plan.call, plan.frame, plan.part(0), Binding(RING, BASE, EPOCH, TAG, places=(64, NO_PLACE)))
    right = told_places(RING, 0, (64, NO_PLACE), berths(plan.frame, RING, plan.call.heap))  # type: ignore[arg-type]
    made: list[dict[str, Any]] = []
    program = _native.Program
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_native, "Program", lambda **given: made.append(given) or program(**given))
        NativeEngine([lines(1 << 16) for _ in range(RING.cards)]).program(running)

    def accepts(told: Any) -> object:
        return _native.Program(**{**made[0], "told": told})

    assert accepts(right)
    rank, strip_bytes, source, target, strips, lie = right
    wrong: list[Any] = [
        (2, *right[1:]),
        (-1, *right[1:]),
        (rank, -1, source, target, strips, lie),
        (rank, 1 << 40, source, target, strips, lie),
        (rank, NBYTES - 1, 0, target, strips, lie),
        (rank, strip_bytes, source, target, strips - 1, lie),
        (rank, strip_bytes, source, target, strips + (1 << 20), lie),
        (rank, strip_bytes, source, target, strips[:1], lie),
        (rank, strip_bytes, source, target, strips, lie[:1]),
        *(
            (rank, strip_bytes, source, target, strips, np.where(np.arange(3) == at, value, lie))
            for at, value in BERTHS
        ),
    ]
    for told in wrong:
        with pytest.raises(ValueError, match=r"tables do not fit|of all ranks and all regions"):
            accepts(told)


BERTHS = [(0, -1), (0, 2), (0, 1 << 40), (1, -1), (1, 2), (2, -1), (2, 1 << 50), (2, STRIP_BYTES)]


# --- plans --------------------------------------------------------------------------------------------------------


def forms() -> Iterator[tuple[str, bool]]:
    for collective in MOVES:
        yield collective, False
        if collective not in NO_ZERO_COPY_IN_PLACE:
            yield collective, True


@pytest.mark.each_value_once
@pytest.mark.parametrize(("collective", "in_place"), [*forms()])
def test_plans_are_proved_and_keep_their_contract_wherever_arrays_lie(collective: str, in_place: bool) -> None:
    redop = "sum" if collective in REDUCTIONS else "none"
    call = Call(collective, "zero_copy", 3, 300, "u8", redop, root=1, in_place=in_place)
    call, layout = in_heap(call, Layout(3, 2, 2, 1024, 8, 256))
    plan = build(recipe(collective, "zero_copy"), layout, call)
    verify(plan)
    for mapped in (False, True):
        assert prove_calls(among_others(plan), mapped=mapped, obliges=True).verdict is Verdict.OK
    roomy = replace(layout, heap_card_bytes=layout.heap_card_bytes + (1 << 13))
    plan, rng = build(recipe(collective, "zero_copy"), roomy, call), np.random.default_rng(5)
    program = [(plan, some_inputs(call, rng)) for _ in range(3)]
    for mapped, memory in ((True, MemorySpec("shm")), (False, MemorySpec(seed=3)), (False, MemorySpec())):
        for seed in seeds(20):
            world = Lockstep(roomy, memory=memory, order=in_random_order(seed), mapped=mapped, apart=131)
            assert_right(world, program)


def test_only_doorbells_of_arrays_tell_and_each_is_asked() -> None:
    for collective in MOVES:
        plan = plan_of(collective)
        flags: dict[Op, set[int]] = {}
        for part in plan.parts:
            for i in (i for stream in part.streams for i in stream.instructions):
                if i.arg < RING.published_count:
                    flags.setdefault(i.op, set()).add(i.flags)
        assert flags[Op.SIGNAL] == flags[Op.WAIT] == {Flag.PLACES}, collective


def test_the_explorer_sees_what_doorbells_tell() -> None:
    """A payload that is stored over one that was not taken is found there, too."""
    layout = replace(tiny_layout(2), heap_card_bytes=256)
    call = Call("broadcast", "zero_copy", 2, 64, in_place=True)
    plan = build(recipe("broadcast", "zero_copy"), layout, replace(call, heap=told_in_heap(call, layout, output=False)))
    assert explore_plan([plan] * 3).verdict is Verdict.OK
    line = build(recipe("broadcast", "line"), layout, Call("broadcast", "line", 2, 32))
    calls = [line] * layout.slots + [plan]
    assert explore_plan(calls).verdict is Verdict.OK
    part = plan.part(0)
    hasty = [
        Stream(each.name, encode([i for i in each.instructions if i.op != Op.WAIT_ALL or i.value >= 0]))
        for each in part.streams
    ]
    hastily = plan.with_part(replace(part, streams=tuple(hasty)))
    assert explore_plan([*calls[:-1], hastily]).verdict is Verdict.VIOLATION
    assert prove_calls([*calls[:-1], hastily]).verdict is Verdict.VIOLATION


def test_the_prover_sees_that_nobody_tells() -> None:
    """A later signal lets the reader go on, and carries no place."""
    plan = plan_of("broadcast", replace(RING, doorbells_per_rank=1, slots=1), in_place=True)
    layout = plan.layout
    root = plan.part(0)
    dumb = [
        Stream(each.name, encode([i._replace(flags=0) if i.op == Op.SIGNAL else i for i in each.instructions]))
        for each in root.streams
    ]
    mute = plan.with_part(replace(root, streams=tuple(dumb)))
    assert layout.slots == 1 and prove_calls([plan] * 3).verdict is Verdict.OK
    for calls in ([mute], [plan, mute]):  # in the second one the places are those of the first
        proof = prove_calls(calls)
        assert proof.violation is not None and proof.violation.rule == "payload"
        assert "where no signal of the call stored any" in proof.reason


def test_all_of_a_strip_is_what_a_plan_may_touch() -> None:
    plan = plan_of()
    strips = [RING.heap_strip(rank) for rank in range(2)]
    told = [t for t in touches(RING, plan.frame, BASE, told=True) if t.what.startswith("region")]
    at = BASE + RING.heap_offset
    assert [(t.card, t.begin, t.end) for t in told] == [
        (s.card, at + s.offset, at + s.offset + STRIP_BYTES) for s in strips
    ]


# --- communicators ------------------------------------------------------------------------------------------------


together = partial(worlds.together, region_bytes=1 << 16, heap_bytes=1 << 20)
on_ranks = partial(worlds.on_ranks, by=together)


@on_ranks(gives=[True] * 2)
def test_an_array_that_fills_the_heap_is_reduced_in_place(comm: Communicator) -> bool:
    x = comm.heap.local.empty(1 << 20, np.uint8)
    x[:] = comm.rank + 1
    comm.all_reduce(x, variant="zero_copy")
    return bool((x == 3).all())


@pytest.mark.parametrize("how", [{}, {"integrity": "crc32c"}])
def test_places_travel_beside_checksums(how: dict[str, Any]) -> None:
    def program(comm: Communicator) -> list[int]:
        held = [comm.heap.local.empty(100 + number, np.uint8) for number in range(comm.rank)]
        x = comm.heap.local.empty((2, 5000), np.uint8)
        got = []
        for number in range(6):
            x[:] = 10 * comm.rank + number + np.arange(2)[:, None]
            got.append(int(comm.reduce_scatter(x, variant="zero_copy").reshape(-1)[-1]))
        return got if len(held) == comm.rank else []

    assert together(program, **how) == [[10 + 2 * number + 2 * rank for number in range(6)] for rank in range(2)]


def test_a_peers_wrong_place_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    tells = Runner._places
    monkeypatch.setattr(Runner, "_places", lambda r: PLACES.pack(1 << 20, 0) if r.part.rank == 1 else tells(r))

    def program(comm: Communicator) -> tuple[str, int | None]:
        x = comm.heap.local.empty(1000, np.uint8)
        with pytest.raises(IntegrityError) as raised:
            comm.all_gather(x, variant="zero_copy")
        assert raised.value.rank == 1
        return type(raised.value).__name__, raised.value.reported_by

    assert together(program, engine="reference") == [("PlaceError", None), ("IntegrityError", 0)]


REFUSED = {
    "an ordinary array of a rank that lends it": (
        lambda c: c.gather(np.zeros(9), root=1 - c.rank, variant="zero_copy")
    ),
    "a root that lends nothing": (lambda c: c.scatter(np.zeros(8), root=c.rank, variant="zero_copy")),
    "broken elements": (lambda c: c.all_gather(c.heap.local.empty(80, np.uint8)[4:76].view("f8"), variant="zero_copy")),
}


@pytest.mark.parametrize("what", REFUSED)
@on_ranks()
def test_a_rank_whose_array_peers_read_needs_one_in_the_heap(comm: Communicator, what: str) -> None:
    with pytest.raises(ArgumentError, match=r"x must be an array that comm\.heap made, or whole elements of one"):
        REFUSED[what](comm)


def test_who_lends() -> None:
    lenders = {
        collective: [lends(Call(collective, "zero_copy", 3, 8, root=1), rank) for rank in range(3)]
        for collective in ("all_gather", "gather", "reduce", "scatter", "broadcast")
    }
    assert lenders == {
        "all_gather": [True, True, True],
        "gather": [True, False, True],
        "reduce": [True, False, True],
        "scatter": [False, True, False],
        "broadcast": [False, True, False],
    }
