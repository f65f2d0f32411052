"""Stores that nobody announces, instructions that no compiler shows: right programs are quiet, wrong ones are found."""

import subprocess
from pathlib import Path

import pytest

from faults.programs.result import RunEnding
from tests.helpers.pool_programs import CHOICES, MODES, SOURCES, built, kinds, on_x86, ran

AVX_512 = ("MASKED", "SCATTER")
pytestmark = on_x86


def silent(mode: str, way: str, folder: Path) -> Path:
    """Compile silent.c, in which stores are made in a way; its library is never recompiled."""
    if way in AVX_512 and " avx512bw " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("no AVX-512")
    flags = [f"-DWAY={way}"] + ["-fopenmp"] * (way == "OPENMP")
    if way == "LIBRARY":
        library = folder / "libsilent.so"
        make = ["gcc", "-O2", "-g", "-shared", "-fPIC", str(SOURCES / "silent_library.c"), "-o", str(library)]
        subprocess.run(make, check=True, timeout=120)
        flags += ["-Wl,--no-as-needed", str(library), f"-Wl,-rpath,{folder}"]
    return built(mode, "silent.c", *flags)


QUIET = [(way, mode) for way in ("OPENMP", *AVX_512, "LIBRARY", "BYTES", "COPIED") for mode in MODES]


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
