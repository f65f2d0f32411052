"""Repeated calls on arrays of ``comm.heap``: C runs them alone, as those on ordinary arrays, and holds none of them."""

import gc
import sys
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from collectives import Communicator
from collectives.communicator.heap.heap_blocks import Leak
from cxlemu import RankContext, launch
from tests.helpers.worlds import on_ranks


def calls_of_python(function: Callable[[], object]) -> int:
    """Count the functions in Python that a call enters."""
    entered = []
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_qualname) if event == "call" else None)
    try:
        function()
    finally:
        sys.setprofile(None)
    return len(entered)


@on_ranks(1, topology=None)
def test_repeated_calls_on_arrays_of_the_heap_run_in_c_alone(comm: Communicator) -> None:
    x, y = comm.heap.zeros(64, np.float32), comm.heap.zeros(64, np.float32)
    private = np.zeros(64, np.float32)
    for call in (
        lambda: comm.all_reduce(x),
        lambda: comm.all_reduce(y),
        lambda: comm.all_reduce(x[:16]),
        lambda: comm.all_gather(x, out=private),
        lambda: comm.all_gather(private, out=y),
    ):
        assert calls_of_python(call) > 10
        assert calls_of_python(call) <= 2, "the lambda, and one that ends the profile"
    new = comm.heap.zeros(8)  # what a call does may depend on which arrays there are
    assert calls_of_python(lambda: comm.all_reduce(x)) > 10
    assert calls_of_python(lambda: comm.all_reduce(x)) <= 2
    del new
    assert calls_of_python(lambda: comm.all_reduce(x)) > 10


@on_ranks(1, topology=None)
def test_an_array_is_its_users_again_after_a_call(comm: Communicator) -> None:
    x = np.ones(64, np.float32)
    comm.all_reduce(x)
    x.resize(128)  # refused while somebody holds its bytes
    gone = weakref.ref(x)
    del x
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("memory", ["shm", "emulated"])
def test_calls_that_c_remembers_follow_arrays_that_are_dropped_and_made_again(memory: str) -> None:
    def main(context: RankContext) -> list[Leak]:
        with Communicator.world(context) as comm:
            for turn in range(12):
                kept = [comm.heap.full(256 + 64 * (turn % 3), comm.rank + turn, np.int64) for _ in range(1 + turn % 2)]
                for _ in range(3):
                    for array in kept:
                        array.fill(comm.rank + turn)
                        comm.all_reduce(array)
                        assert (array == sum(rank + turn for rank in range(comm.size))).all()
                del kept, array
            gc.collect()
            return comm.heap.leaks()

    assert launch(main, ranks=2, memory=memory, how="threads") == [[], []]
