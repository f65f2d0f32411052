"""Results that peers write where they lie, in the heap: what comes out, what is refused, and what `auto` takes."""

import zlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from collectives.algorithms import catalog
from collectives.algorithms.catalog import build, load_algorithm, load_plan, own_recipe, recipe
from collectives.algorithms.choose import PUSH_MIN_BYTES
from collectives.builder import PUSH, Builder
from collectives.builder.recipes import Recipe, algorithm, with_checksums
from collectives.communicator.communicator import Communicator
from collectives.in_heap import gives_up
from cxlemu import _native
from cxlemu.cost import CostModel
from cxlemu.engines.reference import PLACES, Runner
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError, BuilderError, PlaceError, PlanRuleError, RankFailures
from cxlemu.machine import VARIABLE, thresholds
from cxlemu.memory import AdversaryRates, MemorySpec
from cxlemu.plan import Call, Flag, InHeap, Kind, Layout, Op, Plan, file, rules
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch
from faults.explore.plans import explore_plan, tiny_layout
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import in_random_order, slow
from faults.mutate import cases as cases_module
from faults.mutate.cases import MutationCase
from faults.mutate.mutants import Mutant
from faults.mutate.trial import Trial
from faults.prove import prove
from faults.verdict import Verdict
from faults.zero_copy_calls import HEAP_OUTPUT, lent_if_zero_copy, placed, with_heap
from tests.helpers import worlds
from tests.helpers.card_files import MIB, real_cards
from tests.helpers.expected import COLLECTIVES, assert_right, expected, some_inputs
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples
from tests.helpers.worlds import Program, calls_of

SIX_CARDS = Topology.load("six-cards")
COHERENT = MemorySpec("shm")
WILD = AdversaryRates(evict=0.3, prefetch=0.3, land=0.3)
WORLDS = {
    "native, shm": ("native", COHERENT),
    "reference, shm": ("reference", COHERENT),
    "native, emulated": ("native", MemorySpec()),
    "native, emulated, adversary": ("native", MemorySpec(seed=3, rates=WILD)),
    "reference, emulated, adversary": ("reference", MemorySpec(seed=5, rates=WILD)),
}
PUSHING = [collective for collective in COLLECTIVES if catalog.pushing(collective)]
LAYOUT = with_heap(Layout(3, cards=2, slots=2, slot_card_bytes=1024, doorbells_per_rank=12, interleave_bytes=256))

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

Array = NDArray[Any]


def together(program: Program, ranks: int = 2, *, world: str = "native, shm", **given: Any) -> list[Any]:
    engine, memory = WORLDS[world]
    return worlds.together(program, ranks, memory, engine, topology=SIX_CARDS, region_bytes=1 << 16, **given)


on_ranks = partial(worlds.on_ranks, by=together)


def untold(call: Call, its: Recipe | None = None) -> Call:
    """Place the result where the plan says, on all ranks: doorbells tell nothing."""
    return replace(call, heap=InHeap(None, output=HEAP_OUTPUT))


def pushed(collective: str, nbytes: int, layout: Layout = LAYOUT) -> Plan:
    call = lent_if_zero_copy(Call(collective, "push", layout.ranks, nbytes))
    return build(recipe(collective, "push"), layout, call)


# --- results ------------------------------------------------------------------------------------------------------


def calls_in_a_row(comm: Communicator) -> list[str]:
    """All that write to peers, again and again on the same arrays; each user stores to its result before and after."""
    n, wrong = 320, []
    out = comm.heap.empty((comm.size, n), np.int32)
    part = comm.heap.empty((comm.size + 1, n), np.int32)[1:]
    for turn in range(4):
        for variant, result in (("push", out), ("push", part), ("zero_copy", out), ("push", out)):
            x = np.arange(comm.size * n, dtype=np.int32).reshape(comm.size, n) * (comm.rank + 1) + turn
            rows = [np.arange(n) * (k + 1) + turn for k in range(comm.size)]
            columns = [(np.arange(n) + comm.rank * n) * (k + 1) + turn for k in range(comm.size)]
            for collective, given_x, right in (("all_gather", x[0], rows), ("all_to_all", x, columns)):
                if variant == "zero_copy":  # what it leaves in caches is in the way of the next call's writers
                    result[0] = comm.rank
                    comm.all_gather(result[0], out=np.empty_like(result), variant=variant)
                    continue
                result[:] = -1
                getattr(comm, collective)(given_x.copy(), out=result, variant=variant)
                wrong += [f"{collective} {turn}"] * (not np.array_equal(result, right))
                result[:] = -2
            if variant == "push":
                root = turn % comm.size
                wrong += [f"gather {turn}"] * (not is_gathered(comm, root, x[0], result, rows))
                wrong += [f"scatter {turn}"] * (not is_scattered(comm, root, x, result[turn % comm.size], turn))
    return wrong


