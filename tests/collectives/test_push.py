"""Results that peers write where they lie, in the heap: what comes out, what is refused, and what `auto` takes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms import catalog
from collectives.algorithms.catalog import build, load_algorithm, recipe
from collectives.algorithms.choose import PUSH_MIN_BYTES
from collectives.builder.recipes import with_checksums
from collectives.communicator.communicator import Communicator
from collectives.communicator.operations import Planned
from collectives.communicator.planner import CallArguments
from cxlemu import _native
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError, MismatchError, PlanRuleError, RankFailures
from cxlemu.machine import VARIABLE, thresholds
from cxlemu.memory import AdversaryRates, MemorySpec
from cxlemu.plan import Call, InHeap, Kind, Layout, Op, Plan, file, rules
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch
from faults.explore.plans import explore_plan, tiny_layout
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import in_random_order, slow
from faults.lockstep.zero_copy_calls import HEAP_OUTPUT, lent_if_zero_copy, placed, with_heap
from faults.mutate.cases import MutationCase
from faults.mutate.mutants import Mutant
from faults.mutate.trial import Trial
from faults.prove import prove
from faults.verdict import Verdict
from tests.helpers.card_files import MIB, blank_cards, pool_of
from tests.helpers.expected import COLLECTIVES, expected, input_bytes
from tests.helpers.tiers import PATIENT_S, examples

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

Program = Callable[[Communicator], Any]


def together(program: Program, ranks: int = 2, *, world: str = "native, shm", **given_others: Any) -> list[Any]:
    engine, memory = WORLDS[world]

    def main(context: RankContext) -> Any:
        with Communicator.world(context, region_bytes=1 << 16, engine=engine, **given_others) as comm:
            return program(comm)

    return launch(main, ranks=ranks, topology=SIX_CARDS, memory=memory, deadline_s=PATIENT_S)


def pushed(collective: str, nbytes: int, layout: Layout = LAYOUT) -> Plan:
    call = lent_if_zero_copy(Call(collective, "push", layout.ranks, nbytes))
    return build(recipe(collective, "push"), layout, call)


# --- results ------------------------------------------------------------------------------------------------------


def calls_in_a_row(comm: Communicator) -> list[str]:
    """Both collectives, again and again on the same arrays; each user stores to its result before and after a call."""
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
    return wrong


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
    cards = blank_cards(tmp_path, 2, 8 * MIB)
    pool_of(cards)
    assert launch(main_on_cards, ranks=2, memory=MemorySpec("dax", devices=tuple(cards)), how="threads") == [[]] * 2


def main_on_cards(context: RankContext) -> list[str]:
    with Communicator.world(context) as comm:
        return calls_in_a_row(comm)


@pytest.mark.deep(rows=lambda how: how == "threads")
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_results_are_right_on_real_cards(tmp_path: Path, how: Any) -> None:
    cards = blank_cards(tmp_path, 2, 8 * MIB)
    pool_of(cards)
    assert launch(main_on_cards, ranks=3, memory=MemorySpec("dax", devices=tuple(cards)), how=how) == [[]] * 3


@pytest.mark.parametrize("collective", PUSHING)
@examples(30, derandomize=True)
@given(st.data())
def test_results_are_right_in_any_order_of_steps(collective: str, data: st.DataObject) -> None:
    seed, mapped = data.draw(st.integers(0, 99)), data.draw(st.booleans())
    plan, rng = pushed(collective, data.draw(st.sampled_from([0, 64, 192, 1024]))), np.random.default_rng(seed)
    program = [(plan, [rng.integers(0, 256, input_bytes(plan.call, r), np.uint8) for r in range(3)]) for _ in range(3)]
    memory = COHERENT if mapped else data.draw(st.sampled_from([MemorySpec(), MemorySpec(seed=seed, rates=WILD)]))
    order = data.draw(st.sampled_from([in_random_order(seed), slow(seed % 3)]))
    hosts = data.draw(st.sampled_from([(0, 1, 2), (0, 0, 1), (0, 1, 1)]))
    world = Lockstep(LAYOUT, memory=memory, order=order, mapped=mapped, hosts=hosts)
    for (_, inputs), outputs in zip(program, world.calls(program), strict=True):
        for got, wanted in zip(outputs, expected(plan.call, inputs), strict=True):
            assert got.tobytes() == wanted.tobytes()


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


@pytest.mark.parametrize("collective", PUSHING)
def test_lines_that_are_not_given_up_replace_what_peers_wrote(collective: str) -> None:
    """An evicted line of the owner's takes the place of its peers' bytes, in some executions and in no proof."""
    right = pushed(collective, 192)
    wrong, wrong_seeds = without_first_invalidate(right, 0), set()
    for plan in (right, wrong):
        for seed in range(12):
            rng = np.random.default_rng(seed)
            inputs = [rng.integers(0, 256, input_bytes(plan.call, r), np.uint8) for r in range(3)]
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
    trial = Trial(MutationCase(collective, "push", ranks))
    deletions = [mutant for mutant in trial.mutants() if mutant.operator == "delete"]
    judged = [trial.judge(mutant) for mutant in deletions]
    needed = {"INVALIDATE", "SIGNAL", "WAIT", "FLUSH", "FENCE"}
    assert {its.instruction for its in judged} == needed
    assert [str(its.mutant) for its in judged if its.fate.name != "CONFIRMED"] == []


def test_a_store_before_its_wait_is_shown_by_an_execution() -> None:
    """Two instructions far apart change places: a peer's result is written before the peer has given it up."""
    judged = Trial(MutationCase("all_gather", "push", 3)).judge(Mutant.parse("0.0.7:far=17"))
    assert (judged.fate.name, judged.instruction) == ("CONFIRMED", "SIGNAL")


