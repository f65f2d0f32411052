"""The extension modules work in the main interpreter and with the GIL, and say so elsewhere."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ["cxlemu._native", "cxlemu._virtual", "cxlemu._measure", "faults.explore._search", "faults.litmus._straight"]
MODULES += ["faults.prove._pass", "faults.lockstep._world"]
FIRST = {"faults.prove._pass": "cxlemu._native"}  # which its package imports before
PROGRAM = """
import importlib, sys
interpreters = importlib.import_module("_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters")
inner = interpreters.create()
code = '''
try:
    import %s
except ImportError as error:
    print(str(error))
'''
failed = interpreters.run_string(inner, code)
assert failed is None, failed
"""
WITHOUT_GIL = "import sys; sys._is_gil_enabled = lambda: False"  # as Python says from 3.13 on
NEEDS_GIL = "needs the GIL: start Python without -X gil=0 and PYTHON_GIL=0"


def ran(program: str, *options: str, python: str = sys.executable, where: Path = ROOT) -> str:
    """What a program prints in another process."""
    ended = subprocess.run([python, *options, "-c", program], capture_output=True, text=True, cwd=where)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize("module", MODULES)
def test_a_subinterpreter_is_refused_in_a_sentence(module: str) -> None:
    """From 3.12 on, Python itself refuses modules that have not said that they may be loaded there."""
    told = ran(PROGRAM % module)
    said = "works in the main interpreter only, not in a subinterpreter: start a process\n"
    if sys.version_info >= (3, 12):
        assert "subinterpreter" in told
    elif module in FIRST:
        assert told.endswith(said)
    else:
        assert told == f"{module} {said}"


def test_without_the_gil_each_module_is_refused_in_a_sentence() -> None:
    found = "\n".join(f"try: import {module}\nexcept ImportError as error: print(error)" for module in MODULES)
    assert ran(f"{WITHOUT_GIL}\n{found}").splitlines() == [f"{FIRST.get(name, name)} {NEEDS_GIL}" for name in MODULES]


def test_without_the_gil_doctor_says_so() -> None:
    told = ran(f"{WITHOUT_GIL}; from cxlemu.cli import main; main(['doctor', '--json', '-'])")
    (row,) = (row for row in json.loads(told) if row["what"] == "native modules")
    assert (row["status"], row["meaning"]) == ("look", f"cxlemu._native {NEEDS_GIL}")


def test_a_python_that_can_do_without_the_gil_takes_it_up(tmp_path: Path) -> None:
    """Of one module, as all are made in the same way."""
    python = shutil.which("python3.14t") or shutil.which("python3.13t")
    if python is None:
        pytest.skip("there is no Python without the GIL")
    asked = "import sysconfig as its; print(its.get_path('include')); print(its.get_config_var('EXT_SUFFIX'))"
    headers, suffix = ran(asked, python=python).split()
    (tmp_path / "cxlemu").mkdir()
    source, target = ROOT / "cxlemu/native/measure/module.c", tmp_path / f"cxlemu/_measure{suffix}"
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", f"-I{headers}", source, "-o", target], check=True)
    program = (
        "import sys; print(sys._is_gil_enabled())\n"
        "try: import cxlemu._measure\n"
        "except ImportError as error: print(error)\n"
        "print(sys._is_gil_enabled())"
    )
    took = ran(program, "-W", "ignore::RuntimeWarning", python=python, where=tmp_path)
    refused = ran(program, "-X", "gil=0", python=python, where=tmp_path)
    assert took.split() == ["False", "True"]
    assert refused.splitlines() == ["False", f"cxlemu._measure {NEEDS_GIL}", "False"]
