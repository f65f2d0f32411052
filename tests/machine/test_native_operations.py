"""Persistent operations, and ordinary calls that find the operation of one made before: the same results, less work."""

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives.communicator.communicator import Communicator
from cxlemu.errors import ArgumentError, MismatchError, RankFailures, RunError
from cxlemu.memory import MemorySpec
from cxlemu.world import RankContext, launch
from tests.helpers import worlds
from tests.helpers.tiers import PATIENT_S

ENGINES = ("reference", "native")


def on_ranks(*where: Any, **how: Any) -> Callable[[Callable[..., Any]], Any]:
    """Test a program on either engine."""
    test_of = worlds.on_ranks(*where, region_bytes=1 << 16, asks="engine", **how)
    return lambda program: pytest.mark.parametrize("engine", ENGINES)(test_of(program))


@on_ranks(gives=[[3.0, 5.0, 7.0]] * 2)
def test_an_operation_runs_on_what_its_arrays_hold_when_it_is_called(comm: Communicator) -> list[float]:
    x = np.zeros(3, np.float32)
    op = comm.persistent.all_reduce(x)
    seen = []
    for value in (1, 2, 3):
        x[:] = value + comm.rank
        assert op() is x
        seen.append(float(x[0]))
    return seen


@on_ranks(ranks=3)
def test_every_collective_has_an_operation_that_does_what_its_call_does(comm: Communicator) -> None:
    x = np.arange(6, dtype=np.int32) + 10 * comm.rank
    root = comm.size - 1
    block = np.empty(2, np.int32)
    for name, arguments in {
        "all_reduce": {"out": np.empty_like(x)},
        "reduce": {"out": np.empty_like(x), "root": root},
        "broadcast": {"root": root},
        "all_gather": {},
        "gather": {"root": root},
        "scatter": {"out": block, "root": root},
        "reduce_scatter": {},
        "all_to_all": {},
    }.items():
        called = getattr(comm, name)(x.copy(), **arguments)
        called = None if called is None else called.copy()
        op = getattr(comm.persistent, name)(x.copy(), **arguments)
        for _ in range(3):
            np.testing.assert_array_equal(op(), called, err_msg=name)
    assert comm.persistent.barrier()() is None


@on_ranks(gives=[[[1, 1], [3, 3], [5, 5], [7, 7]]] * 2)
def test_like_calls_use_the_arrays_that_each_brings(comm: Communicator) -> list[list[float]]:
    results = []
    for value in range(4):
        x, out = np.full(2, value + comm.rank, np.float32), np.empty(2, np.float32)
        assert comm.all_reduce(x, out=out) is out
        results.append(out.tolist())
    return results


@on_ranks(gives=[(6, 6.0, 6, 6.0)] * 2)
def test_the_same_memory_under_another_dtype_is_another_call(comm: Communicator) -> tuple[int, float, int, float]:
    memory = np.zeros(8, np.uint8)
    results: list[Any] = []
    for dtype in (np.int64, np.float64, np.int64, np.float64):
        x = memory.view(dtype)
        x[0] = 3
        results.append(comm.all_reduce(x)[0].item())
    return tuple(results)


@on_ranks(gives=[[12.0, 12.0]] * 2)
def test_bfloat16_has_no_buffer_format_and_works_all_the_same(comm: Communicator) -> list[float]:
    x = np.full(2, 1.5, ml_dtypes.bfloat16)
    op = comm.persistent.all_reduce(x)
    comm.all_reduce(x)
    comm.all_reduce(x)
    return op().astype(float).tolist()


@on_ranks()
def test_another_op_root_or_variant_is_another_call(comm: Communicator) -> None:
    for _ in range(2):
        for op, expected in (("sum", 3), ("max", 2), ("prod", 2)):
            x = np.full(2, 1 + comm.rank, np.int32)
            assert comm.all_reduce(x, op)[0] == expected
        for root in (0, 1):
            x = np.full(2, comm.rank, np.int32)
            assert comm.broadcast(x, root=root)[0] == root
        for variant in ("naive", "line", "all"):
            assert comm.all_reduce(np.ones(2, np.int32), variant=variant)[0] == 2


@on_ranks()
def test_what_is_wrong_with_an_array_is_found_after_a_like_one_was_right(comm: Communicator) -> None:
    x, out = np.ones(4, np.float32), np.empty(4, np.float32)
    comm.all_reduce(x, out=out)
    out.flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        comm.all_reduce(x, out=out)
    assert comm.all_reduce(np.ones(8, np.float32)[::2], out=np.empty(4, np.float32))[0] == 2  # copied in
    both = np.ones(6, np.float32)
    with pytest.raises(ArgumentError, match="overlap"):
        comm.all_reduce(both[:4], out=both[2:])
    with pytest.raises(ArgumentError, match="array"):
        comm.all_reduce([1.0] * 4, out=np.empty(4, np.float32))
    assert comm.all_reduce(x)[0] == 2  # and nothing was sent by those


@on_ranks()
def test_in_place_and_not_are_different_calls_of_one_length(comm: Communicator) -> None:
    for _ in range(3):
        out = np.zeros((2, 2), np.int32)
        out[comm.rank] = comm.rank + 1
        assert comm.all_gather(out[comm.rank], out).tolist() == [[1, 1], [2, 2]]
        x = np.full(2, comm.rank + 1, np.int32)
        assert comm.all_gather(x, np.empty((2, 2), np.int32)).tolist() == [[1, 1], [2, 2]]


