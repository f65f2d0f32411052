"""Tuning on this machine: successive halving by hand, choices that race on real ranks, and the command."""

import json
from functools import partial
from pathlib import Path

import pytest

from collectives.choices import KINDS
from collectives.fused.choice import Operator, Tiling, call_of
from collectives.sweep.fused.halving import candidates, halve
from collectives.sweep.fused.measure import Job
from collectives.sweep.fused.race import Heat, race
from cxlemu.world import launch
from tests.helpers import commands

OPERATOR = Operator("gemm_reduce_scatter", 64, 16, 32, "f32")


class Machine:
    """One on which a call of choice k takes a given time; a clock that only its calls move."""

    def __init__(self, took_ns: dict[Tiling, int]) -> None:
        self.took_ns, self.now_ns = took_ns, 0
        self.raced: list[tuple[int, int]] = []  # choices, rounds

    def clock(self) -> float:
        return self.now_ns / 1e9

    def race(self, choices: tuple[Tiling, ...], rounds: int, limit_s: float) -> list[list[int]]:
        self.raced.append((len(choices), rounds))
        calls: list[list[int]] = [[] for _ in choices]
        ends_ns = self.now_ns + limit_s * 1e9
        for _ in range(rounds):
            for choice, its in zip(choices, calls, strict=True):
                its.append(self.took_ns[choice])
                self.now_ns += self.took_ns[choice]
                if self.now_ns > ends_ns:
                    return calls
        return calls


def choices_of(count: int) -> list[Tiling]:
    return [Tiling(comm_tile_rows=rows) for rows in range(1, count + 1)]


def test_halving_calls_fewer_and_fewer_more_and_more_often() -> None:
    choices = choices_of(27)
    machine = Machine({choice: 1000 - (choice.comm_tile_rows or 0) for choice in choices})
    heard: list[str] = []
    found = halve(choices, machine.race, 60, heard.append, machine.clock)
    assert machine.raced == [(27, 1), (10, 2), (4, 4), (3, 8)]  # a third each time, and the default
    assert (found.choice, found.fused_ns, found.tried) == (choices[-1], 1000 - 27, 27)
    assert [words.split(",")[0] for words in heard][:2] == ["27 choices 1 time", "10 choices 2 times"]


def test_what_is_found_is_not_slower_than_the_default() -> None:
    choices = choices_of(12)
    machine = Machine(dict.fromkeys(choices, 500) | {choices[0]: 100})
    assert halve(choices, machine.race, 60, clock=machine.clock).choice == choices[0]


@pytest.mark.parametrize("budget_s", [0.0, 5.0, 20.0])
def test_a_budget_is_kept_but_for_a_call(budget_s: float) -> None:
    choices = choices_of(48)
    machine = Machine(dict.fromkeys(choices, 10**9))
    found = halve(choices, machine.race, budget_s, clock=machine.clock)
    assert machine.clock() <= budget_s + 3  # each heat ends with the call in which its time is up
    assert 1 <= found.tried <= budget_s / 2 + 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("ranks", "m", "n", "k"), [(2, 2, 2, 2), (3, 21, 33, 9), (4, 4096, 1024, 2048)])
def test_every_candidate_can_be_called(kind: str, ranks: int, m: int, n: int, k: int) -> None:
    operator = Operator(kind, m, n, k, "f32")
    found = candidates(operator, ranks)
    assert len(found) == len(set(found))
    calls = [call_of(operator, "fused", ranks, choice) for choice in found]
    assert calls[0] == call_of(operator, "fused", ranks, Tiling())
    assert found == candidates(operator, ranks)  # in the same order each time


def test_ranks_agree_on_what_every_call_took() -> None:
    job = Job(OPERATOR, Tiling(), check=False, region_bytes=1 << 20)
    choices = tuple(candidates(OPERATOR, 2)[:3])
    seen = launch(partial(race, heat=Heat(job, choices, 2, 60.0)), ranks=2, topology="laptop", how="threads")
    assert seen[0] == seen[1]
    assert [len(calls) for calls in seen[0]] == [2, 2, 2]
    assert all(ns > 0 for calls in seen[0] for ns in calls)
    [short, _] = launch(partial(race, heat=Heat(job, choices, 2, 0.0)), ranks=2, topology="laptop", how="threads")
    assert [len(calls) for calls in short] == [1, 0, 0]


cxlemu = partial(commands.cxlemu, "fused", columns=160)


@pytest.mark.deep
def test_the_command_tunes_once_and_takes_that_again(tmp_path: Path) -> None:
    file, out = tmp_path / "tuned.json", tmp_path / "out.json"
    arguments = ["gemm_reduce_scatter", "-s", "64x16x32", "--iters", "1", "--tuned", str(file)]
    assert f"tried, kept in {file}" in cxlemu(*arguments, "--budget", "1", "--json", str(out), code=0).output
    [entry] = json.loads(file.read_text())["entries"]
    assert entry["machine"].startswith("six-cards on ")
    document = json.loads(out.read_text())
    assert document["choice"]["comm_tile_rows"] == entry["comm_tile_rows"]
    assert document["chosen"].startswith(f"the fastest of {entry['tried']} tried")
    assert f"the fastest of {entry['tried']} tried, from {file}" in cxlemu(*arguments, code=0).output


def test_what_the_tuner_chooses_is_not_given() -> None:
    done = cxlemu("all_gather_gemm", "--tune", "--order", "natural")
    assert (done.exit_code, "--order does not go with --tune, which chooses it" in done.output) == (2, True)
