"""Arrays that share memory with each other, or with themselves: refused, or used in order."""

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from collectives import PROC_NULL, Communicator
from collectives.communicator.arrays import check_distinct
from cxlemu._native import apart
from cxlemu.errors import ArgumentError
from tests.helpers.worlds import on_ranks, together

LARGE = 3_000_000  # bytes: more than one segment of a message


def folded(kind: str) -> Any:
    """An array of 4 elements, some of which share memory."""
    if kind == "stride 0":
        return as_strided(np.zeros(1), (4,), (0,))
    if kind == "window":
        return sliding_window_view(np.zeros(3), 2, writeable=True)
    if kind == "bytes apart":
        return as_strided(np.zeros(4), (4,), (3,))
    import torch

    return torch.zeros(1, dtype=torch.float64).expand(4)


@pytest.mark.parametrize("kind", ["stride 0", "window", "bytes apart", "expand"])
def test_results_need_memory_for_every_element(kind: str) -> None:
    if kind == "expand":
        pytest.importorskip("torch")

    def program(comm: Communicator) -> None:
        out, peer, x = folded(kind), 1 - comm.rank, np.ones(4)
        for call, name in (
            (lambda: comm.all_reduce(x, out=out), "out"),
            (lambda: comm.all_reduce(out), "x"),
            (lambda: comm.persistent.all_reduce(out), "x"),
            (lambda: comm.all_gatherv(x[:2], out), "out"),
            (lambda: comm.all_to_allv([x, x], [np.ones(4), out]), "out"),
            (lambda: comm.all_reduce_many([x, out]), "arrays[1]"),
            (lambda: comm.all_gather_many([x[:2]], [out]), "outs[0]"),
            (lambda: comm.irecv(out, peer), "array"),
            (lambda: comm.sendrecv(x, peer, out, peer), "out"),
        ):
            with pytest.raises(ArgumentError, match=rf"^{re.escape(name)} .*(share memory|not contiguous)"):
                call()
        comm.broadcast(np.ones(4) if comm.rank else out)
        assert comm.all_gather(out).shape[0] == 2

    together(program)


def test_elements_that_only_look_folded_are_written() -> None:
    for shape, strides in (((3, 2), (32, 40)), ((2, 2), (24, 16)), ((0, 2), (0, 0)), ((1, 2), (0, 8))):
        check_distinct(as_strided(np.zeros(16), shape, strides), "out")
    check_distinct(np.zeros((4, 6))[::-2, ::3].T, "out")
    with pytest.raises(ArgumentError, match="share memory"):
        check_distinct(as_strided(np.zeros(16), (3, 3), (32, 64)), "out")


def test_elements_are_compared_without_room_for_each() -> None:
    x = as_strided(np.zeros(1 << 21, np.uint8), (2, 1 << 19), (3, 2))
    tracemalloc.start()
    try:
        check_distinct(x, "out")
        with pytest.raises(ArgumentError, match="share memory"):
            check_distinct(as_strided(x, (2, 1 << 19), (4, 2)), "out")
        assert tracemalloc.get_traced_memory()[1] < 1 << 16
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["same", "shifted", "tensor"])
def test_sendrecv_refuses_buffers_that_overlap(kind: str) -> None:
    if kind == "tensor":
        pytest.importorskip("torch")

    def program(comm: Communicator) -> None:
        peer, room = 1 - comm.rank, np.zeros(LARGE + 1, np.uint8)
        x, out = (room, room) if kind == "same" else (room[1:], room[:-1])
        if kind == "tensor":
            import torch

            x = out = torch.zeros(LARGE)
        with pytest.raises(ArgumentError, match="sendrecv: x and out overlap"):
            comm.sendrecv(x, peer, out, peer)
        both = np.full(LARGE, comm.rank)
        comm.sendrecv(both[::2], peer, both[1::2], peer)
        assert (both[::2] == comm.rank).all() and (both[1::2] == peer).all()
        comm.sendrecv(both, PROC_NULL, np.zeros(1), PROC_NULL)

    together(program)


