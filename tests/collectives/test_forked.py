"""A forked child has nothing of its parent's world: each call is refused, and whatever ends there harms nobody."""

import gc
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from cxlemu import launch
from cxlemu.errors import ForkedError
from cxlemu.memory import MemorySpec
from cxlemu.pool.home import Home
from cxlemu.world import RankContext
from tests.helpers.tiers import PATIENT_S

LARGE = 1 << 20  # elements: more than a mailbox takes
MEMORIES = {"shm": MemorySpec("shm"), "emulated": MemorySpec("emulated")}


def in_child(work: Callable[[], Any]) -> str:
    """Run ``work`` in a forked child: "refused", "went through", or what else it raised or how else it ended."""
    receiver, sender = os.pipe()
    if (child := os.fork()) == 0:
        try:
            work()
            told = "went through"
        except ForkedError:
            told = "refused"
        except BaseException as error:
            told = repr(error)
        os.write(sender, told.encode())
        os._exit(0)
    os.close(sender)
    told = os.read(receiver, 4096).decode()
    os.close(receiver)
    return told if os.waitpid(child, 0)[1] == 0 else "ended badly"


def in_room(context: RankContext, comm: Communicator) -> list[bytes]:
    """What the communicator's room in the pool holds, card by card."""
    (room,) = context.rooms.held
    return [bytes(card[room.at : room.end]) for card in context.pool.cards]


def _calls(context: RankContext) -> tuple[dict[str, str], list[float]]:
    comm = Communicator.world(context, region_bytes=1 << 20, heap_bytes=1 << 20)  # it is read as a whole
    one, many = np.ones(1, np.float32), np.ones(LARGE, np.float32)
    again, found = comm.persistent.all_reduce(one.copy()), dict[str, str]()
    array = comm.heap.full(16, context.rank)
    comm.all_reduce(one.copy())  # so that C knows the call
    peer = 1 - comm.rank
    for _ in range(2):  # so that couriers in C carry what comes next
        comm.send(one, peer)
        comm.recv(one.copy(), peer)
    context.session.barrier(PATIENT_S)  # which is not in the room: until the next one rank 1 writes nothing there
    if comm.rank == 0:
        before = in_room(context, comm)
        found["a courier's send"] = in_child(lambda: comm.send(one, peer))
        assert in_room(context, comm) == before
    context.session.barrier(PATIENT_S)
    receive = comm.irecv(one.copy(), source=peer, tag=7)
    context.session.barrier(PATIENT_S)
    if comm.rank == 0:
        calls: dict[str, Callable[[], Any]] = {
            "a known call": lambda: comm.all_reduce(one),
            "another call": lambda: comm.all_gather(many),
            "a persistent call": again,
            "async_op": lambda: comm.barrier(async_op=True),
            "all_reduce_many": lambda: comm.all_reduce_many([one, many]),
            "all_gatherv": lambda: comm.all_gatherv(one),
            "send": lambda: comm.send(one, peer),
            "send of much": lambda: comm.send(many, peer),
            "recv": lambda: comm.recv(one, peer),
            "probe": lambda: comm.probe(peer),
            "a request's wait": lambda: receive.wait(1),
            "a request's test": lambda: receive.test(),
            "heap.empty": lambda: comm.heap.empty(4),
            "heap.trim": lambda: comm.heap.trim(),
            "heap.local.empty": lambda: comm.heap.local.empty(4),
            "heap.local.trim": lambda: comm.heap.local.trim(),
            "split": lambda: comm.split(0),
            "dup": lambda: comm.dup(),
            "group": lambda: comm.group([0]),
            "revoke": lambda: comm.revoke(),
            "abort": lambda: comm.abort(),
            "shrink": lambda: comm.shrink(),
            "another communicator": lambda: Communicator.world(context),
            "one of this rank": lambda: Communicator.of(context, [0]),
            "context.unlink": context.unlink,
            "session.barrier": lambda: context.session.barrier(1.0),
            "context.emit": lambda: context.emit("x"),
        }
        before = in_room(context, comm)
        found |= {name: in_child(call) for name, call in calls.items()}
        assert in_room(context, comm) == before  # no doorbell rang, and nothing was sent
        handle = comm.all_reduce(np.ones(1, np.float32), async_op=True)
        found["a handle"] = in_child(lambda: handle.wait(1))
        found["session.leave"] = in_child(context.session.leave)
        found["reading an array of the heap"] = in_child(lambda: np.testing.assert_array_equal(array, 0.0))
        comm.send(one, peer, tag=7)
        handle.wait()
    else:
        receive.wait()  # so that rank 0's handle is of a call under way
        comm.all_reduce(np.ones(1, np.float32))
        comm.send(one, peer, tag=7)
    receive.wait()
    sums = [float(comm.all_reduce(np.full(1, 5.0))[0]) for _ in range(3)]
    comm.heap.empty(4)
    comm.close()
    return found, sums


@pytest.mark.deep(rows=lambda memory: memory == "emulated")
@pytest.mark.parametrize("memory", [*MEMORIES])
def test_a_forked_child_can_call_nothing_and_its_parent_goes_on(memory: str) -> None:
    found, other = launch(
        _calls, ranks=2, topology="laptop", memory=MEMORIES[memory], how="processes", deadline_s=PATIENT_S
    )
    assert found[0].pop("reading an array of the heap") == found[0].pop("session.leave") == "went through"
    assert {name: told for name, told in found[0].items() if told != "refused"} == {}
    assert found[1] == other[1] == [10.0] * 3


def _ends(context: RankContext, how: str) -> list[float]:
    """A child that ends in ways of its own: none of them may be its parent's end."""
    comm = Communicator.world(context)
    array = comm.heap.empty(4)
    inner = comm.dup()
    told = os.fork() if context.rank == 0 else None
    if told == 0:
        os.close(2)  # what it says on its way out is its own business
        if how == "close":
            inner.close()
            comm.close()
            del array, inner, comm
            gc.collect()
            context.rooms.collect()
            os._exit(0)
        if how == "return":
            return [0.0]
        if how == "exit":
            sys.exit(3)
        raise ZeroDivisionError
    if told:
        code = os.waitstatus_to_exitcode(os.waitpid(told, 0)[1])
        assert code == {"close": 0, "return": 0, "exit": 3, "raise": 1}[how]
        time.sleep(0.1)  # a word of the child's would have come by now
    inner.barrier()
    array.fill(5.0)
    return [float(value) for value in comm.all_reduce(array)]


@pytest.mark.deep
@pytest.mark.parametrize("memory", [*MEMORIES])
@pytest.mark.parametrize("how", ["close", "return", "exit", "raise"])
def test_a_forked_childs_end_is_not_its_parents(how: str, memory: str) -> None:
    found = launch(
        partial(_ends, how=how),
        ranks=2,
        topology="laptop",
        memory=MEMORIES[memory],
        how="processes",
        deadline_s=PATIENT_S,
    )
    assert found == [[10.0] * 4] * 2


def test_a_home_is_left_by_forking_alone() -> None:
    home = Home()
    home.check()
    assert not home.left
    assert in_child(home.check) == "refused"
    assert in_child(lambda: Home().check()) == "went through"
