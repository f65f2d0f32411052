"""Stores that nobody announces, instructions that no compiler shows: right programs are quiet, wrong ones are found."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from cxlemu import program
from cxlemu.errors import ArgumentError
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.compile import compiler, compiler_arguments, is_clang
from faults.programs.findings import KINDS, ProgramFinding
from faults.programs.result import WORST_CASES, ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import run

SOURCES = Path(__file__).parent / "programs"
MODES = ("recompiled", "preloaded")
CHOICES = [*(RunChoice(None, k) for k in WORST_CASES), *(RunChoice(k, k) for k in range(4))]
AVX_512 = ("MASKED", "SCATTER")

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the program has instructions of x86-64"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles programs with gcc, which is not here"),
]


def built(mode: str, folder: Path, way: str, *flags: str) -> Path:
    """Compile silent.c, in which stores are made in a way; its library is never recompiled."""
    if way in AVX_512 and " avx512bw " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("no AVX-512")
    target, library = folder / f"{way}-{mode}", folder / "libsilent.so"
    words = ["-O2", "-g", f"-DWAY={way}", *flags, str(SOURCES / "silent.c"), "-o", str(target)]
    words += ["-fopenmp"] if way == "OPENMP" else []
    if way == "LIBRARY":
        make = ["gcc", "-O2", "-g", "-shared", "-fPIC", str(SOURCES / "silent_library.c"), "-o", str(library)]
        subprocess.run(make, check=True, timeout=120)
        words += [str(library), f"-Wl,-rpath,{folder}"]
    command = ["gcc", "-I", str(program.include_dir()), *words]
    if mode == "recompiled":
        try:
            behind = compiler("c")
        except ArgumentError as error:
            pytest.skip(str(error))
        command = [*behind, *compiler_arguments("c", words, clang=is_clang(behind[-1]))]
    subprocess.run(command, check=True, timeout=120)
    return target


def ran(target: Path, choice: RunChoice, words: str = "P w : P r") -> RunResult:
    commands = parse_commands(words.replace("P", f"{target} /dev/dax0.0").split(), 2)
    return run(ExecSetting(commands, parse_pools(["/dev/dax0.0=2M"])), choice)


def kinds(result: RunResult) -> set[str]:
    return {KINDS[ProgramFinding.one(bytes(raw)).kind].name for raw in result.findings}


QUIET = [(way, mode) for way in ("OPENMP", *AVX_512, "LIBRARY", "BYTES", "COPIED") for mode in MODES]


@pytest.mark.parametrize(("way", "mode"), [*QUIET, ("KERNEL", "recompiled")])
def test_a_right_program_is_quiet(way: str, mode: str, tmp_path: Path) -> None:
    target = built(mode, tmp_path, way)
    for choice in CHOICES:
        result = ran(target, choice)
        assert kinds(result) == set() and [one.code for one in result.exits] == [0, 0], choice
        assert result.ending is RunEnding.ENDED
    if mode == "recompiled":
        assert (result.unannounced > 0) is (way in ("LIBRARY", "KERNEL"))
