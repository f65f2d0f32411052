"""Coalesced calls, objects, a time for one call, abort from another thread, dup."""

import inspect
import pickle
import threading
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from cxlemu.errors import ArgumentError, DeadlineError, RankFailures, RevokedError
from cxlemu.memory import MemorySpec
from tests.helpers import worlds
from tests.helpers.tiers import PATIENT_S

together = partial(worlds.together, ranks=3, memory=MemorySpec(), region_bytes=1 << 14)
on_ranks = partial(worlds.on_ranks, by=together)


@pytest.mark.parametrize("engine", ["native", "reference"])
@on_ranks(asks="engine")
def test_many_arrays_are_reduced_and_moved_as_each_by_itself(comm: Communicator) -> None:
    def some() -> list[np.ndarray]:
        rng = np.random.default_rng(comm.rank)
        gaps = rng.integers(0, 99, (3, 8)).astype(np.int32)[:, ::2]
        return [rng.normal(size=(3, 2)), gaps, rng.normal(size=600), np.empty((3, 0)), np.arange(3, dtype=np.int32)]

    alone, arrays = some(), some()
    assert comm.all_reduce_many(arrays) is arrays
    for one, other in zip(alone, arrays, strict=True):
        assert (comm.all_reduce(one) == other).all()
    for found, one in zip(comm.all_gather_many(some()), some(), strict=True):
        assert found.shape == (3, *one.shape) and (found == comm.all_gather(one)).all()
    for found, one in zip(comm.reduce_scatter_many(some(), "max"), some(), strict=True):
        assert (found == comm.reduce_scatter(one, "max")).all()
    sent = comm.broadcast_many(some(), root=1)
    for found, one in zip(sent, some(), strict=True):
        assert (found == comm.broadcast(one, root=1)).all()
    arrays = some()
    pending = comm.all_reduce_many(arrays, "max", async_op=True)
    assert pending.wait() is arrays and (arrays[2] == comm.all_reduce(some()[2], "max")).all()


@on_ranks()
def test_calls_of_a_block_run_when_it_ends_and_not_where_it_raises(comm: Communicator) -> None:
    x, y, z = np.ones(3), np.full(2, comm.rank), np.zeros((3, 2), np.int64)
    part = np.zeros(1)
    with comm.coalesce() as batch:
        batch.all_reduce(x)
        batch.all_reduce(y, "max")
        batch.all_gather(np.array([comm.rank, 7]), z)
        batch.broadcast(y)
        batch.reduce_scatter(np.arange(3.0), part)
        assert x.tolist() == [1, 1, 1]
    assert x.tolist() == [3, 3, 3] and y.tolist() == [2, 2]
    assert z.tolist() == [[0, 7], [1, 7], [2, 7]] and part.tolist() == [3.0 * comm.rank]
    with pytest.raises(KeyError), comm.coalesce() as batch:
        batch.all_reduce(x)
        raise KeyError
    assert x.tolist() == [3, 3, 3]


