"""Programs as they are, not recompiled: their own flushes and fences are followed, their pages are their host's."""

import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cxlemu import program
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.findings import KINDS
from faults.programs.judge import report_of
from faults.programs.result import ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import run
from faults.programs.words import text
from tests.helpers.commands import cxlemu
from tests.helpers.compilers import installed
from tests.helpers.pool_programs import SOURCES, built, on_x86

build = partial(built, "preloaded")
pytestmark = on_x86


def setting(words: str, pool: Path, size: str = "4M", check: bool = False, **more: object) -> ExecSetting:
    pools = parse_pools([f"{pool}={size}"])
    return ExecSetting(parse_commands(words.split(), 2), pools, check=check, **more)  # type: ignore[arg-type]


def queue(program: Path, **more: object) -> ExecSetting:
    pool = program.with_suffix(".pool")
    words = f"{program} {pool} new :: {program} {pool} produce : {program} {pool} consume"
    return setting(words, pool, **{"idle_budget": 8_000, **more})  # type: ignore[arg-type]


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


def test_a_right_queue_is_right() -> None:
    assert failure(queue(build("queue.c")), WORST + seeds(8)) is None


@pytest.mark.deep
def test_a_right_queue_is_right_for_fifty_seeds() -> None:
    assert failure(queue(build("queue.c")), seeds(50)) is None


# of tests/faults/programs/queue.c, in its order; the second shows where its line arrives before the entry
MISTAKES = [pytest.param(n, marks=[] if n in (1, 2, 9, 10) else pytest.mark.deep) for n in range(1, 11)]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_shows_in_what_the_program_does(mistake: int) -> None:
    made = build("queue.c", f"-DMISTAKE={mistake}")
    if mistake in (5, 6):  # it loops over loads alone, which nobody sees here: it may as well compute
        assert run(queue(made, deadline_s=5), RunChoice(None, 0)).ending is RunEnding.DEADLINE
        return
    failed = failure(queue(made), WORST + seeds(10))
    assert failed.ending in (RunEnding.FAILED, RunEnding.NO_PROGRESS)


@pytest.mark.parametrize("choice", [RunChoice(None, 0), RunChoice(3, 3)], ids=str)
def test_the_same_choice_is_the_same_trace(choice: RunChoice) -> None:
    runs = [run(queue(build("queue.c")), choice) for _ in range(4)]
    assert len({(its.trace, its.steps) for its in runs}) == 1


# --- each access ------------------------------------------------------------------------------------------------------


def test_a_right_queue_is_quiet_when_each_access_is_judged() -> None:
    assert failure(queue(build("queue.c"), check=True), WORST + seeds(4)) is None


@pytest.mark.deep
def test_a_right_queue_is_quiet_for_fifty_seeds() -> None:
    assert failure(queue(build("queue.c"), check=True), seeds(50)) is None


NAMED = {
    1: ("not-flushed", "memcpy(e, &made", "memcpy(&got, e"),
    2: ("fence-too-late", "memcpy(e, &made", "memcpy(&got, e"),
    3: ("not-flushed", "q->produced = k + 1", "while (q->produced <= k)"),
    4: ("not-flushed", "q->consumed = k + 1", "while (k - q->consumed"),
    5: ("no-invalidate", "q->produced = k + 1", "while (q->produced <= k)"),
    6: ("no-invalidate", "q->consumed = k + 1", "while (k - q->consumed"),
    7: ("not-flushed", "q->slots = SLOTS", "if (q->magic != MAGIC"),
    8: ("not-flushed", "q->magic = MAGIC", "if (q->magic != MAGIC"),
    9: ("invalidated-early", "memcpy(e, &made", "memcpy(&got, e"),
    10: ("invalidate-unfenced", "memcpy(e, &made", "memcpy(&got, e"),
}


@pytest.mark.parametrize("mistake", [pytest.param(n, marks=[] if n in (2, 10) else pytest.mark.deep) for n in NAMED])
def test_a_mistake_is_named_with_the_lines_of_both_hosts(mistake: int) -> None:
    its = queue(build("queue.c", f"-DMISTAKE={mistake}"), check=True)
    failed = failure(its, WORST)
    assert failed is not None
    found = report_of(its, [failed], (), ()).mistakes[0]
    kind, store, load = NAMED[mistake]
    source = (SOURCES / "queue.c").read_text().splitlines()
    lines = {role: place.at for role, place in found.places.items()}
    assert found.kind.name == kind
    assert store in source[lines["store"].line - 1] and load in source[lines["access"].line - 1]
    assert lines["store"].file.endswith("queue.c")


def test_without_debug_information_the_functions_are_named() -> None:
    its = queue(build("queue.c", "-DMISTAKE=1", "-g0", "-fno-inline"), check=True)
    failed = failure(its, WORST)
    assert failed is not None
    told = text(report_of(its, [failed], (), ()))
    assert " in produce" in told and " in consume" in told and "+0x" in told


CXX = tuple(cxx for _, cxx in installed().values())
FLAGS = ("-O0", "-O1", "-O2", "-O3", "-O3 -mavx2")


