"""Programs of several threads, side by side (--free) and in turns. scripts/sanitize looks for races in them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from cxlemu import program
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.compile import compiler, compiler_arguments, is_clang
from faults.programs.result import ExecSetting, RunChoice, RunEnding
from faults.programs.run import run

SOURCES = Path(__file__).parent / "programs"
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles programs with gcc, which is not here")
NAMES = ("threads", "side_by_side", "processors", "late_flag")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both programs, recompiled and as anybody would compile them."""
    folder, found = tmp_path_factory.mktemp("threads"), {}
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # scripts/sanitize preloads
    for name in NAMES:
        words = ["-O2", "-g", "-pthread", "-D_GNU_SOURCE", str(SOURCES / f"{name}.c"), "-o"]
        recompiled, preloaded = folder / f"{name}-recompiled", folder / f"{name}-preloaded"
        command = compiler("c")
        ours = compiler_arguments("c", [*words, str(recompiled)], clang=is_clang(command[-1]))
        subprocess.run([*command, *ours], check=True, timeout=120, env=plain)
        as_it_is = ["gcc", "-I", str(program.include_dir()), *words, str(preloaded)]
        subprocess.run(as_it_is, check=True, timeout=120, env=plain)
        found |= {recompiled.name: recompiled, preloaded.name: preloaded}
    return found


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("way", ["recompiled", "preloaded"])
@pytest.mark.parametrize("free", [True, False], ids=["free", "turns"])
def test_threads_of_one_host_are_coherent(built: dict[str, Path], name: str, way: str, free: bool) -> None:
    if way == "preloaded" and platform.machine() != "x86_64":
        pytest.skip("programs as they are can be followed on x86-64 only")
    its = built[f"{name}-{way}"]
    pool = its.with_suffix(".pool")
    for check in (False, True):
        commands, pools = parse_commands([str(its), str(pool)], 1), parse_pools([f"{pool}=64K"])
        setting = ExecSetting(commands, pools, hosts=1, check=check, free=free)
        for choice in (RunChoice(None, 0), RunChoice(3, 3)):
            result = run(setting, choice)
            assert [(one.code, one.output) for one in result.exits] == [(0, "")]
            assert result.ending is RunEnding.ENDED and result.unannounced == 0
            assert name == "threads" or result.findings == []  # it leaves the last stores in the cache


def told_processors(program: Path, *, free: bool) -> list[list[int]]:
    """The processors that each thread of two hosts may use: the first one, how many, and how many the library says."""
    pool = program.with_suffix(".pool")
    commands = parse_commands(f"{program} {pool} : {program} {pool}".split(), 2)
    result = run(ExecSetting(commands, parse_pools([f"{pool}=64K"]), free=free), RunChoice(None, 0))
    assert result.ending is RunEnding.ENDED
    lines = [line for one in result.exits for line in one.output.splitlines()]
    assert len(lines) == 6
    return [[int(word) for word in line.replace(" of", ",").split(",")] for line in lines]


def test_threads_in_turns_share_one_processor_and_do_not_see_it(built: dict[str, Path]) -> None:
    """Another processor would have to wake up, or to leave other work, each time the turn passes on."""
    usual = len(os.sched_getaffinity(0))
    told = told_processors(built["processors-recompiled"], free=False)
    assert len({line[0] for line in told}) == 1 and {line[1] for line in told} == {1}
    assert [line[2:] for line in told] == [[usual] * 2, [usual] * 2, [1, 1]] * 2


def test_threads_side_by_side_use_all_processors(built: dict[str, Path]) -> None:
    usual = len(os.sched_getaffinity(0))
    told = told_processors(built["processors-recompiled"], free=True)
    assert [line[1:] for line in told] == [[usual] * 3, [usual] * 3, [1] * 3] * 2


def test_side_by_side_a_thread_that_polls_rests(built: dict[str, Path]) -> None:
    """Six looks, then 100 us: as long as it looks, it has the lock that others need.

    However slow the machine, it looks no more often; without a rest it makes a million steps in a second.
    """
    program = built["late_flag-recompiled"]
    pool = program.with_suffix(".pool")
    commands = parse_commands(f"{program} {pool} set : {program} {pool} poll".split(), 2)
    began = time.monotonic()
    result = run(ExecSetting(commands, parse_pools([f"{pool}=64K"]), free=True), RunChoice(None, 0))
    looks = 6 * (time.monotonic() - began) / 100e-6
    assert result.ending is RunEnding.ENDED and result.steps < looks + 1000
