"""The outcomes that are compared with herd7's, where there is no herd7: those that interleavings have."""

import pytest

from studies.benchmarks.herd import TESTS, ours


@pytest.mark.parametrize(("name", "outcomes"), [("MP", 3), ("SB", 3), ("2+2W", 3), ("WRC", 7), ("IRIW", 15)])
def test_with_every_instruction_a_pool_has_the_outcomes_of_interleavings(name: str, outcomes: int) -> None:
    assert len(ours(TESTS[name])[0]) == outcomes
