"""Tokens of what mutation testing shows: any calls on one ring, a mistake in some, a schedule."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cxlemu.plan import Op
from faults.cli import replay_run
from faults.lockstep.counterexample import CounterexampleKind
from faults.lockstep.orders import hasty
from faults.mutate.cases import MutationCase
from faults.mutate.mutants import Mutant, apply
from faults.mutate.trial import Trial
from faults.replay.calls import token_of
from faults.replay.replay import replay
from faults.token import Token, parse
from tests.helpers.commands import cxlemu
from tests.helpers.own_algorithms import TO_ONE_RANK
from tests.helpers.tables import with_rows


def shown_token(mutant: str = "1.0.7:delete", case: MutationCase = MutationCase("all_gather", "naive", 2)) -> Token:  # noqa: B008
    trial = Trial(case)
    program = trial.program(1)
    shown = program.with_plan(trial.plan, apply(trial.plan, Mutant.parse(mutant))).run(hasty(1))
    assert shown.kind is CounterexampleKind.WRONG
    return token_of(program.plans, shown, mutated=trial.plan, mutant=mutant)


@pytest.mark.parametrize("variant", ["naive", "zero_copy"])
def test_an_execution_is_reproduced_from_its_token(variant: str) -> None:
    trial = Trial(MutationCase("all_gather", variant, 2))
    stream, at = next(
        (stream, at)
        for stream, one in enumerate(trial.plan.part(1).streams)
        for at, instruction in enumerate(one.instructions)
        if instruction.op is Op.INVALIDATE
    )
    word = str(shown_token(f"1.{stream}.{at}:delete", trial.case))
    assert "fails again, exactly as recorded: wrong bytes" in cxlemu("replay", word, code=1).output


def test_it_can_be_drawn(tmp_path: Path) -> None:
    assert cxlemu("replay", shown_token(), "--svg", tmp_path / "p.svg").exit_code == 1
    assert ">reads v2, should be v3<" in (tmp_path / "p.svg").read_text()


def test_a_failure_that_cannot_be_drawn_is_still_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_run, "replay", lambda *asked: replace(replay(*asked), picture=lambda: None))
    result = cxlemu("replay", shown_token(), "--svg", tmp_path / "p.svg", code=1)
    assert "--svg: nothing is drawn, because no rank reads a cache line wrong" in result.output


def changed(**changes: Any) -> Token:
    token = shown_token()
    return Token(token.kind, dict(token.body) | changes)


def test_plans_that_have_changed_since_are_noticed() -> None:
    result = cxlemu("replay", changed(plans="0" * 64), code=1)
    assert "the plans that are built here differ from those that failed" in result.output


def test_plans_without_the_mistake_are_others_and_nothing_is_known_of_the_failure() -> None:
    calls = [{name: value for name, value in call.items() if name != "mutant"} for call in shown_token().body["calls"]]
    output = cxlemu("replay", changed(calls=calls), code=3).output
    assert "not reproduced: the plans that are built here differ from those that failed" in output


RING = dict(shown_token().body["ring"])


@with_rows(
    {"calls": []},
    {"calls": [{"collective": "all_gather"}]},
    {"ring": RING | {"slots": 0}},
    {"ring": RING | {"slots": 4096, "slot_card_bytes": 1 << 26}},
    {"ring": RING | {"ranks": 3}},
    {"moves": "x"},
    {"moves": [["jump", 1]]},
    {"plans": "x"},
    {"more": 1},
    {"algorithm": "x.py:f"},
)
def test_a_foreign_token_is_one_sentence(changes: dict[str, Any]) -> None:
    result = cxlemu("replay", changed(**changes), code=2)
    assert result.output.count("\n") == 1 and result.output.startswith("cxlemu: ")


def test_mutate_prints_the_command() -> None:
    result = cxlemu("mutate", "all_gather", "--case", "all_gather naive 2 ranks", "--mutant", "1.0.7:delete")
    (word,) = [line.split()[-1] for line in result.output.splitlines() if line.startswith("again: cxlemu replay ")]
    assert parse(word).kind == "calls"
    assert cxlemu("replay", word).exit_code == 1


def test_a_violation_that_the_prover_finds_has_a_token(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(TO_ONE_RANK)
    own = f"{tmp_path / 'own.py'}:mine"
    result = cxlemu("prove", "--algorithm", own, "-n", 3, "-b", 600, code=1)
    (command,) = [line.split("again: ")[1] for line in result.output.splitlines() if "again: " in line]
    assert command.endswith(f" --algorithm {own}")
    assert "fails again, exactly as recorded: wrong bytes" in cxlemu(*command.split()[1:], code=1).output
    assert cxlemu("replay", command.split()[2]).exit_code == 2  # executes nothing that a token names
