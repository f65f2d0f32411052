"""Assertions decide under ``python -O`` and PYTHONOPTIMIZE as they do otherwise, or a sentence says they cannot."""

import os
import subprocess
from pathlib import Path

import pytest

from cxlemu.cli import main
from tests.helpers.commands import python

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples" / "protocols").glob("*.py"))
RANKS = {"group_room": 3}
EVERY_EXAMPLE = f"""
import sys
from click.testing import CliRunner
from cxlemu.cli import main

for example in {[(str(path), RANKS.get(path.stem, 2)) for path in EXAMPLES]!r}:
    for which in ("broken", "fixed"):
        found = CliRunner().invoke(main, ["explore", f"{{example[0]}}:{{which}}", "-n", str(example[1])])
        print(which, found.exit_code)
"""
LOCK = """
from faults import Load, Store, protocol

@protocol("x")
def broken(rank, ranks):
    yield Store("x", 1 + rank)
    value = yield Load("x")
    assert value == 1, "theirs is there"
"""
IN_THE_END = """
from faults import Signal, protocol

def final(memory, results):
    assert memory["x"] == 2, "theirs is there"

@protocol("x", final=final)
def broken(rank, ranks):
    yield Signal("x", 1)
"""
BESIDE = """
import kept_beside
from kept_beside import broken
"""
EXPLORES_ITSELF = """
from cxlemu.errors import ArgumentError
from faults.explore.check import judge_ends
from faults.explore.exhaustive import exhaustive
from faults.explore.result import Budget
from faults.machine.steps import Machine

try:
    machine = Machine(broken.program(2))
    print(judge_ends(broken, machine, exhaustive(machine, Budget(), "native")).verdict)
except ArgumentError as error:
    print(error)
"""


def optimized(*arguments: str, cwd: Path, level: str = "1") -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONOPTIMIZE": level, "PYTHONPATH": f"{cwd}:{ROOT}", "PYTHONDONTWRITEBYTECODE": ""}
    return python(*arguments, cwd=cwd, env=env)


def explore(file: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return optimized("-m", "cxlemu", "explore", f"{file}:broken", cwd=cwd)


@pytest.mark.parametrize("level", ["1", pytest.param("2", marks=pytest.mark.deep)])
def test_every_broken_example_is_found_and_every_fixed_one_is_ok(tmp_path: Path, level: str) -> None:
    done = optimized("-c", EVERY_EXAMPLE, cwd=tmp_path, level=level)
    assert len(EXAMPLES) > 10 and done.stdout.split("\n") == [*["broken 1", "fixed 0"] * len(EXAMPLES), ""], done.stderr


@pytest.mark.parametrize("source", [LOCK, IN_THE_END], ids=["in a rank", "in the end"])
def test_code_that_python_has_cached_without_its_assertions_is_compiled_again(tmp_path: Path, source: str) -> None:
    (tmp_path / "lock.py").write_text(source)
    assert optimized("-m", "compileall", "-q", ".", cwd=tmp_path).returncode == 0
    assert list(tmp_path.glob("__pycache__/lock.*opt-1.pyc"))
    done = explore("lock.py", tmp_path)
    assert done.returncode == 1 and "theirs is there" in done.stdout, done


def test_a_module_that_the_file_imports_from_beside_it_keeps_its_assertions(tmp_path: Path) -> None:
    (tmp_path / "kept_beside.py").write_text(LOCK)
    (tmp_path / "takes.py").write_text(BESIDE)
    assert optimized("-m", "compileall", "-q", ".", cwd=tmp_path).returncode == 0
    done = explore("takes.py", tmp_path)
    assert done.returncode == 1 and "theirs is there" in done.stdout, done


@pytest.mark.deep
def test_real_ranks_fail_at_their_assertions(tmp_path: Path) -> None:
    (tmp_path / "lock.py").write_text(LOCK)
    done = optimized("-m", "cxlemu", "run", "--protocol", "lock.py:broken", "--seeds", "1", cwd=tmp_path)
    assert done.returncode == 1 and "theirs is there" in done.stdout, done


@pytest.mark.parametrize("source", [LOCK, IN_THE_END], ids=["in a rank", "in the end"])
def test_a_program_whose_own_assertions_are_gone_is_refused(tmp_path: Path, source: str) -> None:
    (tmp_path / "program.py").write_text(source + EXPLORES_ITSELF)
    done = optimized("program.py", cwd=tmp_path)
    assert done.stdout == (
        "broken cannot be judged: Python was started with -O or PYTHONOPTIMIZE, which removes its assertions; start it "
        "without these\n"
    )
    done = optimized("-c", "import cxlemu, program", cwd=tmp_path)  # imported after us, it keeps them
    assert done.stdout == "Verdict.VIOLATION\n"


def test_in_a_test_pytest_keeps_the_assertions(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(LOCK + EXPLORES_ITSELF)
    plain = ("-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist")
    assert "Verdict.VIOLATION" in optimized(*plain, cwd=tmp_path).stdout
    assert "Verdict.VIOLATION" in optimized(*plain, "--assert=plain", cwd=tmp_path).stdout  # by our own loader


def test_our_own_modules_keep_their_assertions(tmp_path: Path) -> None:
    code = "import faults.explore.search as it; print(type(it.__loader__).__name__)"
    assert optimized("-c", f"import cxlemu; {code}", cwd=tmp_path).stdout == "AssertingLoader\n"
    done = optimized("-c", "import cxlemu, json, numpy; print(type(json.__loader__).__name__)", cwd=tmp_path)
    assert done.stdout == "SourceFileLoader\n"  # what was installed keeps its caches


def test_a_file_that_is_no_python_is_refused_as_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lock.txt").write_text(LOCK)
    with pytest.raises(SystemExit) as stop:
        main(["explore", f"{tmp_path}/lock.txt:broken"])
    assert stop.value.code == 2 and "is not a Python file" in capsys.readouterr().err
