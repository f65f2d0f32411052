"""Plans for arrays on a device: proved, bit-equal on fakes, and no event or fence in them may be left out.

The adversary is threefold: seeds choose which rank and stream steps, when each device does what it queued, and what
nature does to caches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest

from collectives import fused
from collectives.algorithms import catalog
from collectives.builder.recipes import with_checksums
from collectives.contracts import COLLECTIVES
from cxlemu.accelerator.fake import DmaWrites
from cxlemu.accelerator.plan import BOUNCE, QUEUE, device_plan, is_queue
from cxlemu.errors import ArgumentError, DeadlineError, MismatchError
from cxlemu.memory import AdversaryRates, MemorySpec
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPE_NAMES, DTYPES, Call, Flag, Layout, Op, Plan, RankPart
from cxlemu.plan.reduction import reductions
from cxlemu.plan.rules import check, findings
from faults.lockstep.counterexample import CallSequence
from faults.lockstep.lockstep import Lockstep
from faults.mutate.cases import MutationCase, plan_of, sequence, shipped
from faults.mutate.mutants import Mutant, apply, mutants
from faults.mutate.trial import Fate, Trial
from faults.prove import prove_calls
from faults.verdict import Verdict
from faults.zero_copy_calls import lent_if_zero_copy, with_heap
from tests.helpers.device_world import DeviceWorld

WILD = AdversaryRates(evict=0.3, prefetch=0.3, land=0.3)
ON_HOST = (Op.FLUSH, Op.FENCE, Op.INVALIDATE, Op.SIGNAL, Op.SIGNAL_DATA, Op.WAIT, Op.WAIT_DATA, Op.WAIT_ALL)
RINGS = (Op.SIGNAL, Op.SIGNAL_DATA)
DELETED = (Op.AWAIT, Op.FLUSH, Op.FENCE, Op.INVALIDATE)  # a RECORD that is left out breaks the rule "recorded"
SEEDS, SEEDS_OF_PROVED = 16, 6
WAYS: tuple[DmaWrites, ...] = ("cache", "memory")


def for_devices(ranks: int) -> list[MutationCase]:
    """All shipped cases but those whose results peers write, which lie in the pool."""
    return [case for case in shipped(ranks) if case.variant not in catalog.pushing(case.collective)]


CASES = [case for ranks in (2, 3) for case in for_devices(ranks)]
PLAIN = [case for case in CASES if case.ranks == 2 and case.cluster == 1]
FEW = [
    MutationCase("all_gather", "all", 2),
    MutationCase("all_reduce", "staged", 2, in_place=True),
    MutationCase("all_reduce", "line", 2),
    MutationCase("barrier", "line", 2),
    next(case for case in PLAIN if case.collective == "gemm_reduce_scatter"),
]


class Asked(NamedTuple):
    """Calls amidst which a plan is looked at, and what all ranks get."""

    plans: list[Plan]
    inputs: list[list[Bytes]]
    outputs: list[list[Bytes]]

    @classmethod
    def of(cls, plans: list[Plan]) -> Asked:
        """The reference engine runs the host's plans."""
        inputs = CallSequence.of(plans).inputs
        return cls(plans, inputs, Lockstep(plans[0].layout).calls(list(zip(plans, inputs, strict=True))))

    def on_devices(self, plans: Sequence[Plan], world: DeviceWorld) -> bool:
        """Whether devices get the same bits."""
        got = world.calls(list(zip(plans, self.inputs, strict=True)))
        return [[out.tobytes() for out in call] for call in got] == [
            [out.tobytes() for out in call] for call in self.outputs
        ]


@pytest.mark.deep(rows=lambda ranks: ranks > 2)
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_all_shipped_plans_are_right_on_devices(ranks: int) -> None:
    count = 0
    for case in for_devices(ranks):
        plan = device_plan(plan_of(case))
        check(plan)
        proof = prove_calls(sequence(case, plan, 0))
        assert proof.verdict is Verdict.OK, f"{case}: {proof.reason}"
        count += 1
    assert count > 100


@pytest.mark.deep(rows=lambda case: case not in FEW)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_devices_get_the_bits_of_the_reference(case: MutationCase) -> None:
    plan = plan_of(case)
    asked = Asked.of([plan] * (plan.layout.slots + 2))
    plans = [device_plan(plan)] * len(asked.plans)
    for seed, dma_writes in enumerate(WAYS):
        for spec in (MemorySpec(), MemorySpec(seed=seed, rates=WILD), MemorySpec("shm")):
            world = DeviceWorld(plan.layout, seed, memory=spec, dma_writes=dma_writes)
            assert asked.on_devices(plans, world), f"{case}, seed {seed}, {spec}, {dma_writes}"


ROOTS = {name: int(its.rooted_input or its.rooted_output) for name, its in COLLECTIVES.items()}
REDUCING = {name: contract.ops for name, contract in COLLECTIVES.items() if contract.reduces}