def is_gathered(comm: Communicator, root: int, x: Array, result: Array, right: list[Array]) -> bool:
    """Call a gather for which the root alone has an array in the pool, and see what comes out."""
    out = result if comm.rank == root else None
    result[:] = -1
    comm.gather(x.copy(), out=out, root=root, variant="push")
    same = np.array_equal(result, right) if comm.rank == root else bool((result == -1).all())
    result[:] = -2
    return same


def is_scattered(comm: Communicator, root: int, x: Array, result: Array, turn: int) -> bool:
    """Call a scatter for which all but the root have an array in the pool, and see what comes out."""
    mine, sent = comm.rank == root, np.arange(comm.size * result.size).reshape(comm.size, -1) * (root + 1) + turn
    out = np.empty_like(result) if mine else result
    out[:] = -1
    comm.scatter(x.copy() if mine else None, out=out, root=root, variant="push")
    same = np.array_equal(out, sent[comm.rank])
    out[:] = -2
    return same


FAST = {("native, shm", 3), ("reference, emulated, adversary", 2)}


@pytest.mark.deep(rows=lambda world, ranks: (world, ranks) not in FAST)
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_results_are_right_call_after_call(world: str, ranks: int) -> None:
    assert together(calls_in_a_row, ranks, world=world) == [[]] * ranks


