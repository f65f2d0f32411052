"""What maps the pool or waits for peers is neither copied nor pickled: a TypeError at once, and everything goes on."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from cxlemu import RankContext, Topology, launch
from cxlemu.memory import MemorySpec
from cxlemu.unshared import Unshared
from tests.helpers.tiers import PATIENT_S

WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "inside another": lambda it: copy.deepcopy({"model": [it]}),
    "pickled inside another": lambda it: pickle.dumps([it]),
}


def _all_of(context: RankContext, comm: Communicator) -> dict[str, Any]:
    """Everything with a life of its own that a program gets to hold."""
    x, comms = np.ones(3), {"native": comm, "stepped": Communicator.world(context, engine="reference")}
    found: dict[str, Any] = {"context": context, "pool": context.pool, "session": context.session}
    for engine, its in comms.items():
        with its.coalesce() as batch:
            pass
        made = {
            "communicator": its,
            "heap": its.heap,
            "persistent verbs": its.persistent,
            "batch": batch,
            "operation": its.persistent.all_reduce(x),
            "operation with a time": its.persistent.all_reduce(x, timeout_s=PATIENT_S),
            "operation on gaps": its.persistent.all_reduce(np.ones(6)[::2]),
            "uneven operation": its.persistent.all_gatherv(x),
            "handle": its.all_reduce(x, async_op=True),
            "request": its.irecv(x, 0, 99),
            "message to come": its.recv_init(x, 0, 99),
        }
        its.send(x, 0, 1)
        made["matched message"] = its.mprobe(0, 1)
        found |= {f"{name}, {engine}": each for name, each in made.items()}
    return found


def test_nothing_that_belongs_to_one_rank_is_copied() -> None:
    def main(context: RankContext) -> list[str]:
        comm, wrong = Communicator.world(context), []
        its = _all_of(context, comm)
        for name, each in its.items():
            for way, work in WAYS.items():
                try:
                    work(each)
                    wrong.append(f"{way} of {name} went through")
                except TypeError as error:
                    if isinstance(each, Unshared) and "cannot be copied or pickled" not in str(error):
                        wrong.append(f"{way} of {name}: {error}")
        its["handle, native"].wait()
        its["handle, stepped"].wait()
        assert comm.all_reduce(np.ones(1)).tolist() == [1]
        return wrong

    assert launch(main, ranks=1, topology=Topology.load("laptop"), memory=MemorySpec("shm")) == [[]]


def test_what_a_communicator_makes_of_arrays_is_copied_as_they_are() -> None:
    def main(context: RankContext) -> None:
        with Communicator.world(context) as comm:
            array = comm.heap.full(4, 7.0)
            twin = copy.deepcopy(array)
            twin[:] = 1
            assert array.tolist() == [7] * 4 and pickle.loads(pickle.dumps(array)).tolist() == [7] * 4

    launch(main, ranks=1, topology=Topology.load("laptop"), memory=MemorySpec("shm"))


def test_the_sentence_names_the_class() -> None:
    class Mine(Unshared):
        pass

    with pytest.raises(TypeError, match="a Mine cannot be copied or pickled: it belongs to one rank"):
        copy.copy(Mine())