@pytest.mark.deep(rows=lambda collective, dtype: collective != "all_reduce" or dtype not in ("bf16", "c64"))
@pytest.mark.parametrize(
    ("collective", "dtype", "redop"),
    # All of all_reduce; of the others, whose folds are the same instructions, each dtype and each op once.
    [
        (name, dtype, op)
        for name, ops in REDUCING.items()
        for dtype, op in reductions(DTYPE_NAMES, ops)
        if name == "all_reduce" or op == "sum" or dtype == "i32"
    ],
)
def test_devices_fold_every_dtype_and_op_to_the_bits_of_the_reference(collective: str, dtype: str, redop: str) -> None:
    ranks, count = 3, 37
    layout = with_heap(Layout(ranks, 2, 2, slot_card_bytes=8192, doorbells_per_rank=16, interleave_bytes=128))
    every = redop == "sum" and dtype in ("i32", "f32")  # variants differ in where a fold stands, not in what it is
    for variant in catalog.variants(collective)[: None if every else 1]:
        its = catalog.recipe(collective, variant)
        nbytes = (count if not its.spec.in_lines else 3) * DTYPES[dtype].itemsize
        counts = (nbytes, 0, DTYPES[dtype].itemsize) if COLLECTIVES[collective].uneven else ()
        call = Call(collective, variant, ranks, nbytes, dtype, redop, root=ROOTS[collective], counts=counts)
        plan = catalog.build(its, layout, lent_if_zero_copy(call))
        asked = Asked.of([plan] * 2)
        for dma_writes in WAYS[: None if every else 1]:
            world = DeviceWorld(layout, ranks, memory=MemorySpec(seed=1, rates=WILD), dma_writes=dma_writes)
            assert asked.on_devices([device_plan(plan)] * 2, world), f"{call}, {dma_writes}"