@pytest.fixture
def past_caches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Results of any size are stored past the caches."""
    before = _native.past_caches_from(0)
    monkeypatch.setenv(VARIABLE, "64")
    thresholds.cache_clear()
    yield
    thresholds.cache_clear()
    _native.past_caches_from(before)


def test_results_are_right_past_the_caches(past_caches: None, tmp_path: Path) -> None:
    assert together(calls_in_a_row, 3) == [[]] * 3
    assert _native.past_caches_from(0) == 64
    assert launch(main_on_cards, ranks=2, memory=real_cards(tmp_path), how="threads") == [[]] * 2


def main_on_cards(context: RankContext) -> list[str]:
    with Communicator.world(context) as comm:
        return calls_in_a_row(comm)


@pytest.mark.deep
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_results_are_right_on_real_cards(tmp_path: Path, how: Any) -> None:
    assert launch(main_on_cards, ranks=3, memory=real_cards(tmp_path), how=how) == [[]] * 3


@pytest.mark.parametrize("collective", PUSHING)
@examples(30, derandomize=True)
@given(st.data())
def test_results_are_right_in_any_order_of_steps(collective: str, data: st.DataObject) -> None:
    seed, mapped = data.draw(st.integers(0, 99)), data.draw(st.booleans())
    plan, rng = pushed(collective, data.draw(st.sampled_from([0, 64, 192, 1024]))), np.random.default_rng(seed)
    program = [(plan, some_inputs(plan.call, rng)) for _ in range(3)]
    memory = COHERENT if mapped else data.draw(st.sampled_from([MemorySpec(), MemorySpec(seed=seed, rates=WILD)]))
    order = data.draw(st.sampled_from([in_random_order(seed), slow(seed % 3)]))
    hosts = data.draw(st.sampled_from([(0, 1, 2), (0, 0, 1), (0, 1, 1)]))
    world = Lockstep(LAYOUT, memory=memory, order=order, mapped=mapped, hosts=hosts)
    assert_right(world, program)


# --- proofs, and mistakes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", PUSHING)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_every_execution_is_right_whatever_calls_come_before_and_after(collective: str, ranks: int) -> None:
    layout = Layout(ranks, 2, 2, 4096, 3 * ranks, 256)
    for nbytes in (64, 320):
        call, where = placed(recipe(collective, "push"), Call(collective, "push", ranks, nbytes), layout)
        plan = build(recipe(collective, "push"), where, call)
        for hosts in (None, [rank // 2 for rank in range(ranks)]):
            proof = prove(plan, hosts=hosts)
            assert proof.verdict is Verdict.OK, proof.reason


@pytest.mark.parametrize("collective", PUSHING)
def test_the_explorer_finds_no_wrong_execution(collective: str) -> None:
    its = recipe(collective, "push")
    call, layout = placed(its, Call(collective, "push", 2, 64), tiny_layout(2, lines=3))
    plan = build(its, layout, call)
    assert explore_plan([plan, plan]).verdict is Verdict.OK


def first_invalidate(plan: Plan, rank: int) -> tuple[int, int]:
    """The stream and the number of the instruction with which a rank gives its result up."""
    at = next(at for at, i in enumerate(plan.part(rank).streams[0].instructions) if i.op == Op.INVALIDATE)
    return 0, at


def without_first_invalidate(plan: Plan, rank: int) -> Plan:
    part, (stream, at) = plan.part(rank), first_invalidate(plan, rank)
    streams = list(part.streams)
    streams[stream] = replace(streams[stream], records=np.delete(streams[stream].records, at))
    return plan.with_part(replace(part, streams=tuple(streams)))


@pytest.mark.deep(rows=lambda collective: collective != "gather")
@pytest.mark.parametrize("collective", PUSHING)
def test_lines_that_are_not_given_up_replace_what_peers_wrote(collective: str) -> None:
    """An evicted line of the owner's takes the place of its peers' bytes, in some executions and in no proof."""
    right = pushed(collective, 192)
    giver = next(rank for rank in range(3) if gives_up(right.call, rank))
    wrong, wrong_seeds = without_first_invalidate(right, giver), set()
    for plan in (right, wrong):
        for seed in range(12):
            inputs = some_inputs(plan.call, np.random.default_rng(seed))
            world = Lockstep(LAYOUT, memory=MemorySpec(seed=seed, rates=WILD), order=in_random_order(seed))
            outputs = [world.call(plan, inputs) for _ in range(2)][-1]
            same = all(o.tobytes() == w.tobytes() for o, w in zip(outputs, expected(plan.call, inputs), strict=True))
            wrong_seeds |= set() if same else {(plan is wrong, seed)}
    assert wrong_seeds and all(is_wrong for is_wrong, _ in wrong_seeds)
    proof = prove(wrong)
    assert proof.verdict is Verdict.VIOLATION


@pytest.mark.deep(rows=lambda ranks: ranks > 2)
@pytest.mark.parametrize("collective", PUSHING)
@pytest.mark.parametrize("ranks", [2, 3])
def test_no_deletion_survives(collective: str, ranks: int) -> None:
    """An execution shows each; who has not heard where a result lies is refused before."""
    trial = Trial(MutationCase(collective, "push", ranks))
    deletions = [mutant for mutant in trial.mutants() if mutant.operator == "delete"]
    judged = [trial.judge(mutant) for mutant in deletions]
    needed = {"INVALIDATE", "SIGNAL", "WAIT", "WAIT_ALL", "FLUSH", "FENCE"}
    assert {its.instruction for its in judged} == needed
    hearing = {
        str(mutant)
        for mutant in deletions
        if (i := trial.plan.part(mutant.rank).streams[mutant.stream].instructions[mutant.at]).op == Op.WAIT
        and i.flags & Flag.PLACES
    }
    assert hearing == {str(its.mutant) for its in judged if its.fate.name == "REFUSED"}
    assert [str(its.mutant) for its in judged if its.fate.name not in ("CONFIRMED", "REFUSED")] == []


def test_a_store_before_its_wait_is_shown_by_an_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two instructions far apart change places: a peer's result is written before the peer has given it up."""
    monkeypatch.setattr(cases_module, "lent_if_zero_copy", untold)
    judged = Trial(MutationCase("all_gather", "push", 3)).judge(Mutant.parse("0.0.7:far=17"))
    assert (judged.fate.name, judged.instruction) == ("CONFIRMED", "SIGNAL")


# --- rules and files ----------------------------------------------------------------------------------------------


def first_store(plan: Plan, rank: int) -> int:
    """The number of the instruction of a rank's first stream that first stores to what a peer has given up."""
    return next(
        at
        for at, r in enumerate(plan.part(rank).streams[0].records)
        if r["op"] == Op.WRITE and r["dst"]["kind"] == Kind.REGION and plan.frame.regions[r["dst"]["id"]].writer_bytes
    )


def test_a_block_is_written_by_the_rank_that_it_is_given_to() -> None:
    plan = pushed("all_gather", 64)
    part, stream = plan.part(0), plan.part(0).streams[0]
    records = stream.records.copy()
    records[first_store(plan, 0)]["dst"]["offset"] += 128
    broken = plan.with_part(replace(part, streams=(replace(stream, records=records), *part.streams[1:])))
    with pytest.raises(PlanRuleError, match=r"it writes to rank 2's block of region .* and blocks given to it"):
        rules.check(broken, [0])


