"""The pytest plugin, as a user's own suite sees it: a pytest of its own in a folder of its own."""

import os
import re
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from cxlemu.errors import ArgumentError, InputError, RankFailures
from cxlemu.userfile import LeftError
from faults.inject.script import Script
from faults.testing.worlds import Worlds, requires_of, script_of
from tests.helpers import rank_programs
from tests.helpers.commands import cxlemu
from tests.helpers.own_algorithms import TO_ONE_RANK
from tests.helpers.tables import with_rows

pytest_plugins = ["pytester"]

# Runs in this process put back sys.modules at their end, but NumPy can be imported only once: it is imported above.

NO_HYPOTHESIS = ("-p", "no:hypothesispytest")  # which each of these runs would import anew
ALONE = ("-p", "no:xdist", *NO_HYPOTHESIS)

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
    assert [point.value for point in entry_points(group="pytest11", name="cxlemu")] == ["cxlemu.pytest_plugin"]


def test_a_users_module_of_the_same_name_ends_no_test_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(faults="", test_it="def test_it(): pass")
    result = pytester.run(sys.executable, "-m", "pytest", "-q", *ALONE, "-v")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [f"cxlemu: no fixtures: its package 'faults' is hidden by {pytester.path / 'faults.py'}"]
    )


def test_ten_lines_are_a_suite(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    pytester.runpytest_inprocess(*ALONE).assert_outcomes(passed=1)


def test_a_failure_says_how_to_see_it_again(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SUITE.replace("x == 3", "x == 4"))
    result = pytester.runpytest_inprocess(*ALONE)
    result.assert_outcomes(failed=1)
    seed = header_seed(result)
    result.stdout.fnmatch_lines([f"again: pytest --cxl-seed {seed} 'test_it.py::test_the_sum_is_right'"])
    result.stdout.fnmatch_lines(["world 0: 3 ranks on six-cards as threads, native engine, *adversary seed *"])


def test_the_seed_decides_and_differs_from_run_to_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SEEDS)
    first, second = (pytester.runpytest_inprocess(*ALONE) for _ in range(2))
    assert seeds_of(first) != seeds_of(second)
    again = pytester.runpytest_inprocess(*ALONE, "--cxl-seed", str(header_seed(first)))
    assert seeds_of(again) == seeds_of(first)
    assert len(set(re.findall(r"\d{4,}", " ".join(seeds_of(first))))) == 8  # of each test, and of each world


def test_one_test_alone_draws_what_it_draws_among_others(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=SEEDS)
    everything = pytester.runpytest_inprocess(*ALONE, "--cxl-seed", "5")
    alone = pytester.runpytest_inprocess(*ALONE, "--cxl-seed", "5", "test_it.py::test_prints_its_seeds[2]")
    assert seeds_of(alone) == [line for line in seeds_of(everything) if line.startswith("SEED 2")]


@pytest.mark.deep
def test_workers_of_xdist_share_the_controllers_seed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SEEDS)
    spread = pytester.runpytest_subprocess("-n", "2", *NO_HYPOTHESIS)
    spread.assert_outcomes(failed=4)
    (seed,) = set(re.findall(r"pytest --cxl-seed (\d+) ", spread.stdout.str()))  # one, whoever ran the test
    alone = pytester.runpytest_inprocess(*ALONE, "--cxl-seed", seed)
    assert seeds_of(spread) == seeds_of(alone)


@pytest.mark.parametrize("wrong", ["-1", str(1 << 32)])
def test_a_wrong_seed_is_one_sentence(pytester: pytest.Pytester, wrong: str) -> None:
    pytester.makepyfile("def test(): pass")
    result = pytester.runpytest_inprocess(*ALONE, f"--cxl-seed={wrong}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--cxl-seed takes a number from 0 to 4294967295" in result.stderr.str()


def test_runs_without_it_import_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import sys\ndef test():\n    assert not {'numpy', 'cxlemu.world', 'collectives', 'faults.testing.worlds'} & set(sys.modules)"  # noqa: E501
    )
    pytester.runpytest_subprocess(*ALONE).assert_outcomes(passed=1)


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
    pytester.runpytest_inprocess(*ALONE).assert_outcomes(passed=1)


