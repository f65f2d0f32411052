"""Lines that are flushed at once are judged as lines that are flushed one after another."""

import pytest

from faults.programs.area import library_path
from faults.programs.result import RunChoice, RunResult
from tests.helpers.pool_programs import built, on_x86, ran

pytestmark = on_x86

CALLS = ("-DCXLEMU_PROGRAM", "-Wl,--no-as-needed", str(library_path()))
CHOICES = [RunChoice(None, k) for k in (0, 1, 2, 6)] + [RunChoice(1, 3)]


def both(mode: str, choice: RunChoice, *, check: bool = True) -> list[RunResult]:
    flags = () if mode == "recompiled" else CALLS
    its = built(mode, "ranges.c", *flags)
    return [
        ran(
            f"{its} /dev/shm/ranges 0 {how} : {its} /dev/shm/ranges 1 {how}",
            choice,
            pool="/dev/shm/ranges",
            check=check,
        )
        for how in ("range", "line")
    ]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_range_is_judged_as_its_lines(choice: RunChoice) -> None:
    at_once, by_line = both("recompiled", choice)
    assert (at_once.steps, at_once.trace) == (by_line.steps, by_line.trace)
    found = [sorted(bytes(raw) for raw in one.findings + one.warnings) for one in (at_once, by_line)]
    assert found[0] == found[1] and found[0]


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_a_range_makes_the_steps_of_its_lines_in_binaries(choice: RunChoice) -> None:
    at_once, by_line = both("preloaded", choice, check=False)
    assert (at_once.steps, at_once.trace) == (by_line.steps, by_line.trace)