# --- rules and files ----------------------------------------------------------------------------------------------


def test_a_block_is_written_by_the_rank_that_it_is_given_to() -> None:
    plan = pushed("all_gather", 64)
    part, stream = plan.part(0), plan.part(0).streams[0]
    records = stream.records.copy()
    regions = plan.frame.regions
    row = next(
        at
        for at, r in enumerate(records)
        if r["op"] == Op.WRITE and r["dst"]["kind"] == Kind.REGION and regions[r["dst"]["id"]].writer_bytes
    )
    records[row]["dst"]["offset"] += 128
    broken = plan.with_part(replace(part, streams=(replace(stream, records=records), *part.streams[1:])))
    with pytest.raises(PlanRuleError, match=r"it writes to rank 2's block of region .* and blocks given to it"):
        rules.check(broken, [0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"writer_bytes": 32}, "blocks of 32 bytes with a writer each, which are not whole lines"),
        ({"start": HEAP_OUTPUT + 8}, "blocks of 64 bytes with a writer each, which are not whole lines"),
        ({"heap": False}, "has a writer for each of its blocks, and does not lie in the heap"),
        ({"nbytes": 256}, "has more blocks of 64 bytes than there are ranks"),
    ],
)
def test_regions_that_peers_write_have_whole_lines_for_each_rank(changes: dict[str, Any], message: str) -> None:
    plan = pushed("all_gather", 64)
    regions = (*plan.frame.regions[:-1], replace(plan.frame.regions[-1], **changes))
    broken = Plan(plan.call, plan.layout, lambda rank: (replace(plan.frame, regions=regions), plan.part(rank)))
    with pytest.raises(PlanRuleError, match=message):
        rules.check(broken)


def test_a_saved_plan_is_loaded_again(tmp_path: Path) -> None:
    plan = pushed("all_to_all", 64)
    file.save(plan, saved := tmp_path / "push.plan")
    assert file.load(saved) == plan
    spec = load_algorithm(str(saved)).spec
    assert spec.pushes and not spec.zero_copy


