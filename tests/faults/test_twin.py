"""The twin of lockstep in C shows what the definition shows: the same end, the same words, the same moves."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from cxlemu.errors import ArgumentError, PlanError
from cxlemu.memory.adversary import Action
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Instruction, Op, Plan, encode
from cxlemu.plan.layout import layout_record
from cxlemu.plan.plan import group_table, region_table
from cxlemu.plan.rules import findings
from faults.lockstep import _world
from faults.lockstep.counterexample import CallSequence, CounterexampleKind, Suspect, orders
from faults.lockstep.lockstep import fresh_buffers
from faults.lockstep.orders import Order, after_each_step, hasty, in_random_order, lagging, slow
from faults.lockstep.places import data_lines
from faults.lockstep.schedule import StreamStep
from faults.lockstep.twin import BASE, STREAMS, OrderTable, StepsSpentError, buffer_offsets, table_of
from faults.mutate.cases import MutationCase, plan_of, sequence
from faults.mutate.mutants import Mutant, apply, mutants
from faults.mutate.suspects import suspect
from tests.helpers.tiers import PERCENT

FEW = [  # every kind of transport, fold, kernel and ending
    MutationCase("broadcast", "naive", 2),
    MutationCase("barrier", "line", 3),
    MutationCase("all_reduce", "two_shot", 2),
    MutationCase("all_reduce", "line", 2, rounds=2),
    MutationCase("all_gather", "zero_copy", 2),
    MutationCase("gemm_all_reduce", "fused", 2),
    MutationCase("all_gather", "naive", 2, checked=True),
    MutationCase("all_gather", "all", 2, in_place=True),
    MutationCase("reduce_scatter", "all", 2, in_place=True),
]
MORE = [
    MutationCase("all_reduce", "hierarchical", 4, cluster=2),
    MutationCase("all_reduce", "all", 2, in_place=True),
    MutationCase("all_reduce", "two_shot", 3),
    MutationCase("scan", "naive", 3),
    MutationCase("all_gather_gemm", "unfused", 2),
    MutationCase("send", "naive", 2),
]
EVERY, EVERY_DEEP = 61, 23  # mutant
LARGE = {MORE[0]: 97}  # the definition takes 15 times as long for each of its mutants as for others
TRIED = 10  # orders of each


def both(program: CallSequence, one: Order, same: Order) -> tuple[Any, Any]:
    """What the definition shows in an order, and what the twin does."""

    def shown(order: Order, quick: bool) -> Any:
        try:
            return program.run(order, quick=quick)
        except Exception as error:
            return type(error), str(error)

    assert table_of(same, program.plans[0].ranks) is not None
    return shown(one, False), shown(same, True)


def wrong_programs(case: MutationCase, every: int) -> Iterator[tuple[CallSequence, Suspect, Mutant]]:
    plan, programs = plan_of(case), dict[int, CallSequence]()
    for mutant in islice(mutants(plan), 0, None, every):
        mutated = apply(plan, mutant)
        if next(findings(mutated), None) is None:
            if mutant.rank not in programs:
                programs[mutant.rank] = CallSequence.of(sequence(case, plan, mutant.rank))
            right = programs[mutant.rank]
            yield right.with_plan(plan, mutated), suspect(right.plans, plan, mutant), mutant


def tables(plans: Sequence[Plan], near: Suspect) -> Iterator[Order]:
    return (order for order in orders(plans, (near,)) if table_of(order, plans[0].ranks) is not None)


@pytest.mark.parametrize(
    ("case", "every"),
    [pytest.param(case, EVERY, id=str(case)) for case in FEW]
    + [
        pytest.param(case, LARGE.get(case, EVERY_DEEP), id=f"{case}, more", marks=pytest.mark.deep)
        for case in [*FEW, *MORE]
    ],
)
def test_mutants_show_the_same(case: MutationCase, every: int) -> None:
    seen: set[CounterexampleKind] = set()
    for program, near, mutant in wrong_programs(case, every * 100 // PERCENT):
        for one, same in islice(zip(tables(program.plans, near), tables(program.plans, near), strict=True), TRIED):
            defined, twin = both(program, one, same)
            assert twin == defined, mutant
            seen.add(defined.kind)
    assert seen


def test_every_ending_is_the_same() -> None:
    """Words, and where they come from, differ by kind."""
    seen: set[CounterexampleKind] = set()
    for case in (FEW[0], FEW[1], FEW[6]):
        for program, near, mutant in wrong_programs(case, 2):
            for one, same in islice(zip(tables(program.plans, near), tables(program.plans, near), strict=True), 3):
                defined, twin = both(program, one, same)
                assert twin == defined, mutant
                seen.add(defined.kind)
    assert seen == {*CounterexampleKind} - {CounterexampleKind.MISMATCH}


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_in_place_buffers_lie_in_each_other_as_they_do_in_the_definition(collective: str) -> None:
    plan = plan_of(MutationCase(collective, "all", 2, in_place=True))
    offsets, _ = buffer_offsets([[part.buffers for part in plan.parts]])
    for part, at in zip(plan.parts, offsets[0], strict=True):
        source, target, _ = fresh_buffers(part, np.empty(0, np.uint8))
        assert at[1] - at[0] == target.ctypes.data - source.ctypes.data


def changed(plan: Plan, rank: int, op: Op, change: Callable[[Instruction], list[Instruction]]) -> Plan:
    """The plan, with others in the place of every instruction of a rank that has this opcode."""
    part = plan.part(rank)
    streams = (
        replace(s, records=encode([j for i in s.instructions for j in (change(i) if i.op == op else [i])]))
        for s in part.streams
    )
    return plan.with_part(replace(part, streams=tuple(streams)))


def test_moves_of_nature_on_doorbells_are_made_and_not_noted() -> None:
    plan = plan_of(FEW[0])
    program = CallSequence.of([plan, plan])
    lines = range(plan.layout.data_offset // LINE_BYTES)
    doorbells = [(host, card, line) for host in (0, 1) for card in (0, 1) for line in lines]
    for action in Action:
        one, same = (after_each_step(hasty(1), action, doorbells) for _ in range(2))
        defined, twin = both(program, one, same)
        assert twin == defined
        assert {type(move) for move in twin.schedule} == {StreamStep}


@pytest.mark.parametrize("action", Action)
def test_non_temporal_stores_are_landed_by_nature_as_well(action: Action) -> None:
    """Two ranks share a host; each has its own such stores, and the cache in common."""
    plan = plan_of(MutationCase("all_gather", "naive", 3))
    for rank in range(3):
        plan = changed(plan, rank, Op.WRITE, lambda i: [i._replace(op=Op.WRITE_NT)])
    program = CallSequence.of([plan, plan], hosts=[4, 7, 4])
    for host in (4, 7):
        lines = [(host, *line) for line in data_lines(program.plans)]
        for choose in (lambda: hasty(1), lambda: slow(2), lambda: lagging(0, 1)):
            one, same = (after_each_step(choose(), action, lines) for _ in range(2))
            defined, twin = both(program, one, same)
            assert twin == defined
            assert any(getattr(move, "action", None) is action for move in twin.schedule)


def test_a_doorbell_that_is_rung_for_the_call_to_come_is_a_mismatch_in_both() -> None:
    plan = plan_of(FEW[0])
    other = Plan(replace(plan.call, dtype="i8"), plan.layout, lambda rank: (plan.frame, plan.part(rank)))
    early = changed(plan, 0, Op.SIGNAL, lambda i: [i, i._replace(value=i.value + 1)])
    program = CallSequence.of([plan, other]).with_plan(plan, early)
    defined, twin = both(program, hasty(1), hasty(1))
    assert twin == defined
    assert twin.kind is CounterexampleKind.MISMATCH


def test_stores_that_never_landed_are_gone_in_the_next_run() -> None:
    plan = changed(plan_of(FEW[0]), 0, Op.WRITE, lambda i: [i._replace(op=Op.WRITE_NT)])
    program = CallSequence.of([plan])
    unfenced = program.with_plan(plan, changed(plan, 0, Op.FENCE, lambda i: []))
    assert unfenced.run(hasty(0), quick=True).kind is CounterexampleKind.WRONG
    after_it = after_each_step(slow(0), Action.LAND, [(0, *line) for line in data_lines([plan])])
    assert (
        program.run(after_it, quick=True).schedule
        == CallSequence.of([plan])
        .run(after_each_step(slow(0), Action.LAND, [(0, *line) for line in data_lines([plan])]))
        .schedule
    )


def test_a_run_finds_nothing_of_the_one_before() -> None:
    program = CallSequence.of(sequence(FEW[2], plan_of(FEW[2]), 0))
    first, again = program.run(hasty(1), quick=True), program.run(hasty(1), quick=True)
    assert first == again == program.run(hasty(1))
    assert first.kind is CounterexampleKind.NOTHING


def test_plans_with_other_buffers_get_a_world_of_their_own() -> None:
    small, large = (plan_of(MutationCase("all_gather", "naive", 2, rounds=rounds)) for rounds in (1, 2))
    one, other = CallSequence.of([small]), CallSequence.of([large])
    shared = replace(other, _twins=one._twins)
    assert one.run(hasty(0), quick=True).kind is CounterexampleKind.NOTHING
    assert shared.run(hasty(0), quick=True) == other.run(hasty(0))
    assert one.run(hasty(0), quick=True) == one.run(hasty(0))


def test_only_orders_that_have_not_begun_are_tables() -> None:
    order = hasty(0)
    assert isinstance(table_of(order, 2), OrderTable)
    order([StreamStep(0, 0)])
    assert table_of(order, 2) is None
    assert table_of(in_random_order(1), 2) is None
    assert table_of(after_each_step(in_random_order(1), Action.EVICT, []), 2) is None


def test_an_order_that_is_no_table_runs_all_the_same() -> None:
    program = CallSequence.of([plan_of(FEW[0])])
    assert program.run(in_random_order(3), quick=True) == program.run(in_random_order(3))


def test_lines_and_hosts_that_are_not_there_have_the_same_error() -> None:
    program = CallSequence.of([plan_of(FEW[0])], hosts=[0, 5])
    for place in ((1, 0, 0), (0, 2, 0), (5, 0, 1 << 20)):
        defined, twin = both(
            program, after_each_step(hasty(0), Action.EVICT, [place]), after_each_step(hasty(0), Action.EVICT, [place])
        )
        assert twin == defined
        assert twin[0] is ArgumentError


def test_a_run_ends_with_its_time() -> None:
    program = CallSequence.of([plan_of(FEW[0])])
    for order in (hasty(0), in_random_order(0)):
        with pytest.raises(StepsSpentError):
            program.run(order, quick=True, end_s=0.0)


def test_an_instruction_that_could_not_be_executed_is_refused() -> None:
    plan = plan_of(FEW[0])
    far = changed(plan, 0, Op.WRITE, lambda i: [i._replace(nbytes=1 << 30)])
    program = CallSequence.of([plan]).with_plan(plan, far)
    with pytest.raises(PlanError, match="rank 0, stream 0, instruction"):
        program.run(hasty(0), quick=True)


def test_what_does_not_fit_the_world_is_refused() -> None:
    """Each argument in turn, one too small: C looks nowhere else."""
    plan = plan_of(FEW[0])
    layout = layout_record(plan.layout)
    parts: Any = [
        (p.events, np.array([b.nbytes for b in p.buffers], np.int64), [s.records for s in p.streams], None)
        for p in plan.parts
    ]
    script = _world.Script(layout, BASE, region_table(plan.frame.regions), group_table(plan.frame.groups), parts)
    world = _world.World(layout, BASE, np.arange(2, dtype=np.int32))
    nbytes = sum(b.nbytes for p in plan.parts for b in p.buffers)
    arguments: dict[str, Any] = {
        "calls": [(script, 1, 0)],
        "arena": np.zeros(nbytes, np.uint8),
        "offsets": np.zeros(2 * 4, np.int64),
        "image": np.zeros(nbytes, np.uint8),
        "right": np.zeros(0, np.uint8),
        "right_at": np.full(2, _world.CONSTANTS["UNCHECKED"], np.int64),
        "priority": np.zeros(2 * STREAMS, np.int32),
        "blows": np.zeros((1, 4), np.int64),
        "end_s": math.inf,
        "ended": lambda *_: None,
        "kernel": lambda *_: None,
    }
    other = layout_record(replace(plan.layout, slots=plan.layout.slots + 1))
    elsewhere = _world.Script(other, BASE, region_table(plan.frame.regions), group_table(plan.frame.groups), parts)
    status, _ = world.run(*arguments.values())
    assert status == _world.CONSTANTS["DONE"]
    for name, wrong in (
        ("calls", [(elsewhere, 1, 0)]),
        ("calls", [(script, -1, 0)]),
        ("calls", [(script, 1 << 47, 0)]),
        ("arena", np.zeros(nbytes - 1, np.uint8)),
        ("offsets", np.full(2 * 4, nbytes, np.int64)),
        ("offsets", np.full(2 * 4, -1, np.int64)),
        ("offsets", np.zeros(2 * 4 - 1, np.int64)),
        ("right_at", np.zeros(2, np.int64)),
        ("priority", np.zeros(2 * STREAMS - 1, np.int32)),
        *(
            ("blows", np.array([row], np.int64))
            for row in ((3, 0, 0, 0), (0, 2, 0, 0), (0, 0, 2, 0), (0, 0, 0, 1 << 40))
        ),
    ):
        with pytest.raises(ValueError, match=r"world|arena|late"):
            world.run(*(arguments | {name: wrong}).values())
    with pytest.raises(RuntimeError, match="runs"):
        world.run(
            *(arguments | {"ended": lambda *_: world.run(*arguments.values()), "right_at": np.full(2, -1)}).values()
        )