@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("compiler", CXX)
@pytest.mark.deep(rows=lambda compiler, flags: (compiler, flags) != ("g++", "-O2"))
def test_every_access_of_a_compiler_is_seen(tmp_path: Path, compiler: str, flags: str) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"there is no {compiler}")
    if "avx2" in flags and " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("no AVX2")
    accesses, pool = tmp_path / "accesses", tmp_path / "pool"
    words = [compiler, "-std=c++17", *flags.split(), f"-I{program.include_dir()}", str(SOURCES / "accesses.cc")]
    subprocess.run([*words, "-o", accesses], check=True, timeout=120)
    its = setting(f"{accesses} {pool} store :: @1 {accesses} {pool} load", pool, check=True)
    for choice in (RunChoice(None, 2), RunChoice(4, 4)):
        result = run(its, choice)
        assert [one.output for one in result.exits] == ["", ""]
        assert result.ending is RunEnding.ENDED and result.unannounced == 0 and result.findings == []


@pytest.mark.parametrize("choice", [RunChoice(None, 0), RunChoice(3, 3)], ids=str)
def test_the_same_choice_is_the_same_trace_of_accesses(choice: RunChoice) -> None:
    runs = [run(queue(build("queue.c"), check=True), choice) for _ in range(4)]
    assert len({(its.trace, its.steps) for its in runs}) == 1


# --- instructions -----------------------------------------------------------------------------------------------------


@pytest.mark.each_value_once
@pytest.mark.parametrize("flags", [("-fPIE", "-pie"), ("-fno-PIE", "-no-pie")], ids=["pie", "no-pie"])
@pytest.mark.parametrize("choice", [RunChoice(None, 0), RunChoice(1, 1)], ids=str)
@pytest.mark.parametrize("check", [False, True], ids=["pages", "accesses"])
def test_each_form_does_what_it_does_untouched(
    flags: tuple[str, ...], choice: RunChoice, check: bool, tmp_path: Path
) -> None:
    forms = build("forms.c", "-O1", "-mclwb", "-mcx16", *flags)
    alone = subprocess.run([forms, tmp_path / "file"], capture_output=True, text=True, check=False)
    result = run(setting(f"{forms} {tmp_path / 'pool'}", tmp_path / "pool", check=check), choice)
    assert result.unannounced == 0
    assert alone.stdout == "all forms are right\n"
    assert [(its.code, its.output) for its in result.exits] == [(0, alone.stdout)]
    assert result.steps > 50  # those on the pool are steps


# --- pages, signals, threads, children, libraries ---------------------------------------------------------------------


@pytest.mark.parametrize("choice", [RunChoice(None, 1), RunChoice(2, 2)], ids=str)
@pytest.mark.parametrize("check", [False, True], ids=["pages", "accesses"])
def test_what_programs_do_around_a_pool(choice: RunChoice, check: bool, tmp_path: Path) -> None:
    around, late = build("surroundings.c", "-mclwb"), build("late.c", "-shared", "-fPIC")
    pool = tmp_path / "pool"
    words = f"{around} {pool} {late} first :: @1 {around} {pool} after"
    result = run(setting(words, pool, "64M", check), choice)
    assert [its.code for its in result.exits] == [0, 0]
    said = "".join(its.output for its in result.exits)
    assert "handles SIGTRAP itself" in said
    wrong = [line for line in said.splitlines() if line.endswith("wrong")]
    # an eviction may publish what was not flushed
    assert wrong == [] or (choice.seed is not None and wrong == ["what was not flushed: wrong"])
    assert said.count(": right") + len(wrong) == 16


def test_threads_that_look_up_functions_do_not_wait_for_each_other_for_ever(tmp_path: Path) -> None:
    its, late, pool = build("lookups.c"), build("late.c", "-shared", "-fPIC"), tmp_path / "pool"
    result = run(replace(setting(f"{its} {pool} {late} held", pool, free=True), hosts=1), RunChoice(None, 0))
    assert [(its.code, its.output) for its in result.exits] == [(0, "")]


@pytest.mark.parametrize("check", [False, True], ids=["pages", "accesses"])
def test_a_library_is_followed_when_it_is_loaded_again(check: bool, tmp_path: Path) -> None:
    its, late, pool = build("lookups.c"), build("late.c", "-shared", "-fPIC"), tmp_path / "pool"
    words = f"{its} {pool} {late} again :: @1 {its} {pool} {late} published"
    result = run(setting(words, pool, check=check), RunChoice(None, 0))
    assert [(its.code, its.output) for its in result.exits] == [(0, ""), (0, "")]
    assert result.findings == []


def test_a_large_pool_leaves_room_beside_the_code_of_late_libraries(tmp_path: Path) -> None:
    around, late = build("surroundings.c", "-mclwb"), build("late.c", "-shared", "-fPIC")
    pool = tmp_path / "pool"
    result = run(setting(f"{around} {pool} {late} first", pool, "2G"), RunChoice(None, 1))
    assert [its.code for its in result.exits] == [0], result.exits[0].output