@pytest.mark.parametrize("engine", ["native", "reference"])
@on_ranks(asks="engine")
def test_coalesced_calls_on_one_array_run_in_order(comm: Communicator) -> None:
    x, y = np.full(4, comm.rank + 1.0), np.zeros(8)
    with comm.coalesce() as batch:
        batch.all_reduce(x)  # 3
        batch.all_reduce(x[1:])  # 6
        batch.all_reduce(x[2:].view(np.int64)[:0])
        batch.all_reduce(x[2:])  # 12
    assert x.tolist() == [3, 6, 12, 12]
    with comm.coalesce() as batch:
        batch.all_gather(x, y)
        batch.all_gather(y[:1], x[:2])
        batch.all_gather(x[1:2], y[2:4])
    assert x.tolist() == [3, 3, 12, 12] and y.tolist() == [3, 6, 3, 3, 3, 6, 12, 12]
    assert [each.tolist() for each in comm.all_reduce_many([x, x[:1], x[1:2]])] == [[12, 12, 24, 24], [12], [12]]
    twice = [np.ones(2)] * 2 if comm.rank == 0 else [np.zeros(2), np.zeros(2)]
    assert [each.tolist() for each in comm.broadcast_many(twice)] == [[1, 1], [1, 1]]
    whole = np.arange(4) if comm.rank == 0 else np.zeros(4, np.int64)
    comm.broadcast_many([whole, whole[2:], whole[::2]])
    assert whole.tolist() == [0, 1, 2, 3]


@on_ranks()
def test_arrays_of_several_dtypes_that_share_memory_run_in_order(comm: Communicator) -> None:
    x, y = np.ones(2, np.int32), np.zeros(4, np.float32)
    # Calls 0 and 2 are of one dtype; call 2 writes what call 1 reads.
    comm.all_gather_many(
        [np.ones(2, np.float32), x, np.full(1, 2, np.float32)], [y, out := np.zeros(4, np.int32), x.view("f4")]
    )
    assert out.tolist() == [1, 1, 1, 1] and x.view("f4").tolist() == [2, 2]


def test_pairs_are_apart_where_none_lies_among_the_arrays_of_another() -> None:
    x = np.zeros((4, 6), np.int16)
    for pairs, right in (
        ([(x[0], x[1]), (x[2], x[3])], True),
        ([(x[1], x[1]), (x[0], x[0]), (x[2:, ::2], x[2:, ::2])], True),
        ([(x[0], x[:2]), (x[2], x[2:])], True),
        ([(x[0], x[1]), (x[2], x[0])], False),
        ([(x[0], x[1]), (x[1, 5:], x[2])], False),
        ([(x[::-3], x[::-3]), (x[1], x[1])], False),
        ([(x[3:0:-1, ::-1], x[3:0:-1, ::-1]), (x[0], x[0])], True),
        ([(x[1:1], x[1:1]), (x, x)], True),
        ([], True),
        ([(column, column) for column in x.T], True),
        ([(x[:, :2], x[:, :2]), (x[::-1, 2:3], x[1:3, 2:3]), (x[1:3, 4:], x[1:3, 3:])], True),
        ([(x[:, 4:], x[:, 4:]), (x[:, :4], x[:, :4])], True),
        ([(x[:, ::2], x[:, ::2]), (x[::-1, 1], x[::-1, 1])], False),  # which this does not see
        ([(x[:, :3], x[:, :3]), (x[::2, 2:4], x[::2, 2:4])], False),
        ([(x[:, :3], x[:, 3:]), (x[:1, 5], x[:, 5])], False),
    ):
        assert apart(pairs) is right and apart(pairs[::-1]) is right
    for wrong in ((x, x), [x], [(x,)], [(x, 1)]):
        with pytest.raises(TypeError):
            apart(wrong)  # type: ignore[arg-type]
