"""A few worlds under attack; `scripts/chaos` runs an hour of them."""

import pytest

from tests.helpers.chaos import chaos


@pytest.mark.deep
def test_worlds_under_attack_end_are_right_and_leave_nothing() -> None:
    tally = chaos(seed=1, seconds=60.0, most=6)
    assert tally.worlds and tally.clean, f"{tally}\n{tally.hung + tally.wrong + tally.left}"