def test_a_result_of_one_block_is_written_by_the_rank_that_its_region_names() -> None:
    plan = pushed("scatter", 64)
    its = {region.first_writer for region in plan.frame.regions if region.writer_bytes}
    assert (its, plan.call.root) == ({0}, 0)
    call = replace(plan.call, root=1)
    plan = build(recipe("scatter", "push"), LAYOUT, call)
    assert {region.first_writer for region in plan.frame.regions if region.writer_bytes} == {1}
    rules.check(plan)
    regions = tuple(replace(r, first_writer=2) if r.writer_bytes else r for r in plan.frame.regions)
    broken = Plan(plan.call, plan.layout, lambda rank: (replace(plan.frame, regions=regions), plan.part(rank)))
    with pytest.raises(PlanRuleError, match=r"it writes to rank 2's block of region .* and blocks given to it"):
        rules.check(broken)


@with_rows(
    ({"writer_bytes": 32}, "blocks of 32 bytes with a writer each, which are not whole lines"),
    ({"start": HEAP_OUTPUT + 8}, "blocks of 64 bytes with a writer each, which are not whole lines"),
    ({"heap": False}, "has a writer for each of its blocks, and does not lie in the heap"),
    ({"nbytes": 256}, "has more blocks of 64 bytes than there are ranks to write them"),
    ({"first_writer": 1}, "has more blocks of 64 bytes than there are ranks from rank 1 on to write them"),
    ({"first_writer": 9}, "has more blocks of 64 bytes than there are ranks from rank 9 on to write them"),
    ({"first_writer": -1}, "has a negative card, base, start, size or writer"),
)
def test_regions_that_peers_write_have_whole_lines_for_each_rank(changes: dict[str, Any], message: str) -> None:
    plan = pushed("all_gather", 64)
    regions = (*plan.frame.regions[:-1], replace(plan.frame.regions[-1], **changes))
    broken = Plan(plan.call, plan.layout, lambda rank: (replace(plan.frame, regions=regions), plan.part(rank)))
    with pytest.raises(PlanRuleError, match=message):
        rules.check(broken)


@pytest.mark.parametrize("collective", PUSHING)
def test_a_saved_plan_is_loaded_again(collective: str, tmp_path: Path) -> None:
    root = 2 if collective in ("gather", "scatter") else 0
    plan = build(recipe(collective, "push"), LAYOUT, replace(pushed(collective, 64).call, root=root))
    file.save(plan, saved := tmp_path / "push.plan")
    assert load_plan(saved) == plan
    spec = load_algorithm(str(saved)).spec
    assert spec.pushes and not spec.zero_copy


def test_a_plan_file_from_before_has_no_writers_of_blocks(tmp_path: Path) -> None:
    plan = build(recipe("all_gather", "naive"), LAYOUT, Call("all_gather", "naive", 3, 64))
    file.save(plan, saved := tmp_path / "old.plan")
    begin, length = saved.read_bytes()[:12], int.from_bytes(saved.read_bytes()[12:20], "little")
    header, records = saved.read_bytes()[20 : 20 + length], saved.read_bytes()[20 + length : -4]
    old = header.replace(b',"writer_bytes":0,"first_writer":0', b"")
    assert len(old) < len(header)
    body = begin + len(old).to_bytes(8, "little") + old + records
    saved.write_bytes(body + zlib.crc32(body).to_bytes(4, "little"))
    assert load_plan(saved) == plan


def test_a_saved_plan_from_before_doorbells_told_runs_where_it_says(tmp_path: Path) -> None:
    """In it results lie at one place on all ranks, and their regions name no first writer."""
    path = tmp_path / "old.plan"

    def program(comm: Communicator) -> list[bool]:
        out = comm.heap.zeros((3, 64))
        call = Call("all_gather", "push", 2, 256, "f64", heap=InHeap(None, output=512))
        if comm.rank == 0:
            file.save(build(recipe("all_gather", "push"), comm.layout, call), path)
            header = path.read_bytes()
            assert b'"told":false' in header
        comm.barrier()
        own = load_algorithm(str(path))
        comm.all_gather(np.full(32, comm.rank + 1.0), out=out[1], variant=own)
        right = bool((out[1, :32] == 1).all() and (out[1, 32:] == 2).all())
        with pytest.raises(ArgumentError, match=r"is the plan of .*result at heap\+512.*, not of .*result at heap\+0"):
            comm.all_gather(np.full(32, 1.0), out=out[0], variant=own)
        return [right]

    assert together(program) == [[True]] * 2


