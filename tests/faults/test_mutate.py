"""Mutation testing tests itself: a judge that is blind in one eye is found out, and a needless instruction is named."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import fused
from collectives.algorithms import catalog
from collectives.algorithms.catalog import build, recipe
from collectives.builder import ALL, Batches, Builder
from collectives.builder.recipes import Recipe
from collectives.contracts import COLLECTIVES
from cxlemu.cli import INTERRUPTED
from cxlemu.cli.interruption import Interruption
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call, InHeap, Instruction, Layout, Op, Plan
from cxlemu.plan.rules import check
from faults.cli import mutate_run
from faults.cli.mutate_report import MutateReport
from faults.cli.mutate_run import _cases
from faults.lockstep import counterexample as witness
from faults.lockstep.counterexample import CounterexampleKind, execute
from faults.lockstep.schedule import from_json
from faults.mutate import cases as cases_module
from faults.mutate import trial
from faults.mutate.cases import MutationCase, can_check, cases, mixtures, plan_of, sequence, shipped
from faults.mutate.mutants import Mutant, apply, mutants, pairs_apart
from faults.mutate.operators import (
    OPERATORS,
    RINGS,
    SYNCHRONIZING,
    WAITS,
    MutationSite,
    exchanged_everywhere,
    far_pairs,
    operator_of,
)
from faults.mutate.sweep import MutationRow, equivalent, is_needless, killed, survived, sweep
from faults.mutate.trial import SURVIVAL, Fate, MutantJudgement, Trial
from faults.prove import prove, prove_calls
from faults.verdict import Verdict
from faults.zero_copy_calls import HEAP_INPUT
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.tables import with_rows

NAIVE = MutationCase("all_gather", "naive", 2)
BELLS = (*WAITS, *RINGS)


# --- mutants -------------------------------------------------------------------------------------------------


@given(st.builds(Mutant, *[st.integers(0, 10**9 - 1)] * 3, st.sampled_from(["delete", "without=12", "line+1"])))
def test_a_mutant_goes_through_text(mutant: Mutant) -> None:
    assert Mutant.parse(str(mutant)) == mutant


@pytest.mark.parametrize("text", ["", "0.0.0", "0.0.0:", "a.0.0:delete", "0.0.-1:delete", "0.0.0:DELETE", "0.0.0:x\n"])
def test_what_is_no_mutant_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"RANK\.STREAM\.AT:KIND"):
        Mutant.parse(text)


@pytest.mark.parametrize("text", ["2.0.0:delete", "0.1.0:delete", "0.0.99:delete", "0.0.0:delete", "0.0.1:line+1"])
def test_a_mutant_that_the_plan_has_not_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match="has no mutant"):
        apply(plan_of(NAIVE), Mutant.parse(text))  # instruction 0 is a COPY, 1 a WAIT_ALL


def test_every_synchronizing_instruction_is_deleted_doubled_and_moved() -> None:
    plan = plan_of(MutationCase("all_reduce", "all", 2, in_place=True))
    made = Counter((m.rank, m.stream, m.at, m.kind) for m in mutants(plan))
    assert set(made.values()) == {1}
    for part in plan.parts:
        for s, stream in enumerate(part.streams):
            for at, instruction in enumerate(stream.instructions):
                kinds = {kind for rank, t, where, kind in made if (rank, t, where) == (part.rank, s, at)}
                if instruction.op not in SYNCHRONIZING:
                    assert {operator_of(kind) for kind in kinds} <= {"far", "read", "sources", "repeat", "round"}
                    continue
                assert {"delete", "duplicate"} <= kinds
                if instruction.op in (Op.WAIT, Op.WAIT_ALL):
                    assert "value-1" in kinds
                if instruction.op == Op.WAIT_ALL:
                    assert {"without=0", "without=1"} <= kinds


@pytest.mark.parametrize(
    "case", [NAIVE, MutationCase("reduce", "line", 3), MutationCase("all_reduce", "two_shot", 2)], ids=str
)
def test_mutants_are_plans_that_all_differ(case: MutationCase) -> None:
    plan = plan_of(case)
    digests = [apply(plan, m).digest for m in mutants(plan)]
    assert len({plan.digest, *digests}) == 1 + len(digests)


def test_a_mutant_changes_one_rank_only_but_for_doorbells_that_are_exchanged_everywhere() -> None:
    plan = plan_of(MutationCase("all_reduce", "all", 2))
    for mutant in mutants(plan):
        other = 1 - mutant.rank
        assert (apply(plan, mutant).part(other) == plan.part(other)) is (mutant.operator != "doorbells")


TWO_SHOT = MutationCase("all_reduce", "two_shot", 3, rounds=2)


def stream_after(case: MutationCase, text: str) -> tuple[list[Instruction], list[Instruction]]:
    """Of the stream that the mutant is of: its instructions before and after."""
    plan, mutant = plan_of(case), Mutant.parse(text)
    return tuple(p.part(mutant.rank).streams[mutant.stream].instructions for p in (plan, apply(plan, mutant)))  # type: ignore[return-value]


def test_two_sources_of_a_fold_change_places() -> None:
    case = MutationCase("reduce", "naive", 3)
    before, after = stream_after(case, "0.0.4:sources=bc")
    here, there = before[4], after[4]
    assert here.op == Op.REDUCE and (there.a, there.b, there.c) == (here.a, here.c, here.b)
    assert after[:4] + after[5:] == before[:4] + before[5:]
    kinds = {m.kind for m in mutants(plan_of(case)) if (m.rank, m.at, m.operator) == (0, 4, "sources")}
    assert kinds == {"sources=ab", "sources=ac", "sources=bc"}


def test_a_source_changes_places_with_one_of_the_instruction_that_goes_on_with_the_fold() -> None:
    case = MutationCase("reduce", "naive", 4)
    [mutant] = [m for m in mutants(plan_of(case)) if m.kind == "sources=onward"]
    before, after = stream_after(case, str(mutant))
    changed = [k for k, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    assert [before[k].op for k in changed] == [Op.REDUCE, Op.REDUCE]
    first, then = changed
    assert after[first].c == before[then].b and after[then].b == before[first].c and before[then].a == before[first].dst


def test_a_fold_is_repeated() -> None:
    before, after = stream_after(MutationCase("reduce", "naive", 3), "0.0.4:repeat")
    assert after == [*before[:5], before[4], *before[5:]]


def test_instructions_that_are_far_apart_change_places() -> None:
    plan = plan_of(TWO_SHOT)
    far = [m for m in mutants(plan) if m.operator == "far"]
    for mutant in far:
        before, after = stream_after(TWO_SHOT, str(mutant))
        other = int(mutant.kind.partition("=")[2])
        assert other > mutant.at + 1 and (after[mutant.at], after[other]) == (before[other], before[mutant.at])
        assert Counter(after) == Counter(before)
    lengths = [len(stream.records) for part in plan.parts for stream in part.streams]
    assert 0.9 * sum(lengths) / 2 < len(far) <= sum(lengths)  # some change nothing
    assert pairs_apart(plan) == sum((n - 1) * (n - 2) // 2 for n in lengths)


@given(st.integers(0, 60))
def test_pairs_are_taken_evenly_and_no_more_than_there_are_instructions(count: int) -> None:
    taken, of = far_pairs(count)
    every = [(i, j) for i in range(count) for j in range(i + 2, count)]
    assert of == len(every) and len(taken) <= count and set(taken) <= set(every)
    assert len(taken) == len(every) or len(taken) > count / 2


def test_a_flush_leaves_out_its_first_line_or_its_last() -> None:
    before, after = stream_after(NAIVE, "0.0.3:narrow-first")
    assert before[3].op == Op.FLUSH and before[3].nbytes == 128
    assert after[3] == before[3]._replace(nbytes=64, a=before[3].a.at(64))
    before, after = stream_after(NAIVE, "0.0.3:narrow")
    assert after[3] == before[3]._replace(nbytes=64)


def test_what_is_read_or_folded_comes_from_the_line_beside_its_own() -> None:
    case = MutationCase("all_gather", "all", 2)
    for text in ("0.1.3:read+1", "0.1.6:read-1"):
        before, after = stream_after(case, text)
        at = Mutant.parse(text).at
        assert before[at].op == Op.READ
        assert after[at] == before[at]._replace(a=before[at].a.at(64 if "+" in text else -64))
    before, after = stream_after(MutationCase("all_reduce", "all", 3), "1.1.4:read+1=c")
    assert before[4].op == Op.REDUCE and after[4] == before[4]._replace(c=before[4].c.at(64))


def test_doorbells_change_places_where_they_are_rung_and_where_they_are_waited_for() -> None:
    plan = plan_of(MutationCase("all_gather", "all", 3))
    [mutant] = [m for m in mutants(plan) if m.operator == "doorbells" and m.rank == 1]
    one, other = plan.layout.published(1, 0), plan.layout.published(1, 1)
    names = {one: other, other: one}
    for part, changed in zip(plan.parts, apply(plan, mutant).parts, strict=True):
        for stream, after in zip(part.streams, changed.streams, strict=True):
            bells = [i._replace(arg=names.get(i.arg, i.arg)) if i.op in BELLS else i for i in stream.instructions]
            assert after.instructions == bells


def test_doorbells_of_a_group_are_waited_for_one_by_one_when_one_of_them_is_another() -> None:
    plan = plan_of(MutationCase("barrier", "line", 3))
    groups = plan.frame.groups
    [place] = [
        MutationSite(plan, 0, 0, at)
        for at, i in enumerate(plan.part(0).streams[0].instructions)
        if i.op == Op.WAIT_ALL and min(groups[i.arg].doorbells) < plan.layout.published_count
    ]
    given = groups[place.instruction.arg].doorbells
    mutation = exchanged_everywhere(plan, {given[0]: 99, 99: given[0]})
    tables = (*groups, *mutation.groups)
    waited = [i for i in mutation.streams[0, 0] if i.op == Op.WAIT_ALL and i.arg >= len(groups)]
    assert [tuple(tables[i.arg].doorbells) for i in waited] == [(each,) for each in sorted({99, *given[1:]})]


def test_a_rank_leaves_out_its_part_of_a_round() -> None:
    plan = plan_of(TWO_SHOT)
    drops = [m for m in mutants(plan) if m.operator == "round" and m.rank == 0]
    assert [m.kind for m in drops] == ["round=0", "round=1"]
    kept = [[stream.instructions for stream in apply(plan, m).part(0).streams] for m in drops]
    whole = [stream.instructions for stream in plan.part(0).streams]
    assert [[*second, *first] for first, second in zip(*kept, strict=True)] == whole  # what one drops the other keeps
    assert {i.a.seq for i in kept[0][0] if i.op == Op.FLUSH} == {1}


def test_every_operator_makes_something_and_kinds_name_theirs() -> None:
    made = Counter(m.operator for case in (NAIVE, TWO_SHOT) for m in mutants(plan_of(case)))
    assert set(made) == {operator.name for operator in OPERATORS}
    assert [operator_of(kind) for kind in ("doorbell+1", "doorbells=3", "value-1", "narrow-first", "read-1=b")] == [
        *("doorbell", "doorbells", "value", "narrow", "read")
    ]


# --- cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.deep)])
def test_every_case_is_a_plan_by_the_rules_that_is_right_in_its_calls(ranks: int) -> None:
    found = list(shipped(ranks))
    assert len(set(found)) == len(found)
    for case in found:
        plan = plan_of(case)
        check(plan)
        assert plan.rounds == case.rounds
        assert prove_calls(sequence(case, plan, ranks - 1), obliges=True).verdict is Verdict.OK, case


def test_mixtures_are_right_calls_of_all_collectives_on_one_ring() -> None:
    plan = plan_of(NAIVE)
    mixed = list(mixtures(NAIVE, plan))
    assert {calls[0].call.collective for calls in mixed} >= {"broadcast", "barrier", "all_reduce", "scatter"}
    assert all(prove_calls(calls).verdict is Verdict.OK for calls in mixed)


# --- judgement -----------------------------------------------------------------------------------------------


def fates(case: MutationCase) -> Counter[Fate]:
    judge = Trial(case)
    return Counter(judge.judge(mutant).fate for mutant in judge.mutants())


@pytest.mark.parametrize(
    "case",
    [
        NAIVE,
        MutationCase("broadcast", "all", 2),
        MutationCase("all_reduce", "line", 2),
        MutationCase("barrier", "line", 3),
    ],
    ids=str,
)
def test_nothing_survives_and_nothing_is_needless(case: MutationCase) -> None:
    judge = Trial(case)
    for mutant in judge.mutants():
        judgement = judge.judge(mutant)
        assert not judgement.fate.survived, judgement
        assert not is_needless(judge.plan, judgement), judgement


DECLARED = [
    case
    for ranks in (2, 3)
    for case in shipped(ranks)
    if case.collective in COLLECTIVES
    and ((its := recipe(case.collective, case.variant)).publishes is not None or its.builder is Batches)
]


@pytest.mark.deep(rows=lambda case: case.ranks > 2 or case.rounds > 1)
@pytest.mark.parametrize("case", DECLARED, ids=str)
def test_what_a_variant_declares_to_publish_leaves_no_instruction_needless(case: MutationCase) -> None:
    """Of slices that a small case has no bytes for, all waits would be, and some where a loop follows another one."""
    judge = Trial(case)
    deletions = [mutant for mutant in judge.mutants() if mutant.operator == "delete"]
    assert deletions
    for mutant in deletions:
        judgement = judge.judge(mutant)
        assert not judgement.fate.survived, judgement
        assert not is_needless(judge.plan, judgement), judgement


def test_plans_with_checksums_are_mutated_as_well() -> None:
    assert [can_check(MutationCase("all_gather", variant, 2)) for variant in ("naive", "line", "zero_copy")] == [
        True,
        False,
        True,
    ]
    assert not can_check(MutationCase("gather", "hierarchical", 4, cluster=2)) and not can_check(
        MutationCase(fused.KINDS[0], "fused", 2)
    )
    case = MutationCase("all_gather", "naive", 2, checked=True)
    assert {i.op for i in plan_of(case).part(0).streams[0].instructions} >= {Op.COMPUTE, Op.SIGNAL_DATA, Op.WAIT_DATA}
    found = fates(case)
    assert not any(fate.survived for fate in found) and found[Fate.CONFIRMED] > 30
    result = cxlemu("mutate", "--case", case, "--mutant", "0.0.4:delete", "--integrity", "crc32c", code=0)
    assert "crc32c" in result.output, result.output


def judged(case: MutationCase, op: Op, kind: str) -> set[Fate]:
    judge = Trial(case)
    at = {(m.rank, m.stream, m.at): m for m in judge.mutants() if m.kind == kind}
    return {
        judge.judge(m).fate
        for (rank, stream, where), m in at.items()
        if judge.plan.part(rank).streams[stream].instructions[where].op == op
    }


@with_rows(
    (Op.FLUSH, "delete", Fate.CONFIRMED),
    (Op.FLUSH, "duplicate", Fate.EQUIVALENT),
    (Op.FLUSH, "narrow", Fate.CONFIRMED),
    (Op.FLUSH, "later", Fate.CONFIRMED),  # after the fence
    (Op.FENCE, "later", Fate.CONFIRMED),  # after the signal
    (Op.INVALIDATE, "later", Fate.CONFIRMED),  # after the read
    (Op.WAIT, "later", Fate.CONFIRMED),  # after the invalidate
    (Op.WAIT, "rank+1", Fate.CONFIRMED),
    (Op.WAIT, "value-1", Fate.REFUSED),
    (Op.SIGNAL, "duplicate", Fate.REFUSED),
    (Op.FLUSH, "narrow-first", Fate.CONFIRMED),
    (Op.COPY, "round=0", Fate.CONFIRMED),
)
def test_what_becomes_of_each_kind(op: Op, kind: str, fate: Fate) -> None:
    assert judged(NAIVE, op, kind) == {fate}


@with_rows(
    ("sources=ab", Fate.EQUIVALENT),  # a + b is b + a
    ("sources=bc", Fate.CONFIRMED),
    ("sources=ac", Fate.CONFIRMED),
    ("repeat", Fate.EQUIVALENT),  # the result is no source of it
    ("read+1=b", Fate.CONFIRMED),
)
def test_what_becomes_of_folds_of_three(kind: str, fate: Fate) -> None:
    assert judged(MutationCase("all_reduce", "all", 3), Op.REDUCE, kind) == {fate}


def test_sources_of_two_instructions_of_one_fold() -> None:
    assert judged(MutationCase("reduce", "naive", 4), Op.REDUCE, "sources=onward") == {Fate.CONFIRMED}


def test_a_fold_onto_one_of_its_sources_is_not_repeated_for_nothing() -> None:
    """On two levels, in place, what comes from other clusters is folded onto what is there."""
    case = MutationCase("all_reduce", "hierarchical", 4, cluster=2, in_place=True)
    plan = plan_of(case)
    [repeat] = [m for m in mutants(plan) if (m.rank, m.operator) == (0, "repeat") and _folds_onto_a_source(plan, m)][:1]
    assert Trial(case).judge(repeat).fate is Fate.CONFIRMED


def _folds_onto_a_source(plan: Plan, mutant: Mutant) -> bool:
    i = plan.part(mutant.rank).streams[mutant.stream].instructions[mutant.at]
    return i.dst in (i.a, i.b, i.c)


def test_products_are_summed_in_rank_order() -> None:
    case = MutationCase("gemm_reduce_scatter", "medium", 3)
    assert judged(case, Op.REDUCE, "sources=bc") == judged(case, Op.REDUCE, "sources=ac") == {Fate.CONFIRMED}
    assert judged(case, Op.REDUCE, "sources=ab") == {Fate.EQUIVALENT}


@pytest.mark.parametrize("rule", ["fresh", "landed", "order"])
def test_a_prover_without_one_of_its_rules_is_found_out(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(plans: Any, **options: Any) -> Any:
        return prove_calls(plans, without={rule, "exit", "reuse"}, **options)

    monkeypatch.setattr(trial, "prove_calls", blind)
    assert fates(NAIVE)[Fate.MISSED] > 0


def test_a_prover_that_finds_fault_with_everything_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(NAIVE)
    mutant = next(m for m in mutants(plan) if m.kind == "delete" and m.at == 3)
    wrong = prove_calls([apply(plan, mutant) if p is plan else p for p in sequence(NAIVE, plan, 0)])
    assert wrong.verdict is Verdict.VIOLATION
    monkeypatch.setattr(trial, "prove_calls", lambda plans, **options: wrong)
    monkeypatch.setattr(witness, "RANDOM_ORDERS", 1)
    judge = Trial(NAIVE)
    doubled = next(m for m in judge.mutants() if m.kind == "duplicate" and m.at == 3)
    assert judge.judge(doubled).fate is Fate.UNCONFIRMED


def test_a_prover_that_does_not_know_lets_mutants_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = replace(prove_calls([plan_of(NAIVE)]), verdict=Verdict.UNKNOWN, reason="too hard")
    monkeypatch.setattr(trial, "prove_calls", lambda plans, **options: unknown)
    found = fates(NAIVE)
    assert set(found) == {Fate.REFUSED, Fate.UNKNOWN} and found[Fate.UNKNOWN] > 0
    done = cxlemu("mutate", "--case", NAIVE, "--mutant", "0.0.3:delete", code=3)
    assert "the prover cannot tell" in done.output, done.output


# --- needless instructions -----------------------------------------------------------------------------------


def gossip(b: Builder) -> None:
    """A gather whose root publishes its block, too, which nobody retrieves."""
    if b.is_root:
        b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, spread="cards"):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset))
            for peer in b.peers if b.is_root else []:
                b.retrieve(b.output(peer * b.nbytes + chunk.offset), chunk, peer)


def foreign(algorithm: Any, collective: str) -> Plan:
    case = MutationCase(collective, "all", 2)
    mine = Recipe(collective, "all", algorithm, ALL, source="mine.py:mine")
    call = Call(collective, "all", 2, 128)
    layout = replace(plan_of(case).layout, slot_card_bytes=1024)
    return build(mine, layout, call)


def awaits(plan: Plan) -> list[Mutant]:
    return [
        m
        for m in mutants(plan)
        if m.kind == "delete" and plan.part(m.rank).streams[m.stream].instructions[m.at].op == Op.AWAIT
    ]


def test_an_await_too_many_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own algorithm as if it were somebody else's, who might publish what nobody retrieves."""
    case = MutationCase("all_gather", "all", 2)
    ours = recipe("all_gather", "all")
    monkeypatch.setattr(trial, "plan_of", lambda case: foreign(ours.algorithm, "all_gather"))
    judge = Trial(case)
    found = [judge.judge(mutant) for mutant in awaits(judge.plan)]
    assert [(j.fate, is_needless(judge.plan, j)) for j in found] == [(Fate.EQUIVALENT, True)] * 2


