"""Programs in C and C++ for a pool: built for either mode, run on two hosts, and what the checker found."""

import atexit
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache, partial
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
    pytest.mark.skipif(platform.machine() != "x86_64", reason="programs are followed on x86-64 only"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles programs with gcc, which is not here"),
]


def built(mode: str, source: str | Path, *flags: str, language: str = "c") -> Path:
    """Compile a source, once with these flags: with `cxlemu cc` or, to be preloaded, with gcc.

    A name is that of a file in tests/faults/programs.
    """
    if mode == "preloaded" and platform.machine() != "x86_64":
        pytest.skip("programs are followed on x86-64 only")
    if not shutil.which(PLAIN[language]):
        pytest.skip(f"there is no {PLAIN[language]}")
    try:
        command = compiler(language) if mode == "recompiled" else [PLAIN[language]]
    except ArgumentError as error:
        pytest.skip(str(error))
    return _built(mode, SOURCES / source, flags, language, tuple(command))


build = partial(built, "recompiled")


@cache
def _built(mode: str, source: Path, flags: tuple[str, ...], language: str, command: tuple[str, ...]) -> Path:
    target = Path(tempfile.mkdtemp(dir=programs_folder())) / source.stem
    words = ["-O2", "-g", "-pthread", *flags, str(source), "-o", str(target)]
    if mode == "recompiled":
        words = compiler_arguments(language, words, clang=is_clang(command[-1]))
    else:
        words = ["-I", str(program.include_dir()), *words]
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # scripts/sanitize preloads
    done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=120, env=plain)
    lacking = ("sanitize", "cannot find -lomp", "'algorithm' file not found")  # the last one: libc++
    if done.returncode and any(words in done.stderr for words in lacking):
        pytest.skip(f"{command[-1]} cannot do {' '.join(flags)} -fsanitize=thread: {done.stderr:.200}")
    assert done.returncode == 0, done.stderr
    return target


@cache
def programs_folder() -> str:
    """Where this process keeps what it has built."""
    folder = tempfile.mkdtemp(prefix="cxlemu-programs-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


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