@on_ranks()
def test_lists_that_do_not_fit_are_refused(comm: Communicator) -> None:
    for call, message in (
        (lambda: comm.all_gather_many([np.ones(2)], []), "1 arrays have 0 outs"),
        (lambda: comm.all_gather_many([np.ones(2)], [np.ones(5)]), "has an out of 5 x float64: pass 6 elements"),
        (lambda: comm.reduce_scatter_many([np.ones(4)]), r"arrays\[0\] of shape \(4,\) does not divide into 3 blocks"),
        (lambda: comm.all_reduce_many([b"ab"]), r"arrays\[0\] is read-only"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()


@on_ranks()
def test_objects_go_where_they_are_sent(comm: Communicator) -> None:
    mine = {"rank": comm.rank, "much": "x" * 5000 * comm.rank}
    everyone = [{"rank": k, "much": "x" * 5000 * k} for k in range(3)]
    assert comm.all_gather_object(mine) == everyone
    assert comm.gather_object(mine, root=1) == (everyone if comm.rank == 1 else None)
    assert comm.broadcast_object(mine, root=2) == everyone[2]
    assert comm.scatter_object(everyone if comm.rank == 0 else None) == mine
    with pytest.raises(ArgumentError, match="cannot be pickled"):
        comm.all_gather_object(lambda: None)


MUCH = 1 << 22  # bytes
ROOM: dict[str, tuple[Callable[[], Any], Callable[[Communicator, Any], Any], float]] = {
    "all_gather_object": (lambda: bytes(MUCH), lambda comm, x: comm.all_gather_object(x), 3),
    "gather_object": (lambda: bytes(MUCH), lambda comm, x: comm.gather_object(x), 3),
    "scatter_object": (lambda: [bytes(MUCH)], lambda comm, x: comm.scatter_object(x), 3),
    "all_reduce_many of gaps": (lambda: [np.ones((MUCH, 2), bool)[:, 0]], lambda comm, x: comm.all_reduce_many(x), 1),
    "all_reduce of gaps": (lambda: np.ones((MUCH, 2), bool)[:, 0], lambda comm, x: comm.all_reduce(x), 1),
    "all_to_allv of a list": (lambda: [np.ones(MUCH, bool)], lambda comm, x: comm.all_to_allv(x), 2),
}


@pytest.mark.parametrize("verb", ROOM)
def test_a_call_takes_room_for_one_copy_of_what_it_takes_and_gives(verb: str) -> None:
    """Beside its argument of `MUCH` bytes: a result of as many, and copies that pickle and packing need."""
    make, call, times = ROOM[verb]

    def program(comm: Communicator) -> None:
        x = make()
        call(comm, x)
        tracemalloc.start()
        try:
            result = call(comm, x)
            assert tracemalloc.get_traced_memory()[1] < (times + 0.3) * MUCH
            del result
        finally:
            tracemalloc.stop()

    together(program, ranks=1, region_bytes=1 << 22)


def test_what_nobody_asked_for_is_never_unpickled() -> None:
    """Bytes of a pickle are bytes to every other verb."""

    class Trap:
        def __reduce__(self) -> Any:
            return exec, ("raise SystemExit('unpickled')",)

    data = np.frombuffer(bytearray(pickle.dumps(Trap())), np.uint8)

    def program(comm: Communicator) -> None:
        assert comm.all_gatherv(data).size == 3 * data.size
        assert comm.broadcast(data.copy()).tolist() == data.tolist()

    together(program)


def test_a_call_has_a_time_of_its_own() -> None:
    came = threading.Event()

    def program(comm: Communicator) -> None:
        assert comm.all_reduce(np.ones(1), timeout_s=PATIENT_S)[0] == 2
        assert comm.persistent.all_reduce(np.ones(1), timeout_s=PATIENT_S)()[0] == 2
        assert comm.all_gatherv(np.ones(comm.rank), timeout_s=PATIENT_S).size == 1
        with pytest.raises(ArgumentError, match="timeout_s is a number of seconds above 0"):
            comm.barrier(timeout_s=0)
        if comm.rank == 0:
            came.wait(PATIENT_S)
            return
        try:
            comm.all_reduce(np.ones(1), timeout_s=0.2)
        finally:
            came.set()

    with pytest.raises(RankFailures) as raised:
        together(program, ranks=2)
    assert isinstance(raised.value.failures[1], DeadlineError)


def with_a_time_of_their_own() -> list[str]:
    """All verbs but `send` and its like, which wait in another way."""
    methods = inspect.getmembers(Communicator, inspect.isfunction)
    verbs = [(name, inspect.signature(method).parameters) for name, method in methods]
    own = ((name, its) for name, its in verbs if "timeout_s" in its and not name.startswith("_"))
    return [name for name, its in own if "variant" in its or name.endswith("_object")]


@pytest.mark.parametrize("verb", with_a_time_of_their_own())
def test_no_verb_drops_the_time_that_it_takes(verb: str) -> None:
    x = np.ones(4)
    given: dict[str, Any] = {"x": x, "arrays": [x], "obj": 1, "objs": [1, 1]}
    given |= {"out": {"scatter": x[:2], "scatterv": x[:2].copy()}.get(verb)}
    given |= dict.fromkeys(("counts", "send_counts", "recv_counts"), [2, 2] if verb != "gatherv" else [4, 4])
    given |= {"counts": [4, 4]} if verb in ("gatherv", "all_gatherv") else {}

    def program(comm: Communicator) -> None:
        for verbs in (comm, comm.persistent):
            if hasattr(verbs, verb):
                method = getattr(verbs, verb)
                taken = inspect.signature(method).parameters.keys() & given.keys()
                arguments = {name: given[name] for name in taken}
                with pytest.raises(ArgumentError, match="timeout_s is a number of seconds above 0"):
                    method(**arguments, timeout_s=0)

    together(program, ranks=2)


def test_abort_from_another_thread_ends_every_waiting_call() -> None:
    waiting, over = threading.Barrier(3), threading.Barrier(3)

    def program(comm: Communicator) -> None:
        other = comm.dup()
        assert other.all_reduce(np.ones(1))[0] == 3
        if comm.rank == 0:  # its own call waits in this thread, and never ends by itself

            def give_up() -> None:
                waiting.wait(PATIENT_S)
                other.abort("enough")

            thread = threading.Thread(target=give_up)
            thread.start()
            with pytest.raises(RevokedError, match="rank 0 aborted it: enough"):
                other.barrier()
            thread.join()
        elif comm.rank == 1:
            waiting.wait(PATIENT_S)
            with pytest.raises(RevokedError):
                other.barrier()
        else:  # never comes
            waiting.wait(PATIENT_S)
        if comm.rank < 2:
            with pytest.raises(RevokedError):
                other.barrier()
        over.wait(PATIENT_S)
        assert comm.all_reduce(np.ones(1))[0] == 3  # the parent goes on

    together(program)
