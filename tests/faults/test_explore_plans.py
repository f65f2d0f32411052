"""Plans in every execution: the shipped ones are right, what breaks one is found, no reduction changes a verdict."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from collectives.algorithms.catalog import build, recipe, variants
from collectives.contracts import COLLECTIVES
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call, InHeap, Op, Plan
from faults.explore.plans import compile_plans, explore_plan, tiny_layout, where
from faults.explore.result import Budget, FindingKind
from faults.explore.search import complaint, is_stuck
from faults.machine.program import Do
from faults.machine.steps import Machine, replay
from faults.verdict import Verdict
from tests.helpers.plans import without
from tests.helpers.tables import with_rows

SMALL = Budget(states=200_000, seconds=60)


def plan_of(
    collective: str, variant: str, ranks: int, *, lines: int = 2, slots: int = 2, in_place: bool = False
) -> Plan:
    """``lines`` lines a block, each a chunk of its own where the variant has chunks."""
    layout = tiny_layout(ranks, lines=lines * (ranks + 1), doorbells=lines * (ranks + 1), slots=slots)
    heap = InHeap(0, told=True) if variant == "zero_copy" else None
    layout = replace(layout, heap_card_bytes=ranks * 4096 if heap else 0)
    nbytes = 0 if collective == "barrier" else lines * (56 if variant == "line" else 64)
    nbytes *= ranks if variant in ("two_shot", "zero_copy") and collective == "all_reduce" else 1
    redop = "sum" if COLLECTIVES[collective].reduces else "none"
    call = Call(collective, variant, ranks, nbytes, "u8", redop, in_place=in_place, heap=heap)
    return build(recipe(collective, variant), layout, call)


def deletions(plan: Plan) -> Iterator[tuple[Op, Plan]]:
    for rank in range(plan.ranks):
        for s, stream in enumerate(plan.part(rank).streams):
            for at, instruction in enumerate(stream.instructions):
                yield instruction.op, without(plan, rank, s, at)


EVERY = [(c, v) for c in COLLECTIVES for v in variants(c)]


@pytest.mark.each_value_once
@pytest.mark.deep(rows=lambda ranks: ranks > 2)
@pytest.mark.parametrize(("collective", "variant"), EVERY, ids=str)
@pytest.mark.parametrize("ranks", [2, 3])
def test_shipped_plans_are_right_in_every_execution_of_calls_that_wrap_the_ring(
    collective: str, variant: str, ranks: int
) -> None:
    plan = plan_of(collective, variant, ranks, lines=1 if variant in ("two_shot", "zero_copy") else 2)
    found = explore_plan([plan] * (plan.layout.slots + 2), budget=SMALL)
    assert found.verdict == Verdict.OK, found.finding or found.reason


@pytest.mark.parametrize("variant", ["naive", "all", "line"])
def test_two_ranks_on_one_host_and_one_on_another(variant: str) -> None:
    found = explore_plan([plan_of("all_gather", variant, 3, lines=1)] * 2, hosts=[0, 0, 1], budget=SMALL)
    assert found.verdict == Verdict.OK, found.finding or found.reason


def test_figures_that_the_reductions_make() -> None:
    """Every step of a right plan but a few can be made first: a search is hardly more than a walk."""
    found = explore_plan(plan_of("broadcast", "all", 2))
    assert (found.states, found.transitions) == (27, 26)
    found = explore_plan(plan_of("all_reduce", "two_shot", 6, lines=1))
    assert (found.states, found.transitions) == (529, 528)  # it was a million
    found = explore_plan(plan_of("all_reduce", "line", 4), hosts=[0, 0, 1, 1])
    assert (found.verdict, found.states) == (Verdict.OK, 105)  # it was 1,245,891
    for variant, states in (("line", 209), ("aggregate", 1_857)):
        found = explore_plan(plan_of("all_reduce", variant, 8, lines=1), hosts=[0, 0, 0, 0, 1, 1, 1, 1])
        assert (found.verdict, found.states) == (Verdict.OK, states)


@pytest.mark.deep(rows=lambda ranks: ranks > 3)
@pytest.mark.parametrize("ranks", [3, 6])
def test_a_right_plan_of_ranks_on_hosts_of_their_own_is_one_walk(ranks: int) -> None:
    for collective, variant in EVERY:
        found = explore_plan([plan_of(collective, variant, ranks, lines=1)] * 2)
        assert found.verdict == Verdict.OK, (collective, variant)
        assert found.states == found.transitions + 1, (collective, variant)


# -- mutants


@with_rows(
    ("broadcast", "all"), ("all_gather", "naive"), ("gather", "line"), ("barrier", "line"), ("all_reduce", "two_shot")
)
def test_reductions_change_no_verdict_on_what_is_left_of_a_plan_without_one_instruction(
    collective: str, variant: str
) -> None:
    plan = plan_of(collective, variant, 2, lines=1, slots=1)
    for op, mutant in deletions(plan):
        calls = [mutant] * (1 if variant == "two_shot" else 2)
        reduced = explore_plan(calls)
        assert reduced.verdict == explore_plan(calls, ample=False).verdict, op
        assert reduced.verdict == explore_plan(calls, ample=False, checked_reads=False).verdict, op


@with_rows(("all_gather", "line", (0, 0)), ("barrier", "line", (0, 0)), ("broadcast", "all", (0, 0, 1)))
def test_nor_do_they_where_ranks_share_a_host(collective: str, variant: str, hosts: tuple[int, ...]) -> None:
    for op, mutant in deletions(plan_of(collective, variant, len(hosts), lines=1, slots=1)):
        reduced = explore_plan([mutant] * 2, hosts)
        assert reduced.verdict == explore_plan([mutant] * 2, hosts, ample=False).verdict, op


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(40))
def test_reductions_change_no_verdict_on_plans_of_which_some_instructions_are_gone(seed: int) -> None:
    rng = Random(seed)
    collective, variant = rng.choice([one for one in EVERY if one[0] != "barrier"])
    plan = plan_of(collective, variant, rng.choice([2, 2, 3]), lines=1)
    for _ in range(rng.randint(1, 3)):
        rank = rng.randrange(plan.ranks)
        stream = rng.randrange(len(plan.part(rank).streams))
        at = [k for k, i in enumerate(plan.part(rank).streams[stream].instructions) if i.op != Op.RECORD]
        if at:  # an AWAIT without its RECORD is refused
            plan = without(plan, rank, stream, rng.choice(at))
    unreduced = explore_plan([plan] * 2, ample=False, budget=SMALL)
    assert unreduced.verdict in (Verdict.UNKNOWN, explore_plan([plan] * 2, budget=SMALL).verdict)


def test_literal_search_agrees_where_it_is_possible() -> None:
    plan = plan_of("broadcast", "naive", 2, lines=1)
    literal = explore_plan(plan, lazy=False, checked_reads=False, ample=False)
    assert literal.verdict == Verdict.OK and literal.states > 1_000
    for op, mutant in deletions(plan):
        literal = explore_plan(mutant, lazy=False, checked_reads=False, ample=False)
        assert literal.verdict == explore_plan(mutant).verdict, op


NEEDED = {Op.FLUSH, Op.FENCE, Op.SIGNAL, Op.WAIT, Op.INVALIDATE, Op.WRITE, Op.READ}


def test_every_link_of_the_chain_is_needed_and_its_absence_shown_by_a_schedule_that_is_possible() -> None:
    plan = plan_of("all_gather", "aggregate", 2, slots=1)
    for op, mutant in deletions(plan):
        if op not in NEEDED:
            continue
        calls = [mutant] * 3
        found = explore_plan(calls)
        assert found.verdict == Verdict.VIOLATION and found.finding is not None, op
        machine = Machine(compile_plans(calls).program)
        end = replay(machine, found.schedule)[-1]
        if found.finding.kind == FindingKind.UNEXPECTED:
            assert complaint(machine, end)
            assert "instruction" in found.finding.text
        elif found.finding.kind == FindingKind.FINAL:  # wrong even in order: what nobody waited for was not there
            assert op in (Op.READ, Op.WRITE, Op.WAIT) and found.schedule
        else:
            assert found.finding.kind == FindingKind.DEADLOCK and is_stuck(machine.enabled(end))


def test_in_place_the_result_waits_until_what_it_overwrites_is_published() -> None:
    plan = plan_of("all_reduce", "all", 2, lines=1, in_place=True)
    assert explore_plan(plan).verdict == Verdict.OK
    findings = [explore_plan(mutant).finding for op, mutant in deletions(plan) if op == Op.AWAIT]
    assert [bool(finding) for finding in findings] == [True, True]
    assert all("sees output[0:64]" in finding.text for finding in findings if finding)


def test_a_barrier_that_is_left_too_early_is_found() -> None:
    plan = plan_of("barrier", "line", 3)
    found = [explore_plan(mutant).finding for op, mutant in deletions(plan) if op == Op.WAIT_ALL]
    assert all(finding and "sign of rank" in finding.text for finding in found) and found


def test_calls_of_different_collectives_follow_each_other_on_one_ring() -> None:
    layout = tiny_layout(2, lines=3, slots=1, doorbells=4)
    broadcast = build(recipe("broadcast", "naive"), layout, Call("broadcast", "naive", 2, 64))
    gather = build(recipe("all_gather", "all"), layout, Call("all_gather", "all", 2, 64))
    calls = [broadcast, gather, broadcast, gather]
    assert explore_plan(calls).verdict == Verdict.OK
    entered = [op for op, mutant in deletions(broadcast) if explore_plan([mutant, gather] * 2).verdict != Verdict.OK]
    assert Op.WAIT_ALL in entered  # the slot is written while someone still reads the call before


# -- what a program is made of


def test_a_step_knows_its_instruction() -> None:
    plan = plan_of("all_gather", "all", 2)
    compiled = compile_plans([plan, plan])
    for thread, places in zip(compiled.program.threads, compiled.origins, strict=True):
        assert len(thread.steps) == len(places)  # type: ignore[attr-defined]
        for step, place in zip(thread.steps, places, strict=True):  # type: ignore[attr-defined]
            stream = plan.part(place.rank).streams[place.stream]
            if step.do == Do.SIGNAL:
                assert stream.instructions[place.at].op == Op.SIGNAL
    assert where(compiled, 0, ()) == compiled.origins[0][0]


def test_what_cannot_be_a_program_is_refused() -> None:
    plan = plan_of("broadcast", "naive", 2)
    with pytest.raises(ArgumentError, match="same layout"):
        explore_plan([plan, plan_of("broadcast", "naive", 2, slots=3)])
    with pytest.raises(ArgumentError, match="one for each rank"):
        explore_plan(plan, hosts=[0])
    with pytest.raises(ArgumentError, match="same layout"):
        explore_plan([])