# --- what is refused ----------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Program, str]] = {
    "an ordinary result": (
        lambda c: c.all_gather(np.zeros(8), out=np.zeros(16), variant="push"),
        "all_gather push has peers write out where it lies in the pool: out must be an array that comm.heap made",
    ),
    "broken lines": (
        lambda c: c.all_gather(np.zeros(9), out=c.heap.empty(18), variant="push"),
        "whole lines of 64 bytes, and blocks of 72 bytes are not whole lines: take another variant",
    ),
    "a part between lines": (
        lambda c: c.all_gather(np.zeros(8), out=c.heap.empty(17)[1:], variant="push"),
        "blocks of 64 bytes from byte 8 of the heap on are not whole lines",
    ),
    "in place": (
        lambda c: c.all_to_all(x := c.heap.zeros(16), x, variant="push"),
        "all_to_all push has peers write the result, in which the input lies: pass out",
    ),
    "an ordinary result of a gather's root": (
        lambda c: c.gather(np.zeros(8), out=np.zeros(16), root=c.rank, variant="push"),
        "gather push has peers write out where it lies in the pool: out must be an array that comm.heap made",
    ),
    "an ordinary result of a scatter": (
        lambda c: c.scatter(None, out=np.zeros(8), root=1 - c.rank, variant="push"),
        "scatter push has peers write out where it lies in the pool: out must be an array that comm.heap made",
    ),
    "broken lines that a root sends": (
        lambda c: c.scatter(np.zeros(18), out=np.zeros(9), root=c.rank, variant="push"),
        "scatter push has peers write whole lines of 64 bytes, and blocks of 72 bytes are not whole lines",
    ),
    "broken lines for a root": (
        lambda c: c.gather(np.zeros(9), root=1 - c.rank, variant="push"),
        "gather push has peers write whole lines of 64 bytes, and blocks of 72 bytes are not whole lines",
    ),
    "a gather in place": (
        lambda c: c.gather((out := c.heap.zeros((2, 8)))[c.rank], out=out, root=c.rank, variant="push"),
        "gather push has peers write the result, in which the input lies: pass out",
    ),
    "a scatter in place": (
        lambda c: c.scatter(x := c.heap.zeros((2, 8)), out=x[c.rank], root=c.rank, variant="push"),
        "scatter push has peers write the result, in which the input lies: pass out",
    ),
    "no such variant": (lambda c: c.broadcast(np.zeros(8), variant="push"), "broadcast has no variant 'push'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_peers_cannot_write_is_refused_before_anything_is_sent(what: str) -> None:
    call, message = REFUSED[what]

    def program(comm: Communicator) -> float:
        with pytest.raises(ArgumentError, match=message):
            call(comm)
        return float(comm.all_reduce(np.ones(1))[0])  # the communicator goes on

    assert together(program) == [2.0, 2.0]


def test_no_checksums_are_carried() -> None:
    with pytest.raises(ArgumentError, match="push carries no checksums: take another variant"):
        with_checksums(recipe("all_gather", "push"))
    with pytest.raises(ArgumentError, match="all_gather push writes to the results of peers: make out"):
        build(recipe("all_gather", "push"), LAYOUT, Call("all_gather", "push", 3, 64, heap=InHeap(0)))


@pytest.mark.parametrize("world", WORLDS)
def test_results_may_lie_at_different_places_as_doorbells_tell(world: str) -> None:
    def program(comm: Communicator) -> list[Any]:
        several = comm.heap.zeros((3, 2, 8))
        out = several[comm.rank] if comm.rank else comm.heap.local.empty((2, 8))
        comm.all_gather(np.full(8, comm.rank + 1.0), out=out, variant="push")
        gathered = out[:, -1].tolist()
        comm.scatter(np.arange(16.0) if comm.rank == 1 else None, out=out[comm.rank], root=1, variant="push")
        return [gathered, out[comm.rank].tolist(), several[1 - comm.rank].any()]

    halves = [list(map(float, range(8))), list(map(float, range(8, 16)))]
    assert together(program, world=world) == [[[1.0, 2.0], half, False] for half in halves]


def test_a_result_that_is_told_outside_its_ranks_part_is_written_by_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    tells = Runner._places
    monkeypatch.setattr(Runner, "_places", lambda r: PLACES.pack(0, 1 << 50) if r.part.rank == 1 else tells(r))

    def program(comm: Communicator) -> None:
        comm.gather(np.zeros(8), out=comm.heap.zeros(16), root=1, variant="push")

    with pytest.raises(
        RankFailures, match="rank 1 reports an address of its array that lies outside its part of the heap"
    ) as raised:
        together(program, world="reference, shm")
    assert isinstance(raised.value.failures[0], PlaceError)


def test_who_gives_its_result_up() -> None:
    givers = {name: [gives_up(Call(name, "push", 3, 64, root=1), rank) for rank in range(3)] for name in PUSHING}
    everyone = [True, True, True]
    assert givers == {
        "all_gather": everyone,
        "gather": [False, True, False],
        "scatter": [True, False, True],
        "all_to_all": everyone,
    }


def test_an_algorithm_of_ones_own_has_a_block_for_each_result() -> None:
    @algorithm("all_gather", variants=(PUSH,))
    def one_block(b: Builder) -> None:
        for _ in b.rounds(b.nbytes, spread="cards"):
            pass

    own = own_recipe(one_block, "one_block", "a.py:one_block")
    call = Call("all_gather", own.name, 3, 64, heap=InHeap(None, output=0, told=True))
    with pytest.raises(BuilderError, match=r"each rank's result has its block: rounds\(..., blocks=3\)"):
        build(own, LAYOUT, call).part(0)


# --- auto, and what the model says --------------------------------------------------------------------------------


def test_whole_results_of_the_pool_are_written_by_peers_where_that_pays() -> None:
    elements = PUSH_MIN_BYTES // 4

    def program(comm: Communicator) -> list[Any]:
        taken = calls_of(comm)
        out, x = comm.heap.zeros((2, elements), np.float32), np.full(elements, comm.rank + 1, np.float32)
        taken.clear()
        comm.all_gather(x, out=out)
        right = bool((out[0] == 1).all() and (out[1] == 2).all())
        comm.all_to_all(np.stack([x, 2 * x]), out=out)
        right = right and [float(row[-1]) for row in out] == [comm.rank + 1.0, 2.0 * (comm.rank + 1)]
        comm.all_gather(comm.heap.local.empty(elements, np.float32), out=out)  # x lies in the pool as well
        comm.all_gather(x[: elements // 2], out=out[0])  # a part of an array
        comm.all_gather(x[:-1], out=comm.heap.empty((2, elements - 1), np.float32))
        comm.gather(x, out=out if comm.rank == 0 else None)  # of whose result rank 1 knows nothing
        comm.scatter(out if comm.rank == 1 else None, out=comm.heap.empty(elements, np.float32), root=1)
        return [right, *(call.algorithm for call in taken if call.algorithm != "line")]

    assert together(program, heap_bytes=64 * MIB) == [[True, "push", "push", *5 * ["all"]]] * 2


def test_the_choice_says_why() -> None:
    def program(comm: Communicator) -> list[tuple[str, str]]:
        return [comm.choice("all_gather", nbytes, out_in_pool=True) for nbytes in (PUSH_MIN_BYTES, PUSH_MIN_BYTES + 4)]

    def at_a_root(comm: Communicator) -> list[str]:
        return [comm.choice(name, PUSH_MIN_BYTES, out_in_pool=True).variant for name in ("gather", "scatter")]

    assert together(at_a_root, 1) == [["all", "all"]]
    (variant, reason), (other, _) = together(program, 1)[0]
    assert (variant, other) == ("push", "all")
    assert reason == "1 MiB for results that lie in the pool: peers write them there, with one copy"
    assert (
        together(lambda c: c.choice("all_gather", PUSH_MIN_BYTES, out_in_pool=True)[0], integrity="crc32c")
        == ["all"] * 2
    )


def test_the_model_charges_the_writer_and_not_the_reader() -> None:
    its = recipe("all_gather", "push")
    layout = Layout(4, SIX_CARDS.pool_card_count, 2, 1 << 20, 16, 65536)
    call, where = placed(its, Call("all_gather", "push", 4, 1 << 20), layout)
    run = simulate(CostModel.of(SIX_CARDS, 4), [VirtualCall(build(its, where, call))])
    slots = build(recipe("all_gather", "all"), layout, replace(call, algorithm="all", heap=None))
    other = simulate(CostModel.of(SIX_CARDS, 4), [VirtualCall(slots)])
    assert run.ops[Op.READ].ns == 0 < other.ops[Op.READ].ns
    assert run.ops[Op.WRITE].ns > other.ops[Op.WRITE].ns