@on_ranks(gives=[[4, 16]] * 2)
def test_an_operation_waits_for_the_asynchronous_calls_before_it(comm: Communicator) -> list[int]:
    x, y = np.ones(20000, np.int64), np.ones(1, np.int64)
    op = comm.persistent.all_reduce(y)
    op()
    comm.all_reduce(y)
    pending = comm.all_reduce(x, async_op=True)
    op()
    assert pending.done and pending.test()
    comm.all_reduce(x, async_op=True)
    comm.all_reduce(y)
    return [int(x[0]), int(y[0])]


@pytest.mark.parametrize("engine", ENGINES)
def test_operations_that_differ_between_ranks_are_a_mismatch(engine: str) -> None:
    def program(comm: Communicator) -> None:
        ops = [comm.persistent.all_reduce(np.ones(2, np.float32), op) for op in ("sum", "max")]
        for op in ops:
            op()
        ops[comm.rank]()
        ops[0]()

    with pytest.raises(RankFailures) as raised:
        worlds.together(program, engine=engine)
    assert any(isinstance(error, MismatchError) for error in raised.value.failures.values())


@on_ranks()
def test_an_operation_of_a_revoked_communicator_says_so(comm: Communicator) -> None:
    x = np.ones(2, np.float32)
    op = comm.persistent.all_reduce(x)
    op()
    with pytest.raises((MismatchError, RunError)):
        for _ in range(3):
            comm.all_reduce(x, "sum" if comm.rank else "max")
    with pytest.raises(RunError, match="revoked"):
        op()
    with pytest.raises(RunError, match="revoked"):
        comm.all_reduce(x)


def test_an_operation_takes_no_arguments() -> None:
    def main(context: RankContext) -> None:
        with Communicator.world(context, engine="native") as comm:
            op = comm.persistent.barrier()
            with pytest.raises(TypeError, match="without arguments"):
                op(1)  # type: ignore[call-arg]

    launch(main, ranks=1, topology="laptop", memory=MemorySpec("shm"))


def test_calls_made_before_allocate_nothing() -> None:
    def main(context: RankContext) -> int:
        with Communicator.world(context, engine="native") as comm:
            x, out = np.ones(2, np.float32), np.empty(2, np.float32)
            op = comm.persistent.all_reduce(x, out=out)

            def calls() -> int:
                before = sys.getallocatedblocks()
                for _ in range(1000):
                    op()
                    comm.all_reduce(x, out=out)
                return sys.getallocatedblocks() - before

            calls()
            gc.disable()
            try:
                return min(calls() for _ in range(5))
            finally:
                gc.enable()

    (grown,) = launch(main, ranks=1, topology="laptop", memory=MemorySpec("shm"))
    assert grown < 100  # of 2000 calls


def test_a_communicator_goes_when_nobody_holds_it() -> None:
    def main(context: RankContext) -> weakref.ref[Communicator]:
        comm = Communicator.world(context, engine="native")
        x = np.ones(2, np.float32)
        comm.all_reduce(x)
        comm.persistent.all_reduce(x)()
        return weakref.ref(comm)

    (gone,) = launch(main, ranks=1, topology="laptop", memory=MemorySpec("shm"))
    gc.collect()
    assert gone() is None


def test_large_arrays_are_read_past_the_caches_to_the_last_byte() -> None:
    """From 8 MiB on, by non-temporal stores of whole lines; these arrays begin and end within one."""
    elements = (1 << 20) + 3

    def main(context: RankContext) -> bool:
        with Communicator.world(context) as comm:
            x = np.arange(elements, dtype=np.float32) + comm.rank
            out = np.full(2 * elements + 3, -1, np.float32)
            comm.all_gather(x, out[1:-2])
            expected = np.concatenate([[-1], *(np.arange(elements) + rank for rank in range(2)), [-1, -1]])
            return bool((out == expected.astype(np.float32)).all())

    assert launch(main, ranks=2, topology="six-cards", memory=MemorySpec("shm"), deadline_s=PATIENT_S) == [True] * 2


def test_an_array_of_the_pool_never_goes_the_way_of_a_like_one_that_is_not() -> None:
    """Which operations are remembered may differ between ranks; how an array of the pool is published must not."""

    def main(context: RankContext) -> int:
        with Communicator.world(context, region_bytes=1 << 16) as comm:
            x, out = np.ones(1 << 10, np.float32), np.empty(2 << 10, np.float32)
            lent = comm.heap.full(x.shape, 2, np.float32)
            comm.all_gather(x, out)
            asked = []
            holds = comm.heap.holds
            comm.heap.holds = lambda *given, **named: asked.append(given) or holds(*given, **named)  # type: ignore[method-assign, func-returns-value]
            comm.all_gather(x, out)
            assert not asked and out[-1] == 1
            comm.all_gather(lent, out)
            assert out[-1] == 2
            return len(asked)

    assert launch(main, ranks=2, topology="laptop", memory=MemorySpec("shm")) == [1] * 2


@on_ranks(1, memory="emulated", gives=[(1.0, True)])
def test_old_names_still_work_and_say_the_new_ones(comm: Communicator) -> tuple[float, bool]:
    x = np.ones(4, np.float32)
    with pytest.warns(DeprecationWarning, match=r"comm\.persistent\.all_reduce"):
        op = comm.all_reduce_init(x)
    op()
    with pytest.warns(DeprecationWarning, match=r"comm\.heap"):
        same = comm.pool is comm.heap
    with pytest.raises(AttributeError, match="no attribute 'all_reduces_init'"):
        comm.all_reduces_init  # noqa: B018
    return float(x[0]), same


@on_ranks(1, memory="emulated")
def test_a_persistent_operation_is_not_asynchronous(comm: Communicator) -> None:
    with pytest.raises(ArgumentError, match="async_op is for calls, not"):
        comm.persistent.all_reduce(np.ones(4), async_op=True)
