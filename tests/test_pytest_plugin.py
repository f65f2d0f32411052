"""The pytest plugin, as a user's own suite sees it: a pytest of its own in a folder of its own."""

from __future__ import annotations

import re
from importlib.metadata import entry_points

import pytest

import faults.worlds  # noqa: F401  runs in this process put back sys.modules, but NumPy can be imported only once

pytest_plugins = ["pytester"]

SUITE = """
import numpy as np

def test_the_sum_is_right(cxl_world):
    def main(comm):
        return comm.all_reduce(np.full(1000, comm.rank, np.float32))
    for x in cxl_world(ranks=3).run(main):
        assert (x == 3).all()
"""

SEEDS = """
import pytest
@pytest.mark.parametrize("number", range(4))
def test_prints_its_seeds(cxl_world, number):
    print("SEED", number, [cxl_world(ranks=2).memory.seed for _ in range(2)])
    assert False
"""


def seeds_of(result: pytest.RunResult) -> list[str]:
    return sorted(line for line in result.outlines if line.startswith("SEED"))


def header_seed(result: pytest.RunResult) -> int:
    (line,) = [line for line in result.outlines if line.startswith("cxlemu: --cxl-seed ")]
    return int(line.split()[-1])


def test_it_is_installed_as_an_entry_point() -> None:
    assert [point.value for point in entry_points(group="pytest11", name="cxlemu")] == ["faults.pytest_plugin"]


def test_ten_lines_are_a_suite(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    pytester.runpytest_inprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_a_failure_says_how_to_see_it_again(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE.replace("x == 3", "x == 4"))
    result = pytester.runpytest_inprocess("-p", "no:xdist")
    result.assert_outcomes(failed=1)
    seed = header_seed(result)
    result.stdout.fnmatch_lines([f"again: pytest --cxl-seed {seed} 'test_it.py::test_the_sum_is_right'"])
    result.stdout.fnmatch_lines(["world 0: 3 ranks on six-cards as threads, native engine, *adversary seed *"])


def test_the_seed_decides_and_differs_from_run_to_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SEEDS)
    first, second = (pytester.runpytest_inprocess("-p", "no:xdist") for _ in range(2))
    assert seeds_of(first) != seeds_of(second)
    again = pytester.runpytest_inprocess("-p", "no:xdist", "--cxl-seed", str(header_seed(first)))
    assert seeds_of(again) == seeds_of(first)
    assert len(set(re.findall(r"\d{4,}", " ".join(seeds_of(first))))) == 8  # of each test, and of each world


def test_one_test_alone_draws_what_it_draws_among_others(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SEEDS)
    everything = pytester.runpytest_inprocess("-p", "no:xdist", "--cxl-seed", "5")
    alone = pytester.runpytest_inprocess("-p", "no:xdist", "--cxl-seed", "5", "test_it.py::test_prints_its_seeds[2]")
    assert seeds_of(alone) == [line for line in seeds_of(everything) if line.startswith("SEED 2")]


def test_workers_of_xdist_share_the_controllers_seed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SEEDS)
    spread = pytester.runpytest_subprocess("-n", "2")
    spread.assert_outcomes(failed=4)
    (seed,) = set(re.findall(r"pytest --cxl-seed (\d+) ", spread.stdout.str()))  # one, whoever ran the test
    alone = pytester.runpytest_inprocess("-p", "no:xdist", "--cxl-seed", seed)
    assert seeds_of(spread) == seeds_of(alone)


@pytest.mark.parametrize("wrong", ["-1", "x", "1.5", str(1 << 32), "¹"])
def test_a_wrong_seed_is_one_sentence(pytester: pytest.Pytester, wrong: str) -> None:
    pytester.makepyfile("def test(): pass")
    result = pytester.runpytest_inprocess("-p", "no:xdist", f"--cxl-seed={wrong}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--cxl-seed takes a number from 0 to 4294967295" in result.stderr.str()


def test_runs_without_it_import_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\ndef test():\n    assert not {'numpy', 'cxlemu', 'collectives', 'faults.worlds'} & set(sys.modules)"
    )
    pytester.runpytest_subprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_a_rank_that_does_not_come_is_a_failure_and_no_hang(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import numpy as np
        import pytest
        from cxlemu.errors import DeadlineError, RankFailures

        def test_it(cxl_world):
            def main(comm):
                if comm.rank:
                    comm.all_reduce(np.zeros(8))
            with pytest.raises(RankFailures) as caught:
                cxl_world(ranks=2, deadline_s=0.5).run(main)
            assert isinstance(caught.value.failures[1], DeadlineError)
        """
    )
    pytester.runpytest_inprocess("-p", "no:xdist").assert_outcomes(passed=1)


def test_a_world_leaves_nothing_in_shared_memory(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os
        from pathlib import Path

        def mine():
            return [path.name for path in Path("/dev/shm").iterdir() if f"-{os.getpid()}-" in path.name]

        def test_it(cxl_world):
            assert all(cxl_world(ranks=2).run(lambda comm: mine()))
            assert mine() == []
        """
    )
    pytester.runpytest_inprocess("-p", "no:xdist").assert_outcomes(passed=1)