# --- Python -----------------------------------------------------------------------------------------------------------


def python_pages(pool: Path, how: str) -> ExecSetting:
    script = f"{sys.executable} {SOURCES / 'pages.py'} {pool}"
    return setting(f"{script} new {how} :: {script} write {how} : {script} read {how}", pool)


@pytest.mark.parametrize("check", [False, True], ids=["pages", "accesses"])
def test_an_unmodified_python_is_followed(check: bool, tmp_path: Path) -> None:
    its = replace(python_pages(tmp_path / "pool", "flush"), check=check)
    result = run(its, RunChoice(1, 1))
    assert result.findings == []
    assert [(its.code, its.output) for its in result.exits] == [(0, ""), (0, ""), (0, "")]


@pytest.mark.deep
def test_an_unmodified_python_is_right_for_ten_seeds(tmp_path: Path) -> None:
    assert failure(python_pages(tmp_path / "pool", "flush"), WORST + seeds(10)) is None


@pytest.mark.deep
def test_a_header_that_is_msynced_and_not_flushed_is_not_there(tmp_path: Path) -> None:
    failed = failure(python_pages(tmp_path / "pool", "msync"), WORST + seeds(10))
    assert any("the header is 0" in its.output for its in failed.exits)


@pytest.mark.deep
def test_a_header_that_is_msynced_and_not_flushed_is_named(tmp_path: Path) -> None:
    its = replace(python_pages(tmp_path / "pool", "msync"), check=True)
    failed = failure(its, WORST)
    assert failed is not None
    assert "msync" in {found.kind.name for found in report_of(its, [failed], (), ()).mistakes}


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_says_which_programs_are_preloaded(tmp_path: Path) -> None:
    right, pool = build("queue.c"), tmp_path / "pool"
    commands = f"{right} {pool} new :: {right} {pool} produce : {right} {pool} consume"
    done = cxlemu(*f"exec --pool {pool}=4M --seeds 0 -- {commands}".split(), code=0)
    assert f"# {right.name}: not compiled with cxlemu cc, so preloaded" in done.output.replace("\n", " ")


def test_the_command_refuses_what_it_could_not_follow(tmp_path: Path) -> None:
    static = build("late.c", "-static", "-nostartfiles", "-Wl,-e,publish")
    done = cxlemu(*f"exec --pool {tmp_path / 'pool'}=4M -- {static}".split(), code=2)
    assert "statically linked" in done.output.replace("\n", " ")


@pytest.mark.parametrize("flag", ["--poison=64@9", "--lose-card=0@9", "--link-down=0@9"])
def test_the_command_refuses_what_only_loads_that_are_seen_could_show(flag: str, tmp_path: Path) -> None:
    done = cxlemu(*f"exec --pool {tmp_path / 'pool'}=4M --no-check {flag} -- {build('queue.c')}".split(), code=2)
    assert "its loads are not seen" in done.output.replace("\n", " ")


@pytest.mark.parametrize(("flags", "code"), [("", 1), ("--no-check", 2)])
def test_each_line_is_poisoned_where_loads_are_seen(flags: str, code: int, tmp_path: Path) -> None:
    its = build("string_loads.c", "-DINVALIDATES")
    (tmp_path / "zeros").write_bytes(bytes(4096))
    pool = tmp_path / "pool"
    words = f"exec --pool {pool}={tmp_path / 'zeros'} {flags} --poison every -- {its} {pool} write :: {its} {pool} lods"
    said = " ".join(cxlemu(*words.split(), code=code).output.split())
    assert ("poisoned line at step" if code == 1 else "--poison every takes no program that is preloaded") in said


@pytest.mark.parametrize("how", ["lods", "scas", "source", "target"])
def test_loads_of_string_instructions_are_judged(how: str, tmp_path: Path) -> None:
    """lodsb, scasb, and cmpsb by either operand, whose other one lies on the same page."""
    pool = tmp_path / "pool"
    for flags, kinds in (((), ["no-invalidate"]), (("-DINVALIDATES",), [])):
        its = build("string_loads.c", *flags)
        result = run(setting(f"{its} {pool} write : {its} {pool} {how}", pool, check=True), RunChoice(None, 0))
        assert [one.code for one in result.exits] == [0, 0]
        assert [KINDS[found.kind].name for found in result.findings] == kinds


def test_string_instructions(tmp_path: Path) -> None:
    """movs, stos, cmps, scas and lods on a pool do what they do on memory; the checker sees their stores."""
    right, forgets = build("strings.c"), build("strings.c", "-DFORGET")
    pool = tmp_path / "pool"
    for choice in (RunChoice(None, 0), RunChoice(3, 3)):
        for check in (True, False):
            result = run(setting(f"{right} {pool}", pool, check=check), choice)
            assert [one.code for one in result.exits] == [0] and result.ending is RunEnding.ENDED
            assert result.findings == [] and result.unannounced == 0
    result = run(setting(f"{forgets} {pool}", pool, check=True), RunChoice(None, 0))
    assert [one.code for one in result.exits] == [0] and result.findings
