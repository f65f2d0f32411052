"""What maps the pool or waits for peers is neither copied nor pickled: a TypeError at once, and everything goes on."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives import ANY, Communicator
from cxlemu import RankContext, Topology, launch
from cxlemu.memory import MemorySpec
from cxlemu.unshared import Unshared
from tests.helpers.tiers import PATIENT_S
from tests.helpers.worlds import on_ranks

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
            "heap of one rank": its.heap.local,
            "verb": its.all_reduce,
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
    def main(context: RankContext) -> None:
        comm = Communicator.world(context)
        its = _all_of(context, comm)
        for name, each in its.items():
            for way, work in WAYS.items():
                with pytest.raises(TypeError, match="cannot be copied or pickled: it belongs to one rank"):
                    work(each)
                    pytest.fail(f"{way} of {name} went through")  # at once: a copy may wait for what is held
        its["handle, native"].wait()
        its["handle, stepped"].wait()
        assert comm.all_reduce(np.ones(1)).tolist() == [1]

    launch(main, ranks=1, topology=Topology.load("laptop"), memory=MemorySpec("shm"))


def test_everything_says_what_it_is_and_how_it_stands() -> None:
    """No address, and nothing of what it holds."""

    def main(context: RankContext) -> None:
        comm = Communicator.world(context)
        for name, each in _all_of(context, comm).items():
            assert "0x" not in repr(each) and "array(" not in repr(each), name
            assert len(repr(each)) < 200, name
        x = np.ones(3)
        assert repr(comm.all_reduce) == f"<bound method Verbs.all_reduce of {comm!r}>"
        assert (
            repr(comm.persistent.all_reduce(x, variant="all")) == "<Operation [all_reduce all 24 B f64 sum in place]>"
        )
        assert repr(comm.persistent.barrier(timeout_s=9)).endswith("within 9 s>")
        assert repr(comm.recv_init(x, ANY, 5)) == "<PersistentMessage irecv with rank ANY, tag 5>"
        (handle := comm.all_reduce(x, async_op=True)).wait()
        came, short = comm.irecv(x, 0, 5), comm.irecv(x[:1], 0, 6)
        assert repr(came) == "<Request recv from rank 0, tag 5, 24 B: under way>"
        for tag in (5, 6, 7):
            comm.send(x, 0, tag)
        assert repr(came).endswith(": done>") and repr(short).endswith(": failed with TruncationError>")
        assert repr(comm.mprobe(0, 7)) == "<MatchedMessage Status(source=0, tag=7, nbytes=24)>"
        assert repr(handle) == "<Handle: done>"
        other = comm.dup()
        other.revoke()
        assert repr(other) == "<Communicator rank 0 of 1, world ranks (0,), revoked>"
        other.close()
        assert repr(other).endswith(", closed>")

    launch(main, ranks=1, topology=Topology.load("laptop"), memory=MemorySpec("shm"))


@on_ranks(1)
def test_what_a_communicator_makes_of_arrays_is_copied_as_they_are(comm: Communicator) -> None:
    array = comm.heap.full(4, 7.0)
    twin = copy.deepcopy(array)
    twin[:] = 1
    assert array.tolist() == [7] * 4 and pickle.loads(pickle.dumps(array)).tolist() == [7] * 4


def test_the_sentence_names_the_class() -> None:
    class Mine(Unshared):
        pass

    with pytest.raises(TypeError, match=r"^Mine cannot be copied or pickled: it belongs to one rank"):
        copy.copy(Mine())
