"""Programs of several threads, side by side (--free) and in turns. scripts/sanitize looks for races in them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from cxlemu import program
from faults.programs.commands import parse_commands, parse_pools
from faults.programs.compile import compiler, compiler_arguments, is_clang
from faults.programs.result import ExecSetting, RunChoice, RunEnding
from faults.programs.run import run

SOURCES = Path(__file__).parent / "programs"
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles programs with gcc, which is not here")
NAMES = ("threads", "side_by_side")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Both programs, recompiled and as anybody would compile them."""
    folder, found = tmp_path_factory.mktemp("threads"), {}
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}  # scripts/sanitize preloads
    for name in NAMES:
        words = ["-O2", "-g", "-pthread", str(SOURCES / f"{name}.c"), "-o"]
        recompiled, preloaded = folder / f"{name}-recompiled", folder / f"{name}-preloaded"
        command = compiler("c")
        ours = compiler_arguments("c", [*words, str(recompiled)], clang=is_clang(command[-1]))
        subprocess.run([*command, *ours], check=True, timeout=120, env=plain)
        as_it_is = ["gcc", "-I", str(program.include_dir()), *words, str(preloaded)]
        subprocess.run(as_it_is, check=True, timeout=120, env=plain)
        found |= {recompiled.name: recompiled, preloaded.name: preloaded}
    return found


@pytest.mark.parametrize("name", NAMES)
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
