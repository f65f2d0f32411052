"""Every instruction that makes a plan right is needed: delete any one of them, and the table says what shows it.

The deletion is made in every call of the plan under test, between broadcasts that fill whole slots of the ring:
slots are reused, lines are stale, and the rank with the deletion may run calls ahead of a slow reader. All of it on
the never-evict shadow cache, the worst case for staleness; there one order of steps a class of instruction suffices.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from collectives.algorithms.catalog import build, recipe, variants
from collectives.builder import DONE_GROUP
from cxlemu.errors import DeadlineError, UntoldError
from cxlemu.memory import AdversaryRates, MemorySpec
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, Bytes
from cxlemu.plan import Call, InHeap, Instruction, Layout, Op, Plan
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import PUBLISH, RETRIEVE, Order, by, hasty, in_random_order, round_robin, slow
from faults.zero_copy_calls import HEAP_INPUT, HEAP_OUTPUT, lent, with_heap
from tests.helpers.expected import COLLECTIVES, REDUCTIONS, expected, input_bytes
from tests.helpers.lockstep_orders import readers_first, writers_first
from tests.helpers.plans import without

RANKS = 3
LAYOUT = with_heap(Layout(RANKS, cards=2, slots=2, slot_card_bytes=1024, doorbells_per_rank=8, interleave_bytes=256))
WILD = AdversaryRates(evict=0.3, prefetch=0.3, land=0.3)

WRONG, DEADLOCK, TOO_EARLY, NOTHING = "wrong bytes", "deadlock", "a barrier left too early", "nothing"


class Deletion(NamedTuple):
    rank: int
    stream: int
    at: int
    instruction: Instruction
    kind: str
    awaited: int = -1  # of a wait for a batch, one of its other ranks

    def __str__(self) -> str:
        return f"{self.kind} at rank {self.rank}, stream {self.stream}, instruction {self.at}"


def eager_readers(deletion: Deletion) -> Order:
    """Peers look at once at whatever the rank's stream has just done."""
    return slow(deletion.rank, deletion.stream)


def late_writer(deletion: Deletion) -> Order:
    """The rank that should be waited for does nothing as long as others can go on, and results come last."""
    return slow(LAYOUT.owner(deletion.instruction.arg), RETRIEVE)


def late_batch(deletion: Deletion) -> Order:
    """The same with one rank of the batch that should be waited for."""
    return slow(deletion.awaited, RETRIEVE)


def hasty_rank(deletion: Deletion) -> Order:
    """The rank goes on before its peers have done anything."""
    return hasty(deletion.rank)


def late_publishing(deletion: Deletion) -> Order:
    """The rank retrieves and overwrites before it publishes."""
    return by(lambda step: step == (deletion.rank, PUBLISH))


class Exposed(NamedTuple):
    by: Callable[[Deletion], Order]
    outcome: str


EXPOSED = {
    # readers find what was in the pool before: nothing went there, or not yet
    "FLUSH": Exposed(eager_readers, WRONG),
    "FENCE": Exposed(eager_readers, WRONG),
    # the reader finds what its own cache held, a lap of the ring before
    "INVALIDATE": Exposed(eager_readers, WRONG),
    # readers wait for what nobody tells them; and do not wait, and read too early
    "SIGNAL": Exposed(eager_readers, DEADLOCK),
    "WAIT": Exposed(late_writer, WRONG),
    # the same with the payload in the doorbell's line
    "SIGNAL_DATA": Exposed(eager_readers, DEADLOCK),
    "WAIT_DATA": Exposed(eager_readers, WRONG),
    # the writer overwrites a slot, or with zero copy its own array, that a slow reader still needs
    "WAIT_ALL done": Exposed(hasty_rank, WRONG),
    # the rank leaves a barrier that not everyone has entered
    "WAIT_ALL published": Exposed(hasty_rank, TOO_EARLY),
    # the rank copies a batch's blocks before all of them are there
    "WAIT_ALL batch": Exposed(late_batch, WRONG),
    # in place: the result overwrites what was still to be published
    "AWAIT": Exposed(late_publishing, WRONG),
    # an event that never happens
    "RECORD": Exposed(eager_readers, DEADLOCK),
}


class Case(NamedTuple):
    collective: str
    variant: str
    rounds: int = 1
    in_place: bool = False
    output_in_heap: bool = False

    def __str__(self) -> str:
        words = [self.collective, self.variant]
        words += [f"{self.rounds}rounds"] if self.rounds > 1 else []
        words += ["in_place"] if self.in_place else []
        return "-".join(words + (["output_in_heap"] if self.output_in_heap else []))

    @property
    def layout(self) -> Layout:
        """Several rounds in one call need a ring of one slot, or later rounds are ordered by earlier ones."""
        return LAYOUT if self.rounds == 1 else replace(LAYOUT, slots=1)


