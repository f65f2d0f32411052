"""Mutation testing tests itself: a judge that is blind in one eye is found out, and a needless instruction is named."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from collectives import fused
from collectives.builder import ALL, Builder
from collectives.catalog import build, recipe
from collectives.recipes import Recipe
from cxlemu.cli import main
from cxlemu.cli.mutate_report import MutateReport
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call, Op, Plan
from cxlemu.plan.rules import check
from faults import witness
from faults.mutate import trial
from faults.mutate.cases import Case, can_check, cases, mixtures, plan_of, sequence, shipped
from faults.mutate.mutants import SYNCHRONIZING, Mutant, apply, mutants
from faults.mutate.sweep import Row, is_needless, sweep
from faults.mutate.trial import Fate, Trial
from faults.prove import prove, prove_calls
from faults.schedule import from_json
from faults.verdict import Verdict
from faults.witness import Kind, execute

NAIVE = Case("all_gather", "naive", 2)


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
    plan = plan_of(Case("all_reduce", "all", 2, in_place=True))
    made = Counter((m.rank, m.stream, m.at, m.kind) for m in mutants(plan))
    assert set(made.values()) == {1}
    for part in plan.parts:
        for s, stream in enumerate(part.streams):
            for at, instruction in enumerate(stream.instructions):
                kinds = {kind for rank, t, where, kind in made if (rank, t, where) == (part.rank, s, at)}
                if instruction.op not in SYNCHRONIZING:
                    assert not kinds
                    continue
                assert {"delete", "duplicate"} <= kinds
                if instruction.op in (Op.WAIT, Op.WAIT_ALL):
                    assert "value-1" in kinds
                if instruction.op == Op.WAIT_ALL:
                    assert {"without=0", "without=1"} <= kinds


@pytest.mark.parametrize("case", [NAIVE, Case("reduce", "line", 3), Case("all_reduce", "two_shot", 2)], ids=str)
def test_mutants_are_plans_that_all_differ(case: Case) -> None:
    plan = plan_of(case)
    digests = [apply(plan, m).digest for m in mutants(plan)]
    assert len({plan.digest, *digests}) == 1 + len(digests)


def test_a_mutant_changes_one_rank_only() -> None:
    plan = plan_of(NAIVE)
    for mutant in mutants(plan):
        assert apply(plan, mutant).part(1 - mutant.rank) == plan.part(1 - mutant.rank)


# --- cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3])
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


def fates(case: Case) -> Counter[Fate]:
    judge = Trial(case)
    return Counter(judge.judge(mutant).fate for mutant in judge.mutants())


@pytest.mark.parametrize(
    "case",
    [NAIVE, Case("broadcast", "all", 2), Case("all_reduce", "line", 2), Case("barrier", "line", 3)],
    ids=str,
)
def test_nothing_survives_and_nothing_is_needless(case: Case) -> None:
    judge = Trial(case)
    for mutant in judge.mutants():
        judgement = judge.judge(mutant)
        assert not judgement.fate.survived, judgement
        assert not is_needless(judge.plan, judgement), judgement


def test_plans_with_checksums_are_mutated_as_well() -> None:
    assert [can_check(Case("all_gather", variant, 2)) for variant in ("naive", "line", "zero_copy")] == [
        True,
        False,
        True,
    ]
    assert not can_check(Case("gather", "hierarchical", 4, cluster=2)) and not can_check(
        Case(fused.KINDS[0], "fused", 2)
    )
    case = Case("all_gather", "naive", 2, checked=True)
    assert {i.op for i in plan_of(case).part(0).streams[0].instructions} >= {Op.COMPUTE, Op.SIGNAL_DATA, Op.WAIT_DATA}
    found = fates(case)
    assert not any(fate.survived for fate in found) and found[Fate.CONFIRMED] > 30
    result = CliRunner().invoke(
        main, ["mutate", "--case", str(case), "--mutant", "0.0.4:delete", "--integrity", "crc32c"]
    )
    assert result.exit_code == 0 and "crc32c" in result.output, result.output


def judged(case: Case, op: Op, kind: str) -> set[Fate]:
    judge = Trial(case)
    at = {(m.rank, m.stream, m.at): m for m in judge.mutants() if m.kind == kind}
    return {
        judge.judge(m).fate
        for (rank, stream, where), m in at.items()
        if judge.plan.part(rank).streams[stream].instructions[where].op == op
    }


@pytest.mark.parametrize(
    ("op", "kind", "fate"),
    [
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
    ],
)
def test_what_becomes_of_each_kind(op: Op, kind: str, fate: Fate) -> None:
    assert judged(NAIVE, op, kind) == {fate}


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
    case = Case(collective, "all", 2)
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
    case = Case("all_gather", "all", 2)
    ours = recipe("all_gather", "all")
    monkeypatch.setattr(trial, "plan_of", lambda case: foreign(ours.algorithm, "all_gather"))
    judge = Trial(case)
    found = [judge.judge(mutant) for mutant in awaits(judge.plan)]
    assert [(j.fate, is_needless(judge.plan, j)) for j in found] == [(Fate.EQUIVALENT, True)] * 2


def test_a_signal_that_only_lets_others_go_on_sooner_is_not_needless() -> None:
    """In a ring of one slot the signal of the next round says as much, but only when that is published, too."""
    judge = Trial(Case("all_reduce", "zero_copy", 2, rounds=2))
    judgement = judge.judge(Mutant.parse("0.0.3:delete"))
    assert judgement.instruction == "SIGNAL" and judgement.fate is Fate.EQUIVALENT
    assert not is_needless(judge.plan, judgement)


def test_who_retrieves_nothing_says_once_that_it_is_done() -> None:
    plan = plan_of(Case("gather", "all", 2, rounds=2))
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
    chosen = [NAIVE, Case("barrier", "line", 2)]
    rows: dict[Case, Row] = {}
    with ThreadPoolExecutor(1) as executor:
        for row in sweep(chosen, executor):
            rows[row.case] = row
    assert list(rows) == chosen
    for row in rows.values():
        assert row.judged == row.mutants == row.killed + row.equivalent + row.survived
        assert row.fates == fates(row.case)
        assert row.killed == row.confirmed + row.refused and not row.needless


def test_the_report_fails_for_a_survivor_and_for_a_needless_instruction(tmp_path: Path) -> None:
    right = Trial(NAIVE)
    doubled = next(m for m in right.mutants() if m.kind == "duplicate" and m.at == 3)
    judgement = right.judge(doubled)
    for name in ("survivors", "needless"):
        row = Row(NAIVE, 1, Counter([judgement.fate]))
        getattr(row, name).append(judgement)
        with MutateReport([NAIVE], tmp_path / name) as report:
            report.update(row)
        assert report.bad
        [told] = json.loads((tmp_path / name).read_text())["rows"]
        assert [one["mutant"] for one in told[name]] == [str(doubled)]
    with MutateReport([NAIVE], None) as report:
        report.update(Row(NAIVE, 1, Counter([judgement.fate])))
    assert not report.bad


def test_the_command_counts_and_writes_json(tmp_path: Path) -> None:
    file = tmp_path / "mutants.json"
    result = CliRunner().invoke(main, ["mutate", "barrier", "-n", "2-3", "-j", "1", "--json", str(file)])
    assert result.exit_code == 0, result.output
    told = json.loads(file.read_text())
    assert [row["name"] for row in told["rows"]] == ["barrier line 2 ranks", "barrier line 3 ranks"]
    summary = told["summary"]
    assert told["complete"] and summary["survived"] == summary["needless"] == 0
    assert summary["mutants"] == summary["killed"] + summary["equivalent"] > 0


def test_the_command_shows_one_mutant_with_a_schedule_that_replays() -> None:
    arguments = ["mutate", "all_gather", "--case", str(NAIVE), "--mutant", "0.0.3:delete"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert "0.0.3:delete FLUSH: confirmed" in result.output and "did not flush" in result.output
    [line] = [line for line in result.output.splitlines() if line.startswith("schedule: ")]
    plan = plan_of(NAIVE)
    mutated = apply(plan, Mutant.parse("0.0.3:delete"))
    plans = [mutated if p is plan else p for p in sequence(NAIVE, plan, 0)]
    assert execute(plans, from_json(json.loads(line[len("schedule: ") :]))).kind is Kind.WRONG


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bcast"], "no collective 'bcast'"),
        (["--variant", "fast"], "no variant 'fast'"),
        (["barrier", "--variant", "naive"], "it has line"),
        (["-n", "1"], "2 to 8"),
        (["-n", "3-2"], "2 to 8"),
        (["--case", "nothing"], "no case 'nothing'"),
        (["--mutant", "0.0.0:delete"], "add --case"),
        (["--case", str(NAIVE), "--mutant", "0.0.0"], "RANK.STREAM.AT:KIND"),
        (["--case", str(NAIVE), "--mutant", "0.0.0:delete"], "has no mutant"),
        (["--json", "/nowhere/mutants.json"], "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(main, ["mutate", *arguments])
    assert result.exit_code == 2
    assert says in result.output and "Traceback" not in result.output


def test_forms_in_which_a_variant_synchronizes() -> None:
    assert [str(case) for case in cases("all_reduce", "zero_copy", 2)] == [
        "all_reduce zero_copy 2 ranks",
        "all_reduce zero_copy 2 ranks 2 rounds",
        "all_reduce zero_copy 2 ranks in place",
        "all_reduce zero_copy 2 ranks output in heap",
    ]