@pytest.mark.deep(
    rows=lambda collective, variant: (collective, variant) not in [("all_gatherv", "all"), ("scan", "line")]
)
@pytest.mark.parametrize(
    ("collective", "variant"), [(name, variant) for name in COLLECTIVES for variant in catalog.variants(name)]
)
def test_devices_get_the_bits_of_larger_calls_in_several_rounds(collective: str, variant: str) -> None:
    """Also of blocks of different sizes, some of them empty, which the plans of mutations do not have."""
    ranks, its = 3, COLLECTIVES[collective]
    layout = with_heap(Layout(ranks, 2, 2, slot_card_bytes=2048, doorbells_per_rank=32, interleave_bytes=256))
    recipe = catalog.recipe(collective, variant)
    nbytes = 0 if not its.moves_data else 24 if recipe.spec.in_lines else 6_004
    blocks = ranks * ranks if collective == "all_to_allv" else ranks
    counts = tuple((0, nbytes, nbytes // 4 // 3 * 4)[k % 3] for k in range(blocks)) if its.uneven else ()
    folds = ("f32", "sum") if its.reduces else ("u8", "none")
    call = Call(collective, variant, ranks, nbytes, *folds, root=ROOTS[collective], counts=counts)
    plan = catalog.build(recipe, layout, lent_if_zero_copy(call))
    asked = Asked.of([plan] * 2)
    for seed in range(2):
        world = DeviceWorld(layout, seed, memory=MemorySpec(seed=seed, rates=WILD), dma_writes=WAYS[seed % 2])
        assert asked.on_devices([device_plan(plan)] * 2, world), f"{call}, seed {seed}"


def shown(asked: Asked, plans: Sequence[Plan], seeds: range) -> bool:
    """Whether some seed shows that calls are wrong on devices."""
    for seed in seeds:
        spec = MemorySpec() if seed % 2 else MemorySpec(seed=seed, rates=WILD)
        try:
            if not asked.on_devices(plans, DeviceWorld(plans[0].layout, seed, memory=spec)):
                return True
        except (DeadlineError, MismatchError):
            return True
    return False


def deletions(case: MutationCase) -> Iterator[tuple[str, Op, list[Plan], Asked]]:
    """Every plan that lacks one of the instructions, amidst calls; those that break a rule are found already."""
    plan = plan_of(case)
    lowered = device_plan(plan)
    calls: dict[int, Asked] = {}
    others: dict[int, Plan] = {}
    for mutant in mutants(lowered):
        op = lowered.part(mutant.rank).streams[mutant.stream].instructions[mutant.at].op
        if mutant.operator != "delete" or op not in (*DELETED, Op.RECORD):
            continue
        mutated = apply(lowered, mutant)
        if next(findings(mutated), None) is not None:
            continue
        if mutant.rank not in calls:
            calls[mutant.rank] = Asked.of(sequence(case, plan, mutant.rank))
        asked = calls[mutant.rank]
        for host in asked.plans:
            others.setdefault(id(host), device_plan(host))
        yield str(mutant), op, [mutated if host is plan else others[id(host)] for host in asked.plans], asked


def is_of_the_plan(part: RankPart, mutant: Mutant) -> bool:
    """Whether an AWAIT stands for an order between two streams that the plan has, not between a queue and its host; or
    for a wait for the slot whose doorbells carry places, which only the host's SIGNAL needs."""
    stream = part.streams[mutant.stream]
    event = stream.instructions[mutant.at].arg
    recorder, at = next(
        (its, at)
        for its in part.streams
        for at, i in enumerate(its.instructions)
        if i.op == Op.RECORD and i.arg == event
    )
    if not is_queue(stream):
        return True
    if recorder.name != stream.name.removesuffix(QUEUE):
        return not is_queue(recorder)
    before, after = recorder.instructions[:at], recorder.instructions[at:]
    last = next((i for i in reversed(before) if i.op != Op.RECORD), None)
    return last is not None and last.op == Op.WAIT_ALL and any(i.flags & Flag.PLACES for i in after if i.op in RINGS)


@pytest.mark.deep(rows=lambda case: case not in FEW[:1])
@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_every_deletion_of_an_event_or_fence_is_found(case: MutationCase) -> None:
    """By wrong bits, a deadlock or a mismatch on some seed; else by proof; else it is proved to change nothing.

    An AWAIT may be left that a plan needs no more once its copies are in queues, where it stands for an order between
    two of the host's streams: the plan had the order, and only whoever wrote it knows what for. That is between two
    streams of the host, or where a queue awaits what the host did in another stream than its own; or where the host
    waits for a slot that only its doorbells' places take.
    """
    trial = Trial(case)
    trial.plan = device_plan(trial.plan)
    by_bits = by_proof = 0
    for text, op, plans, asked in deletions(case):
        assert op != Op.RECORD, f"{case}: {text} breaks no rule"
        proved = prove_calls(plans).verdict is Verdict.OK
        if shown(asked, plans, range(SEEDS_OF_PROVED if proved else SEEDS)):
            assert not proved, f"{case}: {text} is proved to change nothing, and goes wrong"
            by_bits += 1
        elif not proved:
            by_proof += 1
        else:
            mutant = next(m for m in mutants(trial.plan) if str(m) == text)
            assert op == Op.AWAIT and is_of_the_plan(trial.plan.part(mutant.rank), mutant), (
                f"{case}: {text} is not found"
            )
            assert trial.judge(mutant).fate in (Fate.EQUIVALENT, Fate.CONFIRMED, Fate.INDEBTED), f"{case}: {text}"
    assert by_bits >= 3 * by_proof


def test_what_moves_bytes_is_queued_and_what_orders_memory_is_not() -> None:
    part = device_plan(plan_of(MutationCase("all_reduce", "staged", 2))).part(0)
    assert [stream.name for stream in part.streams] == ["publish", "retrieve", "publish" + QUEUE, "retrieve" + QUEUE]
    assert BOUNCE not in [buffer.name for buffer in part.buffers]
    assert device_plan(plan_of(MutationCase("all_reduce", "line", 2))).part(0).buffers[-1].name == BOUNCE
    for stream in part.streams:
        for i in stream.instructions:
            assert i.op in (Op.RECORD, Op.AWAIT) or is_queue(stream) != (i.op in ON_HOST)


def test_a_device_is_deterministic_in_a_world_and_seeds_differ() -> None:
    plan = plan_of(MutationCase("all_reduce", "staged", 2))
    asked = Asked.of([plan] * 3)

    def moves(seed: int) -> list[tuple[int, int]]:
        world = DeviceWorld(plan.layout, seed, memory=MemorySpec(seed=seed, rates=WILD))
        assert asked.on_devices([device_plan(plan)] * 3, world)
        return [(device.moves, device.forced) for device in world.devices]

    assert moves(3) == moves(3)
    assert len({tuple(moves(seed)) for seed in range(8)}) > 1


def test_products_are_queued_and_checksums_are_refused_with_a_sentence() -> None:
    case = next(case for case in shipped(2) if case.collective in fused.KINDS)
    part = device_plan(plan_of(case)).part(0)
    where = {stream.name for stream in part.streams for i in stream.instructions if i.op == Op.COMPUTE}
    assert where == {"compute" + QUEUE}
    layout = Layout(2, 2, 2, slot_card_bytes=8192, doorbells_per_rank=16, interleave_bytes=256)
    checked = catalog.build(
        with_checksums(catalog.recipe("all_gather", "all")), layout, Call("all_gather", "all", 2, 64)
    )
    with pytest.raises(ArgumentError, match=r"crc32c.* runs on host arrays: a plan with checksums"):
        device_plan(checked).part(0)


def test_results_that_peers_write_are_not_on_a_device() -> None:
    there = for_devices(2)
    cases = [case for case in shipped(2) if case not in there]
    assert {case.collective for case in cases} == {"all_gather", "all_to_all", "gather", "scatter"}
    for case in cases:
        with pytest.raises(ArgumentError, match="peers write results in the pool, not on a device"):
            device_plan(plan_of(case))
