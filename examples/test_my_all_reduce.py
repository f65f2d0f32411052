"""A test suite of your own: pytest examples/test_my_all_reduce.py"""

import numpy as np
import pytest


def main(comm):
    return comm.all_reduce(np.full(1000, comm.rank, np.float32))


def test_sums_are_right(cxl_world):
    for x in cxl_world(ranks=3).run(main):
        assert (x == 3).all()


@pytest.mark.cxl_faults({"kind": "crash", "rank": 1, "when": {"instruction": 2}}, requires="detect")
def test_a_crash_is_noticed(cxl_world):
    first, _, last = cxl_world(ranks=3).run(main)
    assert first.ranks == last.ranks == (1,)  # both are PeerLostErrors


def test_my_algorithm_is_right_in_every_order(cxl_world):
    cxl_world.check_algorithm("examples/my_all_reduce.py:my_all_reduce", ranks=3, seeds=20)