def test_a_world_leaves_nothing_in_shared_memory(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os
        from pathlib import Path

        def mine():
            return [path.name for path in Path("/dev/shm").iterdir() if f"-{os.getpid()}-" in path.name]

        def test_it(cxl_world):
            assert cxl_world(ranks=2).run(lambda comm: mine()) == [[], []]  # names go when all ranks are there
            assert mine() == []
        """
    )
    pytester.runpytest_inprocess(*ALONE).assert_outcomes(passed=1)


# --- faults --------------------------------------------------------------------------------------------------

FAULTS = """
import numpy as np
import pytest
from cxlemu.errors import PeerLostError
from faults.testing.worlds import NotHandled

def main(comm):
    return comm.all_reduce(np.full(64, comm.rank, np.float32), variant="naive")
"""


def passes(pytester: pytest.Pytester, tests: str, **expected: int) -> pytest.RunResult:
    pytester.makepyfile(test_it=FAULTS + tests)
    result = pytester.runpytest_inprocess(*ALONE, "--strict-markers")
    result.assert_outcomes(**(expected or {"passed": 1}))
    return result


def test_a_crash_is_noticed_by_every_survivor(pytester: pytest.Pytester) -> None:
    passes(
        pytester,
        """
@pytest.mark.cxl_faults({"kind": "crash", "rank": 1, "when": {"instruction": 2}})
@pytest.mark.parametrize("engine", ["native", "reference"])
def test_it(cxl_world, engine):
    first, dead, last = cxl_world(ranks=3, engine=engine).run(main)
    assert isinstance(first, PeerLostError) and isinstance(last, PeerLostError)
    assert not isinstance(dead, Exception)
""",
        passed=2,
    )


def test_what_is_owed_is_a_right_result(pytester: pytest.Pytester) -> None:
    passes(
        pytester,
        """
@pytest.mark.cxl_faults({"kind": "evict", "rank": 0, "when": {"instruction": 3}})
@pytest.mark.cxl_faults({"kind": "repeat_doorbell", "rank": 1, "when": {"instruction": 0}})
def test_it(cxl_world):
    world = cxl_world(ranks=3)
    assert len(world.script.faults) == 2
    for x in world.run(main):
        assert (x == 3).all()
""",
    )


def test_a_script_lies_beside_the_test(pytester: pytest.Pytester) -> None:
    pytester.makefile(".yaml", lost="faults: [{kind: kill, rank: 2, when: {instruction: 1}}]")
    passes(
        pytester,
        """
@pytest.mark.cxl_faults("lost.yaml")
def test_it(cxl_world):
    ends = cxl_world(ranks=3).run(main)
    assert [isinstance(end, PeerLostError) for end in ends] == [True, True, False]
""",
    )


def test_a_fault_that_is_not_survived_fails_the_test_that_requires_it(pytester: pytest.Pytester) -> None:
    result = passes(
        pytester,
        """
@pytest.mark.cxl_faults({"kind": "crash", "rank": 1, "when": {"instruction": 2}}, requires="survive")
def test_it(cxl_world):
    cxl_world(ranks=3).run(main)
""",
        failed=1,
    )
    result.stdout.fnmatch_lines(["*RankFailures*", "world 0: 3 ranks *; crash at rank 1, call 0, instruction 2"])


def test_a_rank_that_swallows_the_error_is_found_out(pytester: pytest.Pytester) -> None:
    """A survivor whose error is not one that the fault explains."""
    passes(
        pytester,
        """
def wrong(comm):
    try:
        return main(comm)
    except PeerLostError:
        raise KeyError("something else") from None

@pytest.mark.cxl_faults({"kind": "crash", "rank": 1, "when": {"instruction": 2}})
def test_it(cxl_world):
    with pytest.raises(NotHandled, match="wrong error: rank [02]: KeyError"):
        cxl_world(ranks=3).run(wrong)
""",
    )


def test_a_marked_fault_that_never_happened_fails_the_test(pytester: pytest.Pytester) -> None:
    result = passes(
        pytester,
        """
pytestmark = pytest.mark.cxl_faults({"kind": "land", "rank": 0, "when": {"call": 1, "instruction": 0}})
def test_expected(cxl_world):
    with pytest.raises(NotHandled, match="fault 1 never happened: rank 0 made 1 call"):
        cxl_world(ranks=2).run(main)
def test_not_run(cxl_world): cxl_world(ranks=3)
def test_not_called(cxl_world): pass
def test_no_fixture(): pass
def test_plans(cxl_world): cxl_world.check("all_gather", ranks=2, nbytes=64, seeds=1)
def test_torch(torch_world): pass
def test_skipped(cxl_world): pytest.skip("before its world")
""",
        failed=6,
        skipped=1,
    )
    assert sum("the faults of cxl_faults never happened: " in line for line in result.outlines) >= 6


CRASH = {"kind": "crash", "rank": 0, "when": {"instruction": 0}}


@with_rows(
    ((), {}, "cxl_faults takes fault scripts"),
    ((3,), {}, "cxl_faults takes files and mappings"),
    (("nowhere.yaml",), {}, "nowhere.yaml: No such file or directory"),
    ((CRASH | {"kind": "crush"},), {}, "did you mean crash?"),
    (({"kind": "crash", "rank": 0},), {}, r"faults\[0\].when is missing"),
    (({"kind": object()},), {}, "made of words and numbers"),
    ((CRASH,), {"requires": "luck"}, 'requires "survive" or "detect"'),
    ((CRASH,), {"requires": "detect", "owes": "detect"}, "not both"),
    ((CRASH,), {"own": "luck"}, "cxl_faults takes fault scripts"),
)
def test_a_wrong_marker_is_one_sentence(
    arguments: tuple[object, ...], keywords: dict[str, object], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=sentence) as caught:
        marks = [(arguments, keywords)]
        script_of(marks, tmp_path, 0), requires_of(marks)
    assert "\n" not in str(caught.value)


def test_the_old_name_of_requires_still_works_and_says_the_new_one() -> None:
    with pytest.warns(DeprecationWarning, match="requires="):
        assert requires_of([((CRASH,), {}), ((CRASH,), {"owes": "survive"})]) == "survive"
    with pytest.warns(DeprecationWarning), pytest.raises(ArgumentError, match="not 'luck'"):
        requires_of([((CRASH,), {"owes": "luck"})])


def test_a_wrong_marker_is_the_tests_failure(pytester: pytest.Pytester) -> None:
    result = passes(pytester, "@pytest.mark.cxl_faults(3)\ndef test_it(cxl_world): pass\n", errors=1)
    result.stdout.fnmatch_lines(["test_it.py::test_it: cxl_faults takes files and mappings, not 3"])


def test_a_failure_of_a_plan_comes_with_a_token(pytester: pytest.Pytester) -> None:
    own = pytester.makepyfile(own=TO_ONE_RANK)
    result = passes(
        pytester,
        f"""
def test_it(cxl_world):
    cxl_world.check_algorithm("{own}:mine", ranks=3, seeds=2)
def test_right(cxl_world):
    cxl_world.check("all_gather", "naive", ranks=2, nbytes=100, seeds=3)
def test_where(cxl_world):
    cxl_world.check_algorithm("{own}:mine", ranks=2, seeds=1, config="laptop")
    with __import__("pytest").raises(Exception, match="shipped topology"):
        cxl_world.check("all_gather", "naive", ranks=2, config="no-such-machine")
    with __import__("pytest").raises(Exception, match="nothing can fail: give a larger size"):
        cxl_world.check("all_gather", "naive", ranks=2, nbytes=0)
    with __import__("pytest").raises(Exception, match="ranks.0: input should be greater than or equal to 2"):
        cxl_world.check("all_gather", "naive", ranks=1)
    with __import__("pytest").raises(Exception, match="has 0 cases: change seeds or sizes to have 1 to"):
        cxl_world.check("all_gather", "naive", ranks=2, seeds=0)
""",
        failed=1,
        passed=2,
    )
    # Under CI=1 pytest's summary repeats the whole message.
    (command,) = set(re.findall(r"again: (cxlemu replay cxl1\.\S+ --algorithm \S+)", result.stdout.str()))
    assert "fails again, exactly as recorded: wrong bytes" in cxlemu(*command.split()[1:], code=1).output


# --- what a failure shows ------------------------------------------------------------------------------------

MISUSE = """
from cxlemu import launch
from collectives import Communicator

def main(context):
    with Communicator.world(context) as comm:
        comm.all_reduce([1, 2, 3])

def test_it():
    launch(main, ranks=1, topology="laptop")
"""


@pytest.mark.parametrize(("whole", "shown"), [(False, False), (True, True)])
def test_a_failure_shows_the_users_frames(pytester: pytest.Pytester, whole: bool, shown: bool) -> None:
    pytester.makepyfile(test_it=MISUSE)
    out = pytester.runpytest_inprocess(*ALONE, "--tb=short", *["--full-trace"] * whole).stdout.str()
    assert "launch(main, ranks=1" in out and "comm.all_reduce([1, 2, 3])" in out and "x is a list" in out
    assert ("in_rank_order" in out, "staging.arrays" in out) == (shown, shown)


def test_a_rank_that_leaves_does_not_end_the_tests() -> None:
    with pytest.raises(RankFailures) as caught:
        Worlds(1, Script())(ranks=2).run(lambda comm: os._exit(0))
    assert {str(error) for error in caught.value.failures.values() if isinstance(error, LeftError)} == {"os._exit(0)"}


def test_a_result_that_leaves_does_not_end_the_tests() -> None:
    with pytest.raises(RankFailures, match=r"cannot be unpickled: LeftError: os._exit\(0\)"):
        Worlds(1, Script())(ranks=1, how="processes").run(rank_programs.return_what_leaves)


async def waits(comm: object) -> int:
    return 1


@pytest.mark.parametrize("main", [lambda comm: (yield), waits])
def test_a_main_of_which_nothing_runs_is_refused(main: Any) -> None:
    with pytest.raises(ArgumentError, match="nothing of it ran"):
        Worlds(1, Script())(ranks=2).run(main)
