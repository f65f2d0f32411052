"""Mistakes of published programs, in a few lines, are named, and the same lines done right are quiet."""

from pathlib import Path

import pytest

from faults.programs.result import RunChoice
from tests.helpers.pool_programs import CHOICES, MODES, built, is_quiet, kinds, on_x86, ran

ROW = str(Path(__file__).parents[2] / "examples" / "programs" / "row.c")
pytestmark = on_x86


@pytest.mark.parametrize("mode", MODES)
def test_a_host_that_locks_and_looks_again_and_again_lets_the_other_one_have_its_turn(mode: str) -> None:
    """It stores all the time and makes no progress, so by fixed priorities the other host would wait for ever."""
    row = built(mode, ROW)
    for choice in CHOICES[:4]:
        found = ran(f"{row} /dev/dax0.0 write : {row} /dev/dax0.0 read", choice, "0+4K")
        assert is_quiet(found), choice


@pytest.mark.each_value_once
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("mistake", "kind"),
    [("LAST_LINE", "not-flushed"), ("WHOLE_LINES", "no-invalidate"), ("STORE_FENCE", "invalidate-unfenced")],
)
def test_a_mistake_of_a_published_program_is_named(mode: str, mistake: str, kind: str) -> None:
    row = built(mode, ROW, f"-D{mistake}")
    words = f"{row} /dev/dax0.0 write : {row} /dev/dax0.0 read"
    assert kind in kinds(ran(words, RunChoice(None, 0), "0+4K"))
    assert "locked-across-hosts" not in kinds(ran(words, RunChoice(1, 1), "0+4K"))
