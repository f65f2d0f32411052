"""Programs as they are, not recompiled: their own flushes and fences are followed, their pages are their host's."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from cxlemu import program
from cxlemu.cli import main
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import run

SOURCES = Path(__file__).parent / "programs"
Build = Callable[..., Path]

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="programs as they are can be followed on x86-64 only"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles programs with gcc, which is not here"),
]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compile a source as anybody would."""
    folder = tmp_path_factory.mktemp("programs")
    built: dict[tuple[str, ...], Path] = {}

    def build(source: str, *flags: str) -> Path:
        key = (source, *flags)
        if key not in built:
            target = folder / f"{Path(source).stem}{len(built)}"
            includes = ["-I", str(program.include_dir())]
            command = ["gcc", "-O2", "-g", "-pthread", *includes, *flags, str(SOURCES / source), "-o", str(target)]
            subprocess.run(command, check=True, timeout=120)
            built[key] = target
        return built[key]

    return build


def setting(words: str, pool: Path, size: str = "4M", **more: object) -> ExecSetting:
    pools = parse_pools([f"{pool}={size}"])
    return ExecSetting(parse_commands(words.split(), 2), pools, check=False, **more)  # type: ignore[arg-type]


def queue(program: Path) -> ExecSetting:
    pool = program.with_suffix(".pool")
    words = f"{program} {pool} new :: {program} {pool} produce : {program} {pool} consume"
    return setting(words, pool, idle_budget=8_000)


def failure(its: ExecSetting, choices: list[RunChoice]) -> RunResult | None:
    for choice in choices:
        result = run(its, choice)
        if result.failed:
            return result
        assert result.ending is RunEnding.ENDED
    return None


WORST = [RunChoice(None, schedule) for schedule in (0, 2, 6)]


def seeds(count: int) -> list[RunChoice]:
    return [RunChoice(k, k) for k in range(count)]


# --- the queue --------------------------------------------------------------------------------------------------------


def test_a_right_queue_is_right(build: Build) -> None:
    assert failure(queue(build("queue.c")), WORST + seeds(8)) is None


@pytest.mark.deep
def test_a_right_queue_is_right_for_fifty_seeds(build: Build) -> None:
    assert failure(queue(build("queue.c")), seeds(50)) is None


# of tests/faults/programs/queue.c, in its order; the second shows where its line arrives before the entry
MISTAKES = [pytest.param(n, marks=[] if n in (1, 2, 9, 10) else pytest.mark.deep) for n in range(1, 11)]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows_in_what_the_program_does(build: Build, mistake: int) -> None:
    failed = failure(queue(build("queue.c", f"-DMISTAKE={mistake}")), WORST + seeds(10))
    assert failed is not None
    assert failed.ending in (RunEnding.FAILED, RunEnding.NO_PROGRESS)


@pytest.mark.parametrize("choice", [RunChoice(None, 0), RunChoice(3, 3)], ids=str)
def test_the_same_choice_is_the_same_trace(build: Build, choice: RunChoice) -> None:
    runs = [run(queue(build("queue.c")), choice) for _ in range(4)]
    assert len({(its.trace, its.steps) for its in runs}) == 1


# --- instructions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [("-fPIE", "-pie"), ("-fno-PIE", "-no-pie")], ids=["pie", "no-pie"])
@pytest.mark.parametrize("choice", [RunChoice(None, 0), RunChoice(1, 1)], ids=str)
def test_each_form_does_what_it_does_untouched(
    build: Build, flags: tuple[str, ...], choice: RunChoice, tmp_path: Path
) -> None:
    forms = build("forms.c", "-O1", "-mclwb", "-mcx16", *flags)
    alone = subprocess.run([forms, tmp_path / "file"], capture_output=True, text=True, check=False)
    result = run(setting(f"{forms} {tmp_path / 'pool'}", tmp_path / "pool"), choice)
    assert alone.stdout == "all forms are right\n"
    assert [(its.code, its.output) for its in result.exits] == [(0, alone.stdout)]
    assert result.steps > 50  # those on the pool are steps


# --- pages, signals, threads, children, libraries ---------------------------------------------------------------------


@pytest.mark.parametrize("choice", [RunChoice(None, 1), RunChoice(2, 2)], ids=str)
def test_what_programs_do_around_a_pool(build: Build, choice: RunChoice, tmp_path: Path) -> None:
    around, late = build("surroundings.c", "-mclwb"), build("late.c", "-shared", "-fPIC")
    pool = tmp_path / "pool"
    words = f"{around} {pool} {late} first :: @1 {around} {pool} after"
    result = run(setting(words, pool, "64M"), choice)
    assert [its.code for its in result.exits] == [0, 0]
    said = "".join(its.output for its in result.exits)
    assert "handles SIGTRAP itself" in said
    wrong = [line for line in said.splitlines() if line.endswith("wrong")]
    # an eviction may publish what was not flushed
    assert wrong == [] or (choice.seed is not None and wrong == ["what was not flushed: wrong"])
    assert said.count(": right") + len(wrong) == 16


# --- Python -----------------------------------------------------------------------------------------------------------


def python_pages(pool: Path, how: str) -> ExecSetting:
    script = f"{sys.executable} {SOURCES / 'pages.py'} {pool}"
    return setting(f"{script} new {how} :: {script} write {how} : {script} read {how}", pool)


def test_an_unmodified_python_is_followed(tmp_path: Path) -> None:
    result = run(python_pages(tmp_path / "pool", "flush"), RunChoice(1, 1))
    assert [(its.code, its.output) for its in result.exits] == [(0, ""), (0, ""), (0, "")]


@pytest.mark.deep
def test_an_unmodified_python_is_right_for_ten_seeds(tmp_path: Path) -> None:
    assert failure(python_pages(tmp_path / "pool", "flush"), WORST + seeds(10)) is None


@pytest.mark.deep
def test_a_header_that_is_msynced_and_not_flushed_is_not_there(tmp_path: Path) -> None:
    failed = failure(python_pages(tmp_path / "pool", "msync"), WORST + seeds(10))
    assert failed is not None
    assert any("the header is 0" in its.output for its in failed.exits)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_which_programs_are_preloaded(build: Build, tmp_path: Path) -> None:
    right, pool = build("queue.c"), tmp_path / "pool"
    commands = f"{right} {pool} new :: {right} {pool} produce : {right} {pool} consume"
    done = CliRunner().invoke(main, f"exec --pool {pool}=4M --seeds 0 -- {commands}".split())
    assert done.exit_code == 0, done.output
    assert f"# {right.name}: not compiled with cxlemu cc, so preloaded" in done.output.replace("\n", " ")


def test_the_command_refuses_what_it_could_not_follow(build: Build, tmp_path: Path) -> None:
    static = build("late.c", "-static", "-nostartfiles", "-Wl,-e,publish")
    done = CliRunner().invoke(main, f"exec --pool {tmp_path / 'pool'}=4M -- {static}".split())
    assert done.exit_code == 2
    assert "statically linked" in done.output.replace("\n", " ")


@pytest.mark.parametrize("flag", ["--poison=64@9", "--lose-card=0@9", "--link-down=0@9"])
def test_the_command_refuses_what_only_loads_that_are_seen_could_show(build: Build, flag: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, f"exec --pool {tmp_path / 'pool'}=4M {flag} -- {build('queue.c')}".split())
    assert done.exit_code == 2
    assert "its loads are not seen" in done.output.replace("\n", " ")
