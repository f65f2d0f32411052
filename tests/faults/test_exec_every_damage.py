"""``cxlemu exec --every`` with ``--poison every`` or ``--lose-card every``: damage at every place, and no more runs."""

import random
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cxlemu.cli import main
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.every.damage import DamageSearch
from faults.programs.every.events import EVICT, FETCH, RunEvent, Trace
from faults.programs.every.record import read
from faults.programs.every.search import Turns, _may_come_first
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import run
from faults.programs.servers import ForkServers
from faults.programs.turns import CRASH, POISON
from tests.faults.test_exec_every import EXAMPLES
from tests.faults.test_exec_every_crashes import invoke
from tests.helpers.pool_programs import build, on_x86

POOL = "/dev/shm/damage"
pytestmark = on_x86


def search(litmus: Path, words: str, what: str, **how: Any) -> tuple[set[str], DamageSearch]:
    """Damage what hosts use before the last stage; return what all loads saw, each command apart, and the search."""
    hosts = len(words.split(" :: ")[0].split(" : "))
    given = re.sub(r"(^|::? )", rf"\1{litmus} {POOL} ", words)
    setting = ExecSetting(
        parse_commands(given.split(), hosts), parse_pools([f"{POOL}=2M"]), hosts=hosts, check=False, every=True
    )

    def once(turns: Turns, sure: int) -> tuple[RunResult, Trace]:
        result = run(setting, RunChoice(None, 0, turns, ()), servers)
        return result, read(result.record, result.turns, sure)

    its = DamageSearch(once, what, setting.commands[-1].stage, **how)
    with ForkServers() as servers:
        found = {seen(result) for result in its.all() if result.ending is RunEnding.ENDED}
    assert its.strayed == its.incomplete == 0 and its.open_places() == 0, words
    return found, its


def seen(result: RunResult) -> str:
    """Write what each command saw: a value, or e for an error of the memory; ! where such an error has killed it."""
    exits = sorted(result.exits, key=lambda one: one.command)
    each = ("".join(load.partition("=")[2][:1] for load in one.output.split()) + "!" * (one.code < 0) for one in exits)
    return " ".join(each)


# What is seen in every interleaving with damage anywhere before the last stage. The line is 0 at first.
SEEN = {
    "a load": ("l:0 i:0 :: e l:0", {"0 0", "! e", "0 e"}),
    "a line that stays in the cache": ("e l:0 :: e l:0", {"0 0", "e e"}),
    "a store that arrives over it": ("e s:0:1 f:0 x :: e l:0", {" 1", "e e", " e"}),
    "a line that is overwritten whole": ("e o:0:1 f:0 x :: e l:0", {" 1", " e"}),
    "two hosts that overwrite it": (
        "e o:0:1 f:0 x : e i:0 l:0 :: e l:0",
        {" 0 1", " 1 1", " e 1", " 0 e", " 1 e", " e e"},
    ),
    "two hosts": ("e g:0:1 x : e l:0 :: e l:0", {" 0 1", " 1 1", " 0 e", " 1 e", " e e", " e 1", "e 0 e", "e e e"}),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_is_seen_is_what_the_model_allows(litmus: Path, name: str) -> None:
    words, allowed = SEEN[name]
    found, its = search(litmus, words, "poison")
    assert found == allowed
    assert 0 < its.faults < its.executions


def test_a_load_that_fails_is_tried_on_both_sides_of_what_arrives(litmus: Path) -> None:
    found, its = search(litmus, "e l:0 : e g:0:3 :: e l:0", "poison")
    assert found == {"0  0", "0 e 0", "3  3", "e  3", "e  e", "e e e"}
    assert its.executions == 8


def generated(seed: int) -> str:
    draw = random.Random(seed)
    first = ["s:0:1", "s:0:1 f:0", "s:0:1 f:0 x", "g:0:3", "n:0:2", "l:0", "l:0 i:0", "g:64:4"]
    second = ["l:0", "i:0 l:0", "g:0:5", "s:0:6", "l:64"]
    takes = "e " if seed % 3 else ""
    return f"{takes}{draw.choice(first)} : {takes}{draw.choice(second)} :: e l:0"


@pytest.mark.parametrize("what", ["poison", "lose"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.deep(rows=lambda seed, what: (seed, what) != (2, "poison"))
def test_damage_that_is_left_out_would_show_nothing_new(
    litmus: Path, seed: int, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, its = search(litmus, generated(seed), what)
    meets = RunEvent.breaks
    monkeypatch.setattr(  # it conflicts with every step, but breaks no other line
        RunEvent, "breaks", lambda self, lines: meets(self, lines) if isinstance(lines, list) else self.damages
    )
    more, whole = search(litmus, generated(seed), what)
    assert found == more, generated(seed)
    assert its.faults < whole.faults


@pytest.mark.parametrize(("action", "by_chance"), [(EVICT, True), (FETCH, False), (CRASH, True), (POISON, True)])
def test_what_need_not_happen_leaves_nothing_out_that_comes_beside_it(action: int, by_chance: bool) -> None:
    """As what was tried behind it has it, and may have no room for another one."""
    move = RunEvent((action, 0, 0, 0), 0)
    beside = {3: RunEvent(1, 1, fetched=frozenset({(0, 1)}))}
    assert (_may_come_first(move.actor, move, beside) is None) == by_chance


# --- programs --------------------------------------------------------------------------------------------------------


def mirror(*flags: str) -> list[str]:
    program = build(EXAMPLES / "mirror.c", *flags)
    return f"{program} write : {program} read :: {program} read".split()


def test_a_mistake_that_takes_an_interleaving_and_damage_is_found_and_repeats() -> None:
    pool, words = "/dev/shm/mirror", mirror("-DBUG")
    for alone in ("--every", "--poison every"):
        assert invoke(pool, f"{alone} --budget 10m", *words)[0].exit_code == 0
    result, told = invoke(pool, "--every --poison every --budget 10m", *words)
    assert result.exit_code == 1 and told["verdict"] == "violation"
    said = " ".join(result.output.split())
    assert "the value was lost" in said and "poisoned line at step" in said and ": line 0 of pool 0" in said
    again = CliRunner().invoke(main, ["exec", "--pool", f"{pool}=2M", "--replay", told["token"], "--", *words])
    assert again.exit_code == 1 and "exited with 1" in again.output
    assert "another trace" not in again.output


@pytest.mark.parametrize("flag", ["--poison", "--lose-card"])
def test_a_right_program_is_ok_with_damage_at_every_place(flag: str) -> None:
    result, told = invoke("/dev/shm/mirror", f"--every {flag} every --budget 10m", *mirror())
    assert result.exit_code == 0, result.output
    its = told["every"]
    assert its["undecided"] == []
    assert 0 < its["damage"]["met"] <= its["damage"]["executions"] < its["executions"]
    what = {"--poison": "poisoned line", "--lose-card": "lost card"}[flag]
    assert f"ok: every {what} in every interleaving, " in " ".join(result.output.split())


def test_a_damaged_search_tells_whether_an_access_met_it(litmus: Path) -> None:
    result, told = invoke(POOL, "--every --poison every --no-check", *f"{litmus} {POOL} x :: {litmus} {POOL} x".split())
    assert result.exit_code == 3 and not told["every"]["damage"]["met"], result.output