# But for those that pass on what they retrieved or folded, where one order a class of instruction does not suffice: for
# them see test_textbook_algorithms.py and test_mutate.py, where all mutants are tried in many.
FORWARDING = {
    ("all_reduce", "two_shot_staged"),
    ("reduce", "two_shot_staged"),
    ("all_reduce", "two_shot_batched"),
    ("all_reduce", "two_shot_crosswise"),
    ("reduce", "two_shot_crosswise"),
    ("reduce", "two_shot_apart"),
    ("reduce", "two_shot_batched"),
    ("all_reduce", "doubling"),
    ("all_reduce", "rabenseifner"),
    ("reduce", "binomial"),
}

CASES = [
    *(
        Case(collective, variant)
        for collective in COLLECTIVES
        for variant in variants(collective)
        if (collective, variant) not in FORWARDING
    ),
    *(Case(collective, "naive", rounds=2) for collective in ("broadcast", "all_gather", "reduce_scatter")),
    *(Case(collective, "all", rounds=2) for collective in ("gather", "scatter", "reduce")),
    *(Case(collective, "line", rounds=2) for collective in ("all_reduce", "all_to_all")),
    Case("all_reduce", "two_shot", rounds=2),
    Case("all_reduce", "all", in_place=True),
    Case("all_to_all", "all", in_place=True),
    Case("all_reduce", "zero_copy", output_in_heap=True),
    *(Case(collective, "zero_copy", in_place=True) for collective in ("all_gather", "all_reduce", "reduce_scatter")),
]

FAST = ("all_reduce", "all_to_all", "barrier", "broadcast", "scatter")
SLOW = ("two_shot", "zero_copy", "staged", "staggered", "pairwise")


def plan_of(case: Case) -> Plan:
    """About 100 bytes a block (two lines, two chunks), or as few more as take the rounds that are asked for."""
    reduces = case.collective in REDUCTIONS
    two_lines = 2 * (PAYLOAD_BYTES if case.variant == "line" else LINE_BYTES)
    nbytes = 0 if case.collective == "barrier" else 300 if case.collective == "all_reduce" else two_lines
    while True:
        call = Call(
            case.collective, case.variant, RANKS, nbytes, "u8", "sum" if reduces else "none", in_place=case.in_place
        )
        if case.variant == "zero_copy":
            call = lent(call, output=case.output_in_heap)
        plan = build(recipe(case.collective, case.variant), case.layout, call)
        if plan.rounds >= case.rounds:
            return plan
        nbytes += 100


def filling(case: Case, root: int, *, in_lines: bool) -> Plan:
    """A broadcast that writes all of a slot: its data or its doorbells."""
    if in_lines:
        variant, nbytes = "line", case.layout.doorbells_per_rank * PAYLOAD_BYTES
    else:
        variant, nbytes = "naive", case.layout.slot_bytes
    return build(recipe("broadcast", variant), case.layout, Call("broadcast", variant, RANKS, nbytes, root=root))


def rewriting(case: Case) -> list[Plan]:
    """A user who fills a result in the heap anew as soon as the call returns, and publishes that.

    All other calls under test rewrite their inputs themselves, when they come again.
    """
    if not case.output_in_heap and (case.collective, case.variant, case.in_place) != ("all_reduce", "zero_copy", True):
        return []
    place = HEAP_OUTPUT if case.output_in_heap else HEAP_INPUT
    call = Call("all_gather", "zero_copy", RANKS, 1024, heap=InHeap(place, told=True))
    return [build(recipe("all_gather", "zero_copy"), case.layout, call)]


class Program:
    """The calls around and of one plan, the same inputs for each of its mutants, and what must come out."""

    def __init__(self, case: Case, plan: Plan, rank: int) -> None:
        self.case, self.plan = case, plan
        slots = case.layout.slots
        styles = {"line": [True], "zero_copy": [False, True]}.get(case.variant, [False])  # which tells places in lines
        before = [filling(case, rank, in_lines=its) for its in styles for _ in range(slots)]
        after = filling(case, (rank + 1) % RANKS, in_lines=styles[-1])
        self.plans = [*before, *[plan] * (slots + 1), *rewriting(case), after]
        rng = np.random.default_rng(rank)
        self.inputs = [
            [rng.integers(0, 256, input_bytes(p.call, r), np.uint8) for r in range(RANKS)] for p in self.plans
        ]
        self.outputs = [expected(p.call, x) for p, x in zip(self.plans, self.inputs, strict=True)]

    def outcome(self, plan: Plan, order: Order, memory: MemorySpec | None = None) -> str:
        world = Lockstep(self.case.layout, memory=memory, order=order)
        plans = [plan if p is self.plan else p for p in self.plans]
        try:
            outputs = world.calls(list(zip(plans, self.inputs, strict=True)))
        except DeadlineError:
            return DEADLOCK
        except UntoldError:
            return WRONG
        if any(differ(got, wanted) for got, wanted in zip(outputs, self.outputs, strict=True)):
            return WRONG
        barriers = [steps for p, steps in zip(plans, world.steps, strict=True) if p.call.collective == "barrier"]
        if any(min(rank[-1] for rank in steps) < max(rank[0] for rank in steps) for steps in barriers):
            return TOO_EARLY
        return NOTHING