def test_a_plan_file_from_before_has_no_writers_of_blocks(tmp_path: Path) -> None:
    plan = build(recipe("all_gather", "naive"), LAYOUT, Call("all_gather", "naive", 3, 64))
    file.save(plan, saved := tmp_path / "old.plan")
    begin, length = saved.read_bytes()[:12], int.from_bytes(saved.read_bytes()[12:20], "little")
    header, records = saved.read_bytes()[20 : 20 + length], saved.read_bytes()[20 + length : -4]
    old = header.replace(b',"writer_bytes":0', b"")
    assert len(old) < len(header)
    body = begin + len(old).to_bytes(8, "little") + old + records
    saved.write_bytes(body + zlib.crc32(body).to_bytes(4, "little"))
    assert file.load(saved) == plan


# --- what is refused ----------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Program, str]] = {
    "an ordinary result": (
        lambda c: c.all_gather(np.zeros(8), out=np.zeros(16), variant="push"),
        "all_gather push has peers write out where it lies in the pool: out must be an array that comm.heap made",
    ),
    "broken lines": (
        lambda c: c.all_gather(np.zeros(9), out=c.heap.empty(18), variant="push"),
        "whole lines of 64 bytes, and blocks of 72 bytes are none: take another variant",
    ),
    "a part between lines": (
        lambda c: c.all_gather(np.zeros(8), out=c.heap.empty(17)[1:], variant="push"),
        "blocks of 64 bytes from byte 8 of the heap on are none",
    ),
    "in place": (
        lambda c: c.all_to_all(x := c.heap.zeros(16), x, variant="push"),
        "all_to_all push has peers write the result, in which the input lies: pass out",
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


def test_ranks_whose_results_lie_at_different_places_are_told_so() -> None:
    def program(comm: Communicator) -> None:
        out = comm.heap.zeros((3, 16))
        comm.all_gather(np.zeros(8), out=out[comm.rank :][:1].reshape(2, 8), variant="push")

    with pytest.raises(RankFailures) as raised:
        together(program)
    assert any(isinstance(error, MismatchError) for error in raised.value.failures.values())


# --- auto, and what the model says --------------------------------------------------------------------------------


def test_whole_results_of_the_pool_are_written_by_peers_where_that_pays() -> None:
    elements = PUSH_MIN_BYTES // 4

    def program(comm: Communicator) -> list[Any]:
        taken: list[Any] = []
        planned = comm._planner.collective

        def watched(asked: CallArguments) -> Planned:
            taken.append((its := planned(asked)).call.algorithm)
            return its

        comm._planner.collective = watched  # type: ignore[method-assign]
        out, x = comm.heap.zeros((2, elements), np.float32), np.full(elements, comm.rank + 1, np.float32)
        taken.clear()
        comm.all_gather(x, out=out)
        right = bool((out[0] == 1).all() and (out[1] == 2).all())
        comm.all_to_all(np.stack([x, 2 * x]), out=out)
        right = right and [float(row[-1]) for row in out] == [comm.rank + 1.0, 2.0 * (comm.rank + 1)]
        comm.all_gather(comm.heap.local.empty(elements, np.float32), out=out)  # x lies in the pool as well
        comm.all_gather(x[: elements // 2], out=out[0])  # a part of an array
        comm.all_gather(x[:-1], out=comm.heap.empty((2, elements - 1), np.float32))
        return [right, *(each for each in taken if each != "line")]

    assert together(program, heap_bytes=64 * MIB) == [[True, "push", "push", "all", "all", "all"]] * 2


def test_the_choice_says_why() -> None:
    def program(comm: Communicator) -> list[tuple[str, str]]:
        return [comm.choice("all_gather", nbytes, out_in_pool=True) for nbytes in (PUSH_MIN_BYTES, PUSH_MIN_BYTES + 4)]

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
