"""The benchmark of first calls plans every collective, whatever the number of ranks."""

import pytest

from studies.benchmarks.first_calls import COLLECTIVES, measured


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_collective_of_every_size_is_planned_once_a_round(ranks: int) -> None:
    times = measured(ranks, sizes=(64, 4096), rounds=1)
    assert set(times) == {(name, nbytes) for name in COLLECTIVES for nbytes in (64, 4096)}
