"""What `cxlemu exec` breaks, in programs that are recompiled and that are preloaded: links, cards, lines, hosts."""

from __future__ import annotations

import platform
import signal
import subprocess
from pathlib import Path

import pytest

from cxlemu import program
from cxlemu.errors import ArgumentError
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.compile import compiler, compiler_arguments, is_clang
from faults.programs.findings import KINDS, ProgramFinding
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult, unfired
from faults.programs.run import run

SOURCE = Path(__file__).parent / "programs" / "handed.c"
WORST = RunChoice(None, 0)


@pytest.fixture(scope="module", params=["recompiled", "preloaded"])
def handed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("handed") / str(request.param)
    words = ["-O2", "-g", str(SOURCE), "-o", str(target)]
    try:
        command = compiler("c")
    except ArgumentError as error:
        pytest.skip(str(error))
    if request.param == "recompiled":
        words = compiler_arguments("c", words, clang=is_clang(command[-1]))
    elif platform.machine() != "x86_64":
        pytest.skip("programs as they are can be followed on x86-64 only")
    else:
        words = ["-I", str(program.include_dir()), *words]
    subprocess.run([*command, *words], check=True, timeout=120)
    return target


def after(handed: Path, words: str, **more: object) -> RunResult:
    """Runs ``words``, in which H stands for the program and its pool, in the worst case, or with ``choice``."""
    pool = handed.with_suffix(".pool")
    choice = more.pop("choice", WORST)
    assert isinstance(choice, RunChoice)
    parsed = parse_commands(words.replace("H", f"{handed} {pool}").split(), 2)
    return run(ExecSetting(parsed, parse_pools([f"{pool}=64K"]), **more), choice)  # type: ignore[arg-type]


def codes(result: RunResult) -> list[int]:
    return [one.code for one in result.exits]


def kinds(result: RunResult) -> list[str]:
    return [KINDS[ProgramFinding.one(bytes(raw)).kind].name for raw in result.findings]


def test_what_is_handed_on_is_there(handed: Path) -> None:
    result = after(handed, "H store :: @1 H value")
    assert codes(result) == [0, 0] and result.exits[1].output == "7\n" and kinds(result) == []


def test_a_link_that_is_down_loses_stores_and_fails_loads(handed: Path) -> None:
    lost = after(
        handed, "H store :: @1 H value", link_down=(0, 4)
    )  # the store is in the cache by then, and posted later
    assert codes(lost) == [0, 0] and lost.exits[1].output == "0\n"
    failing = after(handed, "H store :: @1 H value", link_down=(1, 1))
    assert codes(failing) == [0, -signal.SIGBUS]
    other = after(handed, "H store :: @0 H value", link_down=(1, 1))
    assert codes(other) == [0, 0] and other.exits[1].output == "7\n"


def test_a_lost_card_fails_the_loads_of_every_host(handed: Path) -> None:
    for host in (0, 1):
        result = after(handed, f"H store :: @{host} H value", lose=(0, 1))
        assert -signal.SIGBUS in codes(result)


def test_a_poisoned_line_fails_its_loads_and_no_others(handed: Path) -> None:
    assert codes(after(handed, "H store :: @1 H value", poison=(0, 0, 1)))[-1] == -signal.SIGBUS
    beside = after(handed, "H store :: @1 H value", poison=(0, 64, 1))
    assert codes(beside) == [0, 0] and beside.exits[1].output == "7\n"


def test_a_cache_outlives_its_processes_and_not_its_host(handed: Path) -> None:
    """A dirty word is there for the host's next process; a crash in between takes it, and what was published stays."""
    alive = after(handed, "H store :: H dirty :: H value")
    assert alive.exits[2].output == "8\n" and "dirty-at-exit" in kinds(alive)
    elsewhere = after(handed, "H store :: H dirty :: @1 H value")
    assert elsewhere.exits[2].output == "7\n"
    for step in range(alive.steps + 1, alive.steps + 40):
        crashed = after(handed, "H store :: H dirty :: H again :: H value", crash=(0, step))
        if codes(crashed) == [0, 0, -signal.SIGKILL, 0]:
            assert crashed.exits[3].output == "7\n" and "lost-update" not in kinds(crashed)
            return
    pytest.fail("no crash hit the third command")


def test_a_locked_instruction_in_assembly_is_seen(handed: Path) -> None:
    result = after(handed, "H locked : H locked")
    assert codes(result) == [0, 0] and result.ending is RunEnding.ENDED and result.unannounced == 0
    assert set(kinds(result)) == {"locked-across-hosts"}


def test_a_store_in_assembly_is_found_where_nobody_saw_it(handed: Path) -> None:
    result = after(handed, "H hidden")
    if handed.name == "recompiled":
        assert result.unannounced == 1 and codes(result) == [0] and kinds(result) == []
    else:
        assert result.unannounced == 0 and codes(result) == [0] and kinds(result) == []


@pytest.mark.parametrize(
    ("broken", "flag", "said"),
    [
        ({"crash": (0, 99_999)}, "--crash", "never happened: it is at step 99999"),
        ({"crash": (0, 0)}, "--crash", "never happened: it is at step 0"),
        ({"link_down": (1, 99_999)}, "--link-down", "never happened"),
        ({"lose": (0, 99_999)}, "--lose-card", "never happened"),
        ({"poison": (0, 0, 99_999)}, "--poison", "never happened"),
        ({"poison": (0, 32 << 10, 1)}, "--poison", "changed nothing: no access met it"),
        ({"link_down": (1, 1)}, "--link-down", "changed nothing: no access met it"),
    ],
)
def test_a_fault_that_never_happened_or_that_nothing_met_is_told(
    handed: Path, broken: dict[str, object], flag: str, said: str
) -> None:
    result = after(handed, "H store :: @0 H value", **broken)
    assert list(result.unfired) == [flag] and said in result.unfired[flag]
    assert unfired([result]) == [result.unfired[flag]]
    assert unfired([result, after(handed, "H store :: @0 H value")]) == []


def test_a_fault_that_was_met_is_not_told(handed: Path) -> None:
    for broken in ({"link_down": (1, 1)}, {"lose": (0, 1)}, {"crash": (0, 1)}):
        assert after(handed, "H store :: @1 H value", **broken).unfired == {}
