"""The extension modules work in the main interpreter, and say so in another one."""

from __future__ import annotations

import subprocess
import sys

import pytest

MODULES = ["cxlemu._native", "cxlemu._virtual", "cxlemu._measure", "faults.explore._search", "faults.litmus._straight"]
MODULES += ["faults.prove._pass", "faults.lockstep._world"]
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


@pytest.mark.parametrize("module", MODULES)
def test_a_subinterpreter_is_refused_in_a_sentence(module: str) -> None:
    """From 3.12 on, Python itself refuses modules that have not said that they may be loaded there."""
    ended = subprocess.run([sys.executable, "-c", PROGRAM % module], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    said = "works in the main interpreter only, not in a subinterpreter: start a process\n"
    if sys.version_info >= (3, 12):
        assert "subinterpreter" in ended.stdout
    elif module == "faults.prove._pass":  # its package imports another one first
        assert ended.stdout.endswith(said)
    else:
        assert ended.stdout == f"{module} {said}"
