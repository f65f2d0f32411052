"""``cxlemu exec --every --crash every``: every crash of every interleaving, and no more runs than that takes."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cxlemu.cli import main
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.crashes import Losses
from faults.programs.every import record
from faults.programs.every.crashes import CrashSearch
from faults.programs.every.events import RunEvent, Trace
from faults.programs.every.explore import EveryLimits, explore
from faults.programs.every.search import Turns
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import run
from faults.programs.servers import ForkServers
from faults.verdict import Verdict
from tests.faults.test_exec_every import EXAMPLES, explore_until
from tests.helpers.pool_programs import build, on_x86

POOL = "/dev/shm/crashes"
pytestmark = on_x86


def search(litmus: Path, words: str, **how: Any) -> tuple[set[str], CrashSearch]:
    """Crash host 0 of hosts with these steps; return what all loads of the others saw, and the search.

    Behind ``::`` are the steps of hosts that recover.
    """
    stages = [stage.split(" : ") for stage in words.split(" :: ")]
    hosts = list(enumerate(its for stage in stages for its in stage))
    first, last = hosts[: len(stages[0])], hosts[len(stages[0]) :]
    given = (" : ".join(f"@{host} {litmus} {POOL} {its}" for host, its in stage) for stage in (first, last))
    commands = parse_commands(" :: ".join(given).split(), len(hosts))
    setting = ExecSetting(commands, parse_pools([f"{POOL}=2M"]), hosts=len(hosts), check=False, every=True)

    def once(turns: Turns, sure: int, losses: Losses) -> tuple[RunResult, Trace]:
        result = run(setting, RunChoice(None, 0, turns, losses), servers)
        return result, record.read(result.record, result.turns, sure)

    its = CrashSearch(once, 0, commands[-1].stage, **how)
    with ForkServers() as servers:
        found = {seen(result) for result in its.all() if result.ending is RunEnding.ENDED}
    assert its.strayed == its.incomplete == 0 and its.open_places() == 0
    return found, its


def seen(result: RunResult) -> str:
    exits = [one.output.split() for one in sorted(result.exits, key=lambda one: one.command) if one.command]
    return " ".join("".join(load.partition("=")[2] for load in loads) for loads in exits)


# What host 1 sees and what is left, in every interleaving with a crash of host 0 anywhere.
LEFT = {
    "a store": ("s:0:1 f:0 x : l:0 :: i:0 l:0", {"0 0", "0 1", "1 1"}),
    "what was seen is not lost": ("g:0:1 g:64:1 : i:64 l:64 i:0 l:0 :: i:0 l:0", {"00 0", "00 1", "01 1", "11 1"}),
    "what was not seen may arrive": ("s:0:1 f:0 x : l:0 i:0 l:0 :: i:0 l:0", {"00 0", "00 1", "01 1", "11 1"}),
    "recovery in any order": ("s:0:1 : x :: i:0 l:0 : i:0 l:0 g:0:2", {" 0 0", " 2 0", " 1 1", " 2 1"}),
    # Host 1 looks before the second store, which is sure to arrive; the first one is not then, and not before.
    "a look between two stores": (
        "s:0:1 g:64:1 : l:0 :: i:0 l:0 i:64 l:64",
        {"0 00", "0 10", "0 01", "0 11", "1 10", "1 11"},
    ),
    # It may be written back behind what another host has stored since.
    "a store of what is there": ("s:0:0 g:64:1 : i:64 l:64 g:0:3 :: i:0 l:0", {"0 0", "0 3", "1 0", "1 3"}),
    "past the cache, other words stay": ("n:0:1 : n:8:2 x :: i:0 l:0 l:8", {" 02", " 12"}),
    "a line that the last stage had before": ("s:0:1 : l:0 :: l:0", {"0 0", "0 1", "1 0", "1 1"}),
}


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.deep(rows=lambda name: name in ("what was seen is not lost", "what was not seen may arrive"))
def test_what_is_seen_and_left_is_what_the_model_allows(litmus: Path, name: str) -> None:
    words, allowed = LEFT[name]
    found, its = search(litmus, words)
    assert found == allowed
    assert its.faults > 1 and its.leaves


def generated(seed: int) -> str:
    draw = random.Random(seed)
    first = ["s:0:1", "s:64:1", "s:0:2", "f:0", "f:64", "x", "g:0:3", "n:64:2", "l:0", "g:64:4"]
    second = ["l:0", "l:64", "i:0", "i:64", "g:0:5", "s:0:6"]
    return f"{draw.choice(first)} {draw.choice(first)} : {draw.choice(second)} :: l:0 l:64"


def conflicting(patch: pytest.MonkeyPatch) -> None:
    """Let a crash conflict with each step of its host, and each step of others on a line."""
    fill = record._Reader._fill

    def filled(self: record._Reader, event: RunEvent, *more: Any) -> None:
        fill(self, event, *more)
        event.leaves = True

    patch.setattr(record._Reader, "_fill", filled)
    patch.setattr(record.LeftLines, "of", lambda self, host: frozenset({(0, 0), (0, 1)}))


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.deep(rows=lambda seed: seed != 6)
def test_crashes_that_are_left_out_would_show_nothing_new(
    litmus: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, its = search(litmus, generated(seed))
    conflicting(monkeypatch)
    more, whole = search(litmus, generated(seed))
    assert found == more, generated(seed)
    assert its.faults < whole.faults


# --- programs --------------------------------------------------------------------------------------------------------


def invoke(pool: str, flags: str, *words: object) -> tuple[Result, dict[str, Any]]:
    its = CliRunner().invoke(
        main, ["exec", "--pool", f"{pool}=2M", *flags.split(), "--json", "-", "--", *map(str, words)]
    )
    return its, json.loads(its.stdout) if its.exit_code != 2 else {}


def handover(*flags: str) -> list[str]:
    program = build(EXAMPLES / "handover.c", *flags)
    return f"{program} first : {program} second :: @0 {program} recover".split()


BOTH = "--every --crash every --budget 10m"


def test_a_mistake_that_takes_an_interleaving_and_a_crash_is_found_and_repeats() -> None:
    pool, words = "/dev/shm/handover", handover("-DBUG")
    for alone in ("--every", "--crash every"):
        assert invoke(pool, f"{alone} --budget 10m", *words)[0].exit_code == 0
    result, told = invoke(pool, BOTH, *words)
    assert result.exit_code == 1 and told["verdict"] == "violation"
    said = " ".join(result.output.split())
    assert "what host 1 has changed is lost" in said
    assert "host 0 crashed at step" in said and "behind its store at" in said
    again = CliRunner().invoke(main, ["exec", "--pool", f"{pool}=2M", "--replay", told["token"], "--", *words])
    assert again.exit_code == 1 and "lost-in-crash" in again.output
    assert "another trace" not in again.output


@pytest.mark.parametrize("flags", ["", pytest.param(" --preemptions 1", marks=pytest.mark.deep)])
def test_a_right_program_is_ok_at_every_crash_of_every_interleaving(flags: str) -> None:
    result, told = invoke("/dev/shm/handover", BOTH + flags, *handover())
    assert result.exit_code == 0, result.output
    its = told["every"]
    assert its["crashes"]["hosts"] == [0, 1] and its["undecided"] == []
    assert 10 < its["crashes"]["executions"] < its["executions"] <= its["runs"]
    bound = " of at most 1 preemption" * bool(flags)
    assert f"ok: every crash of host 0 or host 1 in every interleaving{bound}, " in " ".join(result.output.split())


@pytest.mark.parametrize("bug", [False, True])
def test_of_one_host_the_verdict_is_that_of_its_crashes(bug: bool) -> None:
    program = build(EXAMPLES / "undo_log.c", *["-DBUG"] * bug)
    result, told = invoke("/dev/shm/bank", BOTH, *f"{program} transfer :: {program} recover".split())
    assert result.exit_code == bug, result.output
    kinds = {its["kind"] for its in told["found"]["findings"]}
    assert kinds == ({"lost-in-crash"} if bug else set())  # and not that lines are dirty at the end


def test_a_line_that_is_never_flushed_is_a_finding_where_no_crash_tells_of_it(litmus: Path) -> None:
    result, told = invoke(POOL, BOTH, *f"{litmus} {POOL} s:0:1 :: {litmus} {POOL} l:0".split())
    assert result.exit_code == 1 and [its["rule"] for its in told["found"]["findings"]] == ["exit"]
    assert told["every"]["crashes"]["executions"] > 1


@pytest.mark.parametrize("limits", [EveryLimits(crashes=(0, 1)), EveryLimits(damage="poison")])
def test_a_search_with_faults_that_is_resumed_comes_to_what_one_call_comes_to(
    litmus: Path, tmp_path: Path, limits: EveryLimits
) -> None:
    words = f"{litmus} {POOL} e g:0:1 : {litmus} {POOL} e g:64:1 :: @0 {litmus} {POOL} e l:0 l:64".split()
    its = ExecSetting(parse_commands(words, 2), parse_pools([f"{POOL}=2M"]), check=False, deadline_s=600)
    limits = replace(limits, budget_s=600)
    *_, (_, whole) = runs = list(explore(its, limits))
    expected, found, executions = {seen(result) for result, _ in runs}, set[str](), 0
    while executions < whole.executions:
        *more, (_, covered) = explore_until(its, tmp_path / "journal", executions + 2, limits)
        found |= {seen(result) for result, _ in more}
        assert covered.resumed == executions
        executions = covered.executions
    *_, (_, covered) = explore(its, limits, resume=tmp_path / "journal")
    assert whole.verdict is covered.verdict is Verdict.OK and found == expected
    assert (covered.executions, covered.faults, covered.met) == (whole.executions, whole.faults, whole.met)


def test_a_spent_budget_is_unknown_and_says_what_was_covered(litmus: Path) -> None:
    many = " ".join(f"g:{64 * k}:1" for k in range(8))
    words = f"{litmus} {POOL} {many} : {litmus} {POOL} {many} :: {litmus} {POOL} l:0".split()
    result, told = invoke(POOL, "--every --crash every --budget 0.3s --no-check", *words)
    assert result.exit_code == 3 and told["verdict"] == "unknown"
    assert "the budget of 0.3 s is spent" in result.output and "unknown: " in result.output
