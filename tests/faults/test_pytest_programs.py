"""The fixture cxl_program, as a user's own suite sees it."""

import re
import shutil
from pathlib import Path

import pytest

from faults.programs.compile import compiler

pytest_plugins = ["pytester"]
ALONE = ("-p", "no:xdist", "-p", "no:hypothesispytest")
SUITE = """
import pytest
QUEUE = "{program} /dev/shm/queue new :: {program} /dev/shm/queue produce : {program} /dev/shm/queue consume"

def test_right(cxl_program):
    cxl_program("queue.c", flags=["-O2"]).run(QUEUE, pool="/dev/shm/queue", seeds=2)

def test_broken(cxl_program):
    cxl_program("queue.c", flags=["-O2", "-DMISTAKE=9"]).run(QUEUE, pool="/dev/shm/queue", seeds=2)

def test_known(cxl_program, tmp_path):
    (tmp_path / "reasons").write_text("invalidated-early consume  # known\\n")
    queue = cxl_program("queue.c", flags=["-O2", "-DMISTAKE=9"])
    queue.run(QUEUE, pool="/dev/shm/queue", seeds=0, suppressions_file=tmp_path / "reasons")

def test_left_behind(cxl_program, tmp_path):
    (tmp_path / "left").write_bytes(b"x" * 4096)
    new, both = QUEUE.replace("/dev/shm/queue", f"{tmp_path}/left").split(" :: ")
    cxl_program("queue.c", flags=["-O2"]).run(both, pool=f"{tmp_path}/left", seeds=0)

def test_another_pool(cxl_program):
    cxl_program("queue.c", flags=["-O2"]).run("true", pool="/dev/shm/queue")

def test_nothing_logged(cxl_program):
    holds = cxl_program("holds.c", flags=["-O2", "-IEXAMPLES"])
    holds.run("{program} early", pool="/dev/shm/holds", seeds=0)

def test_not_c(cxl_program):
    with pytest.raises(ValueError, match="takes .c, .cc, .cpp, .cxx files"):
        cxl_program("queue.rs")

def test_does_not_compile(cxl_program):
    cxl_program("queue.c", flags=["-DMISTAKE=what"])
"""


def test_a_suite_of_programs(pytester: pytest.Pytester) -> None:
    for name in ("queue.c", "holds.c"):
        shutil.copy(Path(__file__).parent / "programs" / name, pytester.path)
    if shutil.which(compiler("c")[0]) is None:
        pytest.skip("there is no compiler")
    pytester.makepyfile(SUITE.replace("EXAMPLES", str(Path(__file__).parents[2] / "examples/programs")))
    result = pytester.runpytest_inprocess(*ALONE)
    result.assert_outcomes(passed=3, failed=5)
    said = result.stdout.str()
    assert "1. invalidated-early: an invalidate before the wait" in said
    assert (
        re.search(r"host 1 loads +queue\.c:\d+ in consume", said) and "again: cxlemu exec --pool /dev/shm/queue" in said
    )
    assert "The pool begins with the 4 KiB of " in said and "queue.c does not compile" in said
    assert "no command opened /dev/shm/queue, so nothing was checked" in said
    assert "cxl_linearizable judged nothing: no operation of a register was logged" in said
