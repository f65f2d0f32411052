"""``cxlemu exec --poison every`` and ``--lose-card every``: lines and cards break wherever somebody can tell."""

import json
import platform
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from faults.programs.commands import parse_commands, parse_pools
from faults.programs.damage import damage_everywhere
from faults.programs.result import ExecSetting, RunChoice, RunResult
from faults.programs.run import run
from tests.faults.test_exec_crashes import POOL, generated, invoke
from tests.faults.test_exec_every import EXAMPLES
from tests.helpers.pool_programs import build

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the programs have instructions of x86-64"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles programs with gcc, which is not here"),
]
COPIES = ("--pool", "/dev/shm/first=2M", "--pool", "/dev/shm/second=2M")


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(EXAMPLES / "two_copies.c")


def seen(result: RunResult) -> str:
    return str((result.ending, sorted((its.command, its.code, its.output) for its in result.exits)))


@pytest.mark.parametrize("what", ["poison", "lose"])
@pytest.mark.parametrize("seed", range(16))
@pytest.mark.deep(rows=lambda seed, what: seed > 1 or (seed == 1 and what == "lose"))
def test_places_that_are_left_out_would_show_nothing_new(litmus: Path, seed: int, what: str) -> None:
    """In programs that take errors for what they have seen; every other one is killed by the first of them."""
    takes = "e " if seed % 2 else ""
    hosts = [f"{litmus} {POOL} {takes}{its}" for its in generated(seed).split(" : ")]
    words = f"{' : '.join(hosts)} :: {litmus} {POOL} e l:0 l:8 l:64"
    its = ExecSetting(parse_commands(words.split(), 2), parse_pools([f"{POOL}=2M"]), check=False)
    *_, (_, covered) = runs = list(damage_everywhere(its, what, 600))
    assert covered.failed is None and not covered.undecided
    first = run(replace(its, commands=its.commands[:-1]), RunChoice(None, 0))
    places = [(0, line, step) for step in range(1, first.steps + 2) for line in (0, 64)]
    places = places if what == "poison" else [(0, step) for _, line, step in places if not line]  # type: ignore[misc]
    whole = {seen(run(replace(its, **{what: place}), RunChoice(None, 0, losses=()))) for place in places}  # type: ignore[arg-type]
    untouched = {seen(runs[0][0])}  # by damage of a line that nobody reads
    assert {seen(result) for result, _ in runs} == whole | untouched


@pytest.mark.parametrize("flag", ["--poison", "--lose-card"])
def test_two_copies_outlive_it(copies: Path, flag: str) -> None:
    result = invoke(*COPIES, flag, "every", "--json", "-", "--", copies, "put", "::", copies, "repair")
    assert result.exit_code == 0, result.output
    damage = json.loads(result.stdout)["damage"]
    assert (damage["tried"], damage["met"], damage["left"]) == (
        6,
        6,
        0,
    )  # at the beginning, and behind each of four arrivals


@pytest.mark.parametrize(
    ("flag", "where"), [("--poison", "poisoned line at step"), ("--lose-card", "lost card at step")]
)
def test_a_program_that_cannot_live_with_it_is_found_and_repeats(tmp_path: Path, flag: str, where: str) -> None:
    broken = build(EXAMPLES / "two_copies.c", "-DBUG")
    result = invoke(*COPIES, flag, "every", "--", broken, "put", "::", broken, "repair")
    said = " ".join(result.output.split())
    assert result.exit_code == 1 and f"violation: {where}" in said and "was killed by signal 7" in said
    (again,) = [line for line in result.output.splitlines() if line.startswith("again: ")]
    repeated = invoke(*shlex.split(again.removeprefix("again: "))[2:])
    assert flag in again and repeated.exit_code == 1 and "another trace" not in repeated.output
    assert "was killed by signal 7" in " ".join(repeated.output.split())


def test_a_program_that_is_killed_by_it_is_no_mistake_before_the_last_stage(litmus: Path) -> None:
    """It leaves a store without a flush, which its host still has: neither that nor what others see is one."""
    words = f"{litmus} {POOL} s:64:1 i:0 l:0 f:64 x :: @1 {litmus} {POOL} e l:64".split()
    result = invoke("--pool", f"{POOL}=2M", "--poison", "every", "--json", "-", "--", *words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["damage"]["met"] > 0


@pytest.mark.parametrize("fault", ["poison", "lose-card", "crash"])
def test_where_no_program_opens_a_pool_nothing_is_judged(tmp_path: Path, fault: str) -> None:
    (tmp_path / "idle.c").write_text("int main(void) { return 0; }")
    idle = str(build(tmp_path / "idle.c"))
    result = invoke("--pool", f"{POOL}=2M", "--every", f"--{fault}", "every", "--", idle, "::", idle)
    assert result.exit_code == 3, result.output
    assert "no program touched a pool" in " ".join(result.output.split())
