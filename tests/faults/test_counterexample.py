"""What the prover finds wrong, an execution shows, and its schedule shows it again on the definition of everything."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from collectives.algorithms.catalog import build, recipe
from cxlemu.memory.adversary import Action
from cxlemu.plan import Instruction, Layout, Op, Plan, Stream, encode
from faults.lockstep import counterexample as search
from faults.lockstep.counterexample import CallSequence, CounterexampleKind, execute, witness
from faults.lockstep.orders import slow
from faults.lockstep.schedule import Nature, StreamStep, from_json, to_json
from faults.mutate.cases import MutationCase, plan_of, sequence
from faults.mutate.mutants import Mutant, apply, mutants
from faults.prove import prove_calls
from faults.verdict import Verdict

CASES = [
    MutationCase("all_gather", "all", 2),
    MutationCase("broadcast", "aggregate", 3),
    MutationCase("all_reduce", "line", 2, rounds=2),
    MutationCase("all_reduce", "two_shot", 2),
    MutationCase("all_reduce", "all", 2, in_place=True),
    MutationCase("scatter", "zero_copy", 2),
    MutationCase("barrier", "line", 3),
]


def wrong_calls(case: MutationCase, mutant: Mutant) -> list[Plan]:
    plan = plan_of(case)
    mutated = apply(plan, mutant)
    return [mutated if p is plan else p for p in sequence(case, plan, mutant.rank)]


def deletions(case: MutationCase) -> list[Mutant]:
    plan = plan_of(case)
    return [m for m in mutants(plan) if m.kind == "delete"]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_deletion_is_shown_from_what_the_prover_says_alone(case: MutationCase) -> None:
    found = deletions(case)
    assert found
    for mutant in found:
        plans = wrong_calls(case, mutant)
        violation = prove_calls(plans).violation
        assert violation is not None, mutant
        shown = witness(plans, violation)
        assert shown is not None and shown.kind is not CounterexampleKind.NOTHING, mutant
        again = execute(plans, from_json(json.loads(json.dumps(to_json(shown.schedule)))))
        assert again == shown, mutant


@pytest.mark.parametrize("case", CASES, ids=str)
def test_nothing_is_shown_of_what_is_right(case: MutationCase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "RANDOM_ORDERS", 3)
    plans = sequence(case, plan_of(case), 0)
    assert prove_calls(plans).verdict is Verdict.OK
    assert witness(plans) is None


def kinds(case: MutationCase) -> dict[Op, CounterexampleKind]:
    """What was shown of each deletion."""
    plan = plan_of(case)
    found: dict[Op, CounterexampleKind] = {}
    for mutant in deletions(case):
        shown = witness(wrong_calls(case, mutant))
        assert shown is not None
        op = plan.part(mutant.rank).streams[mutant.stream].instructions[mutant.at].op
        assert found.setdefault(op, shown.kind) is shown.kind, mutant
    return found


def test_a_barrier_left_too_early_and_deadlocks_are_shown_as_such() -> None:
    assert kinds(MutationCase("barrier", "line", 2)) == {
        Op.SIGNAL: CounterexampleKind.DEADLOCK,
        Op.WAIT_ALL: CounterexampleKind.TOO_EARLY,
    }


def test_a_missing_flush_shows_wrong_bytes_and_a_missing_signal_a_deadlock() -> None:
    found = kinds(MutationCase("broadcast", "naive", 2))
    assert found[Op.FLUSH] is found[Op.FENCE] is found[Op.INVALIDATE] is found[Op.WAIT] is CounterexampleKind.WRONG
    assert found[Op.SIGNAL] is CounterexampleKind.DEADLOCK


def test_a_line_that_is_invalidated_before_the_wait_is_shown_by_a_prefetch_in_between() -> None:
    case = MutationCase("broadcast", "naive", 2)
    plan = plan_of(case)
    reader = plan.part(1).streams[0].instructions
    at = next(i for i, instruction in enumerate(reader) if instruction.op == Op.INVALIDATE)
    [early] = [m for m in mutants(plan) if m[:3] == (1, 0, at - 1) and m.kind == "later"]  # WAIT after INVALIDATE
    plans = wrong_calls(case, early)
    violation = prove_calls(plans).violation
    assert violation is not None and violation.rule == "fresh"
    shown = witness(plans, violation)
    assert shown is not None and shown.kind is CounterexampleKind.WRONG
    prefetches = [m for m in shown.schedule if isinstance(m, Nature)]
    assert {(m.action, m.host) for m in prefetches} == {(Action.PREFETCH, 1)}
    only_steps: Sequence[StreamStep] = [m for m in shown.schedule if isinstance(m, StreamStep)]
    assert execute(plans, only_steps).kind is CounterexampleKind.NOTHING  # nature is to blame, as well


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("idle", [(1,), (0, 1)])
def test_a_rank_without_instructions_has_left_a_barrier_too_early(idle: tuple[int, ...], quick: bool) -> None:
    plan = plan_of(MutationCase("barrier", "line", 2))
    for rank in idle:
        plan = plan.with_part(replace(plan.part(rank), streams=(Stream("main", encode([])),)))
    if idle == (1,):  # the other one only rings, and does not wait
        rings = Instruction(Op.SIGNAL, arg=plan.layout.done(0))
        plan = plan.with_part(replace(plan.part(0), streams=(Stream("main", encode([rings])),)))
    shown = CallSequence.of([plan]).run(slow(0, 0), quick=quick)
    assert shown.kind is CounterexampleKind.TOO_EARLY


def test_a_rank_without_instructions_gets_nothing() -> None:
    plan = plan_of(MutationCase("all_gather", "all", 2))
    for rank in range(2):
        plan = plan.with_part(replace(plan.part(rank), streams=()))
    shown = CallSequence.of([plan]).run(slow(0, 0))
    assert shown.kind is CounterexampleKind.WRONG
    alone = replace(plan_of(MutationCase("barrier", "line", 2)).call, ranks=1)
    assert (
        CallSequence.of([build(recipe("barrier", "line"), Layout(1, 1, 2, 64, 2, 64), alone)]).run(slow(0, 0)).kind
        is CounterexampleKind.NOTHING
    )


def test_the_search_ends_with_its_budget() -> None:
    plans = sequence(CASES[0], plan_of(CASES[0]), 0)
    assert witness(plans, budget_s=0.0) is None


def test_inputs_differ_from_call_to_call_at_every_byte() -> None:
    """So that what an earlier call of the same plan left behind is never right."""
    plan = plan_of(MutationCase("all_gather", "naive", 2))
    program = CallSequence.of([plan, plan])
    for rank in range(2):
        assert (program.inputs[0][rank] != program.inputs[1][rank]).all()
