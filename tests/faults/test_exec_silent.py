"""Stores that nobody announces, instructions that no compiler shows: right programs are quiet, wrong ones are found."""

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from cxlemu.cli import main
from faults.programs.result import RunEnding
from tests.helpers.pool_programs import CHOICES, MODES, SOURCES, built, kinds, on_x86, ran

AVX_512 = ("MASKED", "SCATTER")
pytestmark = on_x86


def silent(mode: str, way: str, folder: Path, *more: str) -> Path:
    """Compile silent.c, in which stores are made in a way; its library is never recompiled."""
    if way in AVX_512 and " avx512bw " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("no AVX-512")
    flags = [f"-DWAY={way}", *more] + ["-fopenmp"] * (way == "OPENMP")
    if way == "LIBRARY":
        library = folder / "libsilent.so"
        make = ["gcc", "-O2", "-g", "-shared", "-fPIC", str(SOURCES / "silent_library.c"), "-o", str(library)]
        subprocess.run(make, check=True, timeout=120)
        flags += ["-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{folder}"]
    return built(mode, "silent.c", *flags)


QUIET = [(way, mode) for way in ("OPENMP", *AVX_512, "LIBRARY", "BYTES", "COPIED") for mode in MODES]


@pytest.mark.deep(rows=lambda way: way in ("COPIED", "KERNEL", "BYTES"))
@pytest.mark.each_value_once
@pytest.mark.parametrize(("way", "mode"), [*QUIET, ("KERNEL", "recompiled")])
def test_a_right_program_is_quiet(way: str, mode: str, tmp_path: Path) -> None:
    target = silent(mode, way, tmp_path)
    for choice in CHOICES:
        result = ran(f"{target} /dev/dax0.0 w : {target} /dev/dax0.0 r", choice)
        assert kinds(result) == set() and [one.code for one in result.exits] == [0, 0], choice
        assert result.ending is RunEnding.ENDED
    if mode == "recompiled":
        assert (result.unannounced > 0) is (way in ("LIBRARY", "KERNEL"))


def test_a_failure_that_may_be_of_code_that_was_not_instrumented_says_so(tmp_path: Path) -> None:
    target = silent("recompiled", "LIBRARY", tmp_path, "-DLIBRARY_LOADS", "-DNO_INVALIDATE")
    commands = [str(target), "/dev/dax0.0", "w", ":", str(target), "/dev/dax0.0", "r"]
    said = CliRunner().invoke(main, ["exec", "--pool", "/dev/dax0.0=2M", "--no-shrink", "--", *commands])
    words = " ".join(said.output.split())
    assert said.exit_code == 1 and "this failure need not be the program's" in words
    assert "(not built with it: libsilent.so)" in words
