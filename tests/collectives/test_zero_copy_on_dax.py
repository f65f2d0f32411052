"""Arrays in the heap of a pool on real cards, files in their place: no call copies them before it publishes them."""

from pathlib import Path

import numpy as np
import pytest

from collectives import Communicator
from cxlemu import RankContext, launch
from tests.helpers.card_files import real_cards


def fold_in_the_heap(context: RankContext) -> list[float]:
    """A heap array that its user rewrites between calls."""
    with Communicator.world(context) as comm:
        x = comm.heap.empty(5000, np.float64)
        found = []
        for turn in range(3):
            x[:] = np.arange(5000) * (comm.rank + 1) + turn
            total = comm.all_reduce(x, out=np.empty(5000), variant="zero_copy")
            blocks = comm.all_gather(x, variant="zero_copy")
            found += [float(total.sum()), float(blocks.sum())]
        return found


@pytest.mark.deep(rows=lambda how: how == "processes")
@pytest.mark.parametrize("how", ["threads", "processes"])
def test_arrays_in_the_heap_are_published_where_they_lie(tmp_path: Path, how: str) -> None:
    spec = real_cards(tmp_path)
    ramp = float(np.arange(5000).sum())
    wanted = [value for turn in range(3) for value in [3 * ramp + 2 * 5000 * turn] * 2]
    assert launch(fold_in_the_heap, ranks=2, memory=spec, how=how) == [wanted] * 2