def differ(got: list[Bytes], wanted: list[Bytes]) -> bool:
    return any(g.tobytes() != w.tobytes() for g, w in zip(got, wanted, strict=True))


def deletions(plan: Plan, rank: int) -> Iterator[Deletion]:
    for s, stream in enumerate(plan.part(rank).streams):
        for i, instruction in enumerate(stream.instructions):
            name = instruction.op.name
            if instruction.op == Op.WAIT_ALL:
                met = " published" if plan.call.collective == "barrier" else " batch"
                name += " done" if instruction.arg == DONE_GROUP else met
            awaited = -1
            if name == "WAIT_ALL batch":
                owners = {LAYOUT.owner(doorbell) for doorbell in plan.frame.groups[instruction.arg].doorbells}
                awaited = max(owners - {rank})
            if name in EXPOSED:
                yield Deletion(rank, s, i, instruction, name, awaited)


@pytest.mark.deep(rows=lambda case: case.collective not in FAST or case.output_in_heap or case.variant in SLOW)
@pytest.mark.deep(rows=lambda case: str(case) == "all_reduce-all-in_place")  # half of the time of all
@pytest.mark.each_value_once
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_deletion_is_exposed_as_the_table_says(case: Case) -> None:
    plan = plan_of(case)
    surprises = []
    for rank in range(RANKS):
        program = Program(case, plan, rank)
        for deletion in deletions(plan, rank):
            expose = EXPOSED[deletion.kind]
            seen = program.outcome(without(plan, deletion.rank, deletion.stream, deletion.at), expose.by(deletion))
            if seen != expose.outcome:
                surprises.append(f"{deletion}: {seen}, not {expose.outcome}")
    assert not surprises, "\n".join(surprises)


def test_slots_that_zero_copy_has_for_results_are_waited_for() -> None:
    """Only within a call: whoever folds has heard from all ranks in this call, so they have ended the ones before."""
    plan = plan_of(case := Case("all_reduce", "zero_copy", rounds=2))
    outcomes = []
    for rank in range(RANKS):  # the last one's slice is short, and ends in the first round
        program = Program(case, plan, rank)
        guards = [d for d in deletions(plan, rank) if d.kind == "WAIT_ALL done"]
        assert guards.pop(0).instruction.value == -1  # the doorbells of the first round tell places
        assert all(d.instruction.value == 0 for d in guards)
        outcomes += [program.outcome(without(plan, d.rank, d.stream, d.at), hasty_rank(d)) for d in guards]
    assert outcomes == [WRONG] * (RANKS - 1)


@pytest.mark.deep
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_whole_plan_is_right_in_every_mode(case: Case) -> None:
    plan = plan_of(case)
    for rank in range(RANKS):
        program = Program(case, plan, rank)
        deletion = Deletion(rank, PUBLISH, 0, Instruction(Op.FENCE), "none")  # for the sake of its place
        orders = {exposed.by for exposed in EXPOSED.values()}
        orders_to_try = [*(choose(deletion) for choose in orders), round_robin(), writers_first(), readers_first()]
        for order in orders_to_try:
            assert program.outcome(plan, order) == NOTHING
        assert program.outcome(plan, round_robin(), MemorySpec("shm")) == NOTHING
        for seed in (rank, RANKS + rank):
            assert program.outcome(plan, in_random_order(seed), MemorySpec(seed=seed, rates=WILD)) == NOTHING


@pytest.mark.parametrize("kind", ["FLUSH", "FENCE", "INVALIDATE"])
def test_coherent_memory_hides_what_non_coherence_needs(kind: str) -> None:
    plan = plan_of(case := Case("all_gather", "aggregate"))
    program = Program(case, plan, rank=1)
    for deletion in deletions(plan, rank=1):
        if deletion.kind == kind:
            for order in (eager_readers, hasty_rank):
                assert (
                    program.outcome(
                        without(plan, deletion.rank, deletion.stream, deletion.at), order(deletion), MemorySpec("shm")
                    )
                    == NOTHING
                )


def test_an_invalidate_is_needed_on_the_first_lap_too() -> None:
    """The reader never loaded the lines, but a prefetch beside its own writes did."""
    plan = plan_of(Case("all_gather", "naive"))
    [first, *_] = [d for d in deletions(plan, rank=1) if d.kind == "INVALIDATE"]
    inputs = [np.full(plan.call.nbytes, rank + 1, np.uint8) for rank in range(RANKS)]

    def wrong(mutant: Plan, seed: int | None) -> bool:
        world = Lockstep(LAYOUT, memory=MemorySpec(seed=seed, rates=WILD), order=hasty(1))
        return differ(world.call(mutant, inputs), expected(plan.call, inputs))

    mutant = without(plan, first.rank, first.stream, first.at)
    assert not wrong(mutant, None)
    assert any(wrong(mutant, seed) for seed in range(30))
    assert not any(wrong(plan, seed) for seed in range(30))
