"""Programs in C and C++ for a pool: built for either mode, run on two hosts, and what the checker found."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from cxlemu import program
from cxlemu.errors import ArgumentError
from faults.programs.commands import parse_coherent, parse_commands, parse_pools
from faults.programs.compile import compiler, compiler_arguments, is_clang
from faults.programs.findings import KINDS, ProgramFinding
from faults.programs.result import WORST_CASES, ExecSetting, RunChoice, RunEnding, RunResult
from faults.programs.run import run

SOURCES = Path(__file__).parents[1] / "faults" / "programs"
MODES = ("recompiled", "preloaded")
CHOICES = [*(RunChoice(None, k) for k in WORST_CASES), *(RunChoice(k, k) for k in range(4))]
PLAIN = {"c": "gcc", "c++": "g++"}

on_x86 = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="programs are preloaded on x86-64 only"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="compiles programs with gcc, which is not here"),
]


def built(mode: str, source: str, target: Path, *flags: str, language: str = "c") -> Path:
    """Compile a source of tests/faults/programs, with `cxlemu cc` or, to be preloaded, with gcc."""
    words = ["-O2", "-g", *flags, str(SOURCES / source), "-o", str(target)]
    command = [PLAIN[language], "-I", str(program.include_dir()), *words]
    if mode == "recompiled":
        try:
            behind = compiler(language)
        except ArgumentError as error:
            pytest.skip(str(error))
        command = [*behind, *compiler_arguments(language, words, clang=is_clang(behind[-1]))]
    subprocess.run(command, check=True, timeout=120)
    return target


def ran(
    words: str, choice: RunChoice, *coherent: str, pool: str = "/dev/dax0.0=2M", free: bool = False, check: bool = True
) -> RunResult:
    """Run commands on two hosts with one pool, once."""
    pools = parse_pools([pool])
    setting = ExecSetting(
        parse_commands(words.split(), 2), pools, coherent=parse_coherent(coherent, pools), free=free, check=check
    )
    return run(setting, choice)


def kinds(result: RunResult) -> set[str]:
    """Name the kinds of all findings."""
    return {KINDS[ProgramFinding.one(bytes(raw)).kind].name for raw in result.findings}


def is_quiet(result: RunResult) -> bool:
    """Whether all commands ended well, with nothing found, unseen or unfired."""
    return (
        result.findings == []
        and {one.code for one in result.exits} == {0}
        and result.ending is RunEnding.ENDED
        and result.unannounced == 0
        and result.unfired == {}
    )