def test_what_no_rank_reads_can_be_shown_by_no_execution_and_the_survivor_says_so() -> None:
    own = f"{Path(__file__).parents[1]}/helpers/wrong_algorithms.py:echo"
    judge = Trial(MutationCase("broadcast", "echo", 2, algorithm=own)).judge
    judged = judge(Mutant.parse("1.0.5:delete"))  # rank 1 publishes again before it has retrieved
    assert judged.fate is Fate.UNCONFIRMED and judged.reason.endswith(
        "no rank reads what rank 1 publishes, so nothing shows it"
    )
    assert "no rank reads" not in judge(Mutant.parse("1.1.0:delete")).reason
    result = cxlemu("mutate", "--algorithm", own, "--case", "broadcast echo 2 ranks", "-j", "1", code=1)
    assert "needless instructions of an algorithm or plan of your own are no failure" in result.output


def test_a_signal_that_only_lets_others_go_on_sooner_is_not_needless(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a ring of one slot the signal of the next round says as much, but only when that is published, too."""

    def lies_there(call: Call, its: Recipe) -> Call:  # where the plan says: signals carry nothing
        return replace(call, heap=InHeap(HEAP_INPUT))

    monkeypatch.setattr(cases_module, "lent_if_zero_copy", lies_there)
    judge = Trial(MutationCase("all_reduce", "zero_copy", 2, rounds=2))
    judgement = judge.judge(Mutant.parse("0.0.3:delete"))
    assert judgement.instruction == "SIGNAL" and judgement.fate is Fate.EQUIVALENT
    assert not is_needless(judge.plan, judgement)


def test_who_retrieves_nothing_says_once_that_it_is_done() -> None:
    plan = plan_of(MutationCase("gather", "all", 2, rounds=2))
    [retrieve] = [stream for stream in plan.part(1).streams if stream.name == "retrieve"]
    assert [(i.op, i.arg, i.value) for i in retrieve.instructions] == [(Op.SIGNAL, plan.layout.done(1), 1)]


def test_who_publishes_what_nobody_retrieves_must_wait_for_it_before_saying_done() -> None:
    plan = foreign(gossip, "gather")
    assert prove(plan).verdict is Verdict.OK
    [mine] = [m for m in awaits(plan) if m.rank == 0]
    violation = prove(apply(plan, mine)).violation
    assert violation is not None and violation.rule == "exit"


# --- sweeps and the command ----------------------------------------------------------------------------------


def test_a_sweep_tells_everything_of_every_case() -> None:
    chosen = [NAIVE, MutationCase("barrier", "line", 2)]
    rows: dict[MutationCase, MutationRow] = {}
    with ThreadPoolExecutor(1) as executor:
        for row in sweep(chosen, executor):
            rows[row.case] = row
    assert list(rows) == chosen
    for row in rows.values():
        assert row.judged == row.mutants == row.killed + row.equivalent + row.survived
        assert row.fates == fates(row.case)
        assert sum(row.operators["far"].values()) <= row.pairs == pairs_apart(plan_of(row.case))
        assert row.killed == row.confirmed + row.refused and not row.needless


def test_the_report_fails_for_a_survivor_and_for_a_needless_instruction(tmp_path: Path) -> None:
    right = Trial(NAIVE)
    doubled = next(m for m in right.mutants() if m.kind == "duplicate" and m.at == 3)
    judgement = right.judge(doubled)
    for name, its in (("survivors", judgement._replace(fate=Fate.MISSED)), ("needless", judgement)):
        row = MutationRow(NAIVE, 1, operators={"duplicate": Counter([its.fate])})
        getattr(row, name).append(its)
        with MutateReport([NAIVE], tmp_path / name, Interruption()) as report:
            report.update(row)
        assert report.verdict is Verdict.VIOLATION
        [told] = json.loads((tmp_path / name).read_text())["rows"]
        assert [one["mutant"] for one in told[name]] == [str(doubled)]
    with MutateReport([NAIVE], None, Interruption()) as report:
        report.update(MutationRow(NAIVE, 1, operators={"duplicate": Counter([judgement.fate])}))
    assert report.verdict is Verdict.OK


@pytest.mark.parametrize("fate", [fate for fate in Fate if fate.survived])
def test_the_report_says_what_a_survivor_is(fate: Fate, capsys: pytest.CaptureFixture[str]) -> None:
    judgement = MutantJudgement(Mutant.parse("0.0.3:delete"), fate, "FENCE", "reads too early")
    row = MutationRow(NAIVE, 1, operators={"delete": Counter([fate])}, survivors=[judgement])
    with MutateReport([NAIVE], None, Interruption()) as report:
        report.update(row)
    assert report.verdict.exit_code == (3 if fate is Fate.UNKNOWN else 1)
    said = " ".join(capsys.readouterr().out.split())
    assert f"survived ({fate.value})" in said and said.count(f"{fate.value}: {SURVIVAL[fate]}") == 1


def test_the_command_counts_and_writes_json() -> None:
    result, told = with_json("mutate", "barrier", "-n", "2-3", "-j", "1", code=0)
    assert [row["name"] for row in told["rows"]] == ["barrier line 2 ranks", "barrier line 3 ranks"]
    summary = told["summary"]
    assert told["complete"] and summary["survived"] == summary["needless"] == 0
    assert summary["mutants"] == summary["killed"] + summary["equivalent"] > 0
    assert sum(counts["mutants"] for counts in told["operators"].values()) == summary["mutants"]
    for operator, counts in told["operators"].items():
        if counts["mutants"]:
            assert re.search(
                rf"^  {operator}(?:, .* pairs?)? +{counts['mutants']} +{counts['killed']} ", result.output, re.MULTILINE
            )
    taken = told["operators"]["far"]["mutants"]
    assert f"  far, {taken} of {told['far_pairs']} pairs" in result.output and 0 < taken <= told["far_pairs"]


def test_ctrl_c_keeps_what_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first plan is whole, of the second nothing is judged yet, and the third has not begun."""

    def second_is_interrupted(cases: Sequence[MutationCase], executor: object) -> Iterator[MutationRow]:
        first, second, _ = cases
        with ThreadPoolExecutor(1) as one:
            yield from sweep([first], one)
        yield MutationRow(second, 5)
        raise KeyboardInterrupt

    monkeypatch.setattr(mutate_run, "sweep", second_is_interrupted)
    result, told = with_json("mutate", "barrier", "-n", "2-4", "-j", "1", code=INTERRUPTED)
    assert told["interrupted"] and not told["complete"]
    whole, begun = told["rows"]
    assert whole["mutants"] == whole["killed"] + whole["equivalent"] > 0 == begun["killed"]
    assert re.search(rf"^barrier line 2 ranks +{whole['mutants']} ", result.stdout, re.MULTILINE)
    assert "barrier line 3 ranks" not in result.stdout and "2 plans not finished" in result.stderr


def test_help_names_every_operator() -> None:
    told = cxlemu("mutate", "--help", terminal_width=200).output
    assert all(f"  {operator.name:<10}{operator.what}" in told for operator in OPERATORS)


def test_the_command_shows_one_mutant_with_a_schedule_that_replays() -> None:
    arguments = ["mutate", "all_gather", "--case", str(NAIVE), "--mutant", "0.0.3:delete"]
    result, told = with_json(*arguments, code=0)
    assert (told["mutant"], told["fate"], bool(told["schedule"])) == ("0.0.3:delete", "confirmed", True)
    assert "0.0.3:delete FLUSH: confirmed" in result.output and "did not flush" in result.output
    [line] = [line for line in result.output.splitlines() if line.startswith("schedule: ")]
    plan = plan_of(NAIVE)
    mutated = apply(plan, Mutant.parse("0.0.3:delete"))
    plans = [mutated if p is plan else p for p in sequence(NAIVE, plan, 0)]
    assert execute(plans, from_json(json.loads(line[len("schedule: ") :]))).kind is CounterexampleKind.WRONG


@with_rows(
    (["bcast"], "unknown collective 'bcast'"),
    (["--variant", "fast"], "no variant 'fast'"),
    (["barrier", "--variant", "naive"], "it has line"),
    (["-n", "1"], "2 to 8"),
    (["-n", "3-2"], "2 to 8"),
    (["--case", "nothing"], "no case 'nothing'"),
    (["--mutant", "0.0.0:delete"], "add --case, such as --case 'all_gather "),
    (["--case", str(NAIVE), "--mutant", "0.0.0"], "RANK.STREAM.AT:KIND"),
    (["--case", str(NAIVE), "--mutant", "0.0.0:delete"], "has no mutant 0.0.0:delete: one that it has is 0.0."),
    (["--json", "/nowhere/mutants.json"], "cannot be written"),
)
def test_bad_input_is_one_sentence(arguments: list[str], says: str) -> None:
    result = cxlemu("mutate", *arguments, code=2)
    assert says in result.output and "Traceback" not in result.output


def test_forms_in_which_a_variant_synchronizes() -> None:
    assert [str(case) for case in cases("all_reduce", "zero_copy", 2)] == [
        "all_reduce zero_copy 2 ranks",
        "all_reduce zero_copy 2 ranks 2 rounds",
        "all_reduce zero_copy 2 ranks in place",
        "all_reduce zero_copy 2 ranks output in heap",
    ]


@with_rows(
    ("all_reduce", "two_shot"),
    ("all_reduce", "zero_copy"),
    ("all_reduce", "rabenseifner"),
    ("all_to_all", "pairwise"),
    ("broadcast", "line"),
    ("all_reduce", "hierarchical"),
)
def test_a_variant_under_another_name_has_the_same_cases_and_plans(
    collective: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it declares and asks for decides, so that a new one needs no edit of the cases."""
    known = recipe(collective, variant)
    again = replace(known, name="again", spec=replace(known.spec, name="again"))
    monkeypatch.setitem(catalog._RECIPES, (collective, "again"), again)
    theirs = list(cases(collective, variant, 4))
    assert [case._replace(variant=variant) for case in cases(collective, "again", 4)] == theirs
    for case in theirs:
        plan, same = plan_of(case), plan_of(case._replace(variant="again"))
        assert replace(same.call, algorithm=variant) == plan.call and same.layout == plan.layout
        assert all(a.streams == b.streams for a, b in zip(plan.parts, same.parts, strict=True))
        between = [str(each.call) for each in sequence(case, plan, 0)]
        assert [
            str(each.call).replace("again", variant) for each in sequence(case._replace(variant="again"), same, 0)
        ] == between


def test_an_order_that_no_values_show_is_killed_by_the_proof_alone() -> None:
    """A saved plan of integers: the prover tells that ranks fold in another order, and no execution can."""
    call = Call("all_reduce", "aggregate", 3, 128, "i32", "sum")
    saved = build(recipe("all_reduce", "aggregate"), Layout(3, 2, 2, 1024, 8, 256), call)
    exchanged = [m for m in mutants(saved) if m.kind == "sources=bc"]
    judge = Trial(MutationCase("all_reduce", "aggregate", 3))
    judge.plan = saved
    assert {judge.judge(mutant).fate for mutant in exchanged} == {Fate.HIDDEN}
    assert not Fate.HIDDEN.survived and killed(Counter({Fate.HIDDEN: 2})) == 2


@pytest.mark.parametrize("fate", list(Fate))
def test_each_fate_counts_once(fate: Fate) -> None:
    """Killed, equivalent or survived: what the prover rejects and no execution shows is a mutant that survived."""
    fates = Counter({fate: 3})
    assert killed(fates) + equivalent(fates) + survived(fates) == 3
    assert (survived(fates) == 3) == fate.survived


def test_a_variant_in_fewer_chunks_is_mutated() -> None:
    there = list(_cases(["all_gather"], [2], "all-2"))
    assert there and {case.variant for case in there} == {"all-2"}
    with pytest.raises(ArgumentError, match="has no variant 'all-99'"):
        list(_cases(["all_gather"], [2], "all-99"))
