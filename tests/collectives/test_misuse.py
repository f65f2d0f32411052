"""Every verb of a communicator, called as users call it: a table with the expected answer in each cell."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives import PROC_NULL, UNDEFINED, Communicator
from cxlemu import RankContext, Topology, launch
from cxlemu.errors import ArgumentError, ForkedError, RevokedError
from cxlemu.memory import MemorySpec
from tests.helpers.tiers import PATIENT_S
from tests.helpers.worlds import on_ranks

Call = Callable[[Communicator, Any, Any, Any], Any]  # the communicator, an array to send, one for results, a rank
RAN, REFUSED, TAKES_NONE = "ran", "refused", "takes none"


def root(rank: Any) -> Any:
    """Rank 0, where no other one is asked for."""
    return 0 if rank is None else rank


def _p2p(comm: Communicator, x: Any, out: Any, rank: Any) -> None:
    """Send to the other rank and receive from it; a rank that is given stands for the peer."""
    peer = 1 - comm.rank if rank is None else rank
    leaving = comm.isend(x, peer, 1)
    comm.recv(out, peer, 1)
    leaving.wait()


def _exchange(comm: Communicator, x: Any, out: Any, rank: Any) -> None:
    peer = 1 - comm.rank if rank is None else rank
    comm.sendrecv(x, peer, out, peer, 2, 2)


def _posted(comm: Communicator, x: Any, out: Any, rank: Any) -> None:
    peer = 1 - comm.rank if rank is None else rank
    comm.waitall([comm.isend(x, peer, 3), comm.irecv(out, peer, 3)])


def _again(comm: Communicator, x: Any, out: Any, rank: Any) -> None:
    peer = 1 - comm.rank if rank is None else rank
    leaving, coming = comm.send_init(x, peer, 4), comm.recv_init(out, peer, 4)
    for _ in range(2):
        comm.waitall([leaving.start(), coming.start()])


def _matched(comm: Communicator, x: Any, out: Any, rank: Any) -> None:
    peer = 1 - comm.rank if rank is None else rank
    leaving = comm.isend(x, peer, 5)
    comm.probe(peer, 5)
    comm.mprobe(peer, 5).recv(out)
    leaving.wait()


def _until(over: Callable[[Communicator, Any], bool]) -> Call:
    """Send and receive, and ask until all is over."""

    def call(comm: Communicator, x: Any, out: Any, rank: Any) -> None:
        peer = 1 - comm.rank if rank is None else rank
        requests = [comm.isend(x, peer, 6), comm.irecv(out, peer, 6)]
        while not over(comm, requests):
            pass

    return call


def _looked_for(comm: Communicator, x: Any, out: Any, rank: Any) -> None:
    peer = 1 - comm.rank if rank is None else rank
    leaving = comm.isend(x, peer, 7)
    while comm.iprobe(peer, 7) is None or (came := comm.improbe(peer, 7)) is None:
        pass
    came.recv(out)
    leaving.wait()


def _grouped(comm: Communicator, x: Any, out: Any, rank: Any) -> None:
    peer = 1 - comm.rank if rank is None else rank
    comm.group([comm.rank, peer] if comm.rank == 0 else [peer, comm.rank]).close()


def _coalesced(comm: Communicator, x: Any, out: Any, rank: Any) -> None:
    with comm.coalesce() as batch:
        batch.all_reduce(x)


def _product(verb: str) -> Call:
    """Of a column and a row, views of the array."""

    def call(comm: Communicator, x: Any, out: Any, rank: Any) -> None:
        column, row = (x, x) if isinstance(x, list) else (x[:, None], x[None, :])
        getattr(comm, verb)(column, row)

    return call


PRODUCTS = ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce")

# Each verb, whether it takes a rank, and whether it writes what it is given as the first array.
VERBS: dict[str, tuple[Call, bool, bool]] = {
    "all_reduce": (lambda c, x, out, rank: c.all_reduce(x, out=out), False, False),
    "all_reduce, in place": (lambda c, x, out, rank: c.all_reduce(x), False, True),
    "reduce": (lambda c, x, out, rank: c.reduce(x, out=out, root=root(rank)), True, False),
    "broadcast": (lambda c, x, out, rank: c.broadcast(x if c.rank == 0 else out, root=root(rank)), True, False),
    "all_gather": (lambda c, x, out, rank: c.all_gather(x), False, False),
    "gather": (lambda c, x, out, rank: c.gather(x, root=root(rank)), True, False),
    "scatter": (lambda c, x, out, rank: c.scatter(x, out[: len(out) // 2], root=root(rank)), True, False),
    "reduce_scatter": (lambda c, x, out, rank: c.reduce_scatter(x), False, False),
    "scan": (lambda c, x, out, rank: c.scan(x, out=out), False, False),
    "exscan": (lambda c, x, out, rank: c.exscan(x, out=out), False, False),
    "all_to_all": (lambda c, x, out, rank: c.all_to_all(x, out), False, False),
    "pass_on": (lambda c, x, out, rank: c.pass_on(x, out, root=root(rank)), True, False),
    "barrier": (lambda c, x, out, rank: c.barrier(), False, False),
    "all_gatherv": (lambda c, x, out, rank: c.all_gatherv(x), False, False),
    "gatherv": (lambda c, x, out, rank: c.gatherv(x, root=root(rank)), True, False),
    "scatterv": (lambda c, x, out, rank: c.scatterv([x, x], out, root=root(rank)), True, False),
    "reduce_scatterv": (lambda c, x, out, rank: c.reduce_scatterv([x, x], out=out), False, False),
    "all_to_allv": (lambda c, x, out, rank: c.all_to_allv([x, x]), False, False),
    "all_to_allw": (lambda c, x, out, rank: c.all_to_allw([x, x], [out, out.copy()]), False, False),
    "all_reduce_many": (lambda c, x, out, rank: c.all_reduce_many([x]), False, True),
    "broadcast_many": (
        lambda c, x, out, rank: c.broadcast_many([x if c.rank == 0 else out], root=root(rank)),
        True,
        False,
    ),
    "all_gather_many": (lambda c, x, out, rank: c.all_gather_many([x]), False, False),
    "reduce_scatter_many": (lambda c, x, out, rank: c.reduce_scatter_many([x]), False, False),
    "broadcast_object": (lambda c, x, out, rank: c.broadcast_object(1, root=root(rank)), True, False),
    "gather_object": (lambda c, x, out, rank: c.gather_object(1, root=root(rank)), True, False),
    "all_gather_object": (lambda c, x, out, rank: c.all_gather_object(1), False, False),
    "scatter_object": (lambda c, x, out, rank: c.scatter_object([1, 2], root=root(rank)), True, False),
    "send, isend, recv": (_p2p, True, False),
    "sendrecv": (_exchange, True, False),
    "irecv, waitall": (_posted, True, False),
    "send_init, recv_init": (_again, True, False),
    "probe, mprobe": (_matched, True, False),
    "waitany": (_until(lambda c, requests: c.waitany(requests) is UNDEFINED), True, False),
    "waitsome": (_until(lambda c, requests: c.waitsome(requests) is None), True, False),
    "testall": (_until(lambda c, requests: c.testall(requests)), True, False),
    "testany": (_until(lambda c, requests: c.testany(requests) == (UNDEFINED, True)), True, False),
    "testsome": (_until(lambda c, requests: c.testsome(requests) is None), True, False),
    "iprobe, improbe": (_looked_for, True, False),
    "group": (_grouped, True, False),
    "dup": (lambda c, x, out, rank: c.dup().close(), False, False),
    "split": (lambda c, x, out, rank: c.split(0).close(), False, False),  # type: ignore[union-attr]
    "coalesce": (_coalesced, False, True),
    **{name: (_product(name), False, False) for name in PRODUCTS},
    "persistent": (lambda c, x, out, rank: c.persistent.reduce(x, out=out, root=root(rank))(), True, False),
}
MESSAGES = {"send, isend, recv", "sendrecv", "irecv, waitall", "send_init, recv_init", "probe, mprobe"}
MESSAGES |= {"waitany", "waitsome", "testall", "testany", "testsome", "iprobe, improbe"}
WITHOUT_ARRAY = {"barrier", "group", "dup", "split", *(name for name in VERBS if name.endswith("object"))}


def given(size: int = 4) -> np.ndarray:
    return np.arange(float(size))


def locked() -> np.ndarray:
    x = given()
    x.flags.writeable = False
    return x


class Lazy:
    """As a tensor of torch whose sign is a bit that is not in its memory."""

    def __init__(self) -> None:
        self.memory, self.dtype = given(), np.dtype(float)

    def is_neg(self) -> bool:
        return True

    def __dlpack__(self, **asked: Any) -> Any:
        return self.memory.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, part: slice) -> Lazy:
        return self

    def copy(self) -> Lazy:
        return self


def answer(call: Call, comm: Communicator, x: Any, rank: Any = None, out: Any = None) -> str:
    """What a cell holds: that the call ran, or the name of what it raised."""
    try:
        call(comm, x, np.zeros_like(x) if out is None else out, rank)
        return RAN
    except ArgumentError:
        return REFUSED
    except Exception as error:
        return type(error).__name__


def in_child(call: Call, comm: Communicator) -> str:
    receiver, sender = os.pipe()
    if (child := os.fork()) == 0:
        os.write(sender, answer(call, comm, given()).encode())
        os._exit(0)
    os.close(sender)
    told = os.read(receiver, 200).decode()
    os.close(receiver)
    os.waitpid(child, 0)
    return told


def from_two_threads(call: Call, comms: list[Communicator]) -> str:
    """At the same time: each in a communicator of its own, as in MPI; messages go in one."""
    found, begin = list[str](), threading.Barrier(2)

    def work(comm: Communicator) -> None:
        begin.wait(PATIENT_S)
        found.append(answer(call, comm, given()))

    threads = [threading.Thread(target=work, args=(comm,)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found[0] if found[0] == found[1] else f"{found[0]}, then {found[1]}"


def row(context: RankContext, name: str) -> dict[str, str]:
    """All cells of a verb, in one world: whatever is refused leaves the communicator as it was."""
    call, takes_rank, _ = VERBS[name]
    comm = Communicator.world(context, deadline_s=60)
    cells = {"as meant": answer(call, comm, given())}
    for kind, wrong in (("a float", 0.0), ("a string", "0"), ("no rank", 2), ("-1", -1)):
        cells[kind] = answer(call, comm, given(), wrong) if takes_rank else TAKES_NONE
    peer = 1 - comm.rank if name in MESSAGES or name == "group" else 0
    cells["np.int64"] = answer(call, comm, given(), np.int64(peer)) if takes_rank else TAKES_NONE
    cells["read-only"] = answer(call, comm, locked())
    cells["with gaps"] = answer(call, comm, np.repeat(given(), 2)[::2])
    cells["empty"] = answer(call, comm, given(0))
    cells["a list"] = answer(call, comm, [0.0, 1.0, 2.0, 3.0], out=[0.0] * 4)
    cells["lazy"] = answer(call, comm, Lazy(), out=Lazy())
    with comm.dup() as other:
        cells["from two threads"] = from_two_threads(call, [comm, comm if name in MESSAGES else other])
    context.session.barrier(PATIENT_S)
    # only one rank forks, while no other thread holds a lock
    cells["in a forked child"] = in_child(call, comm) if comm.rank == 0 else ForkedError.__name__
    context.session.barrier(PATIENT_S)
    cells["as meant, later"] = answer(call, comm, given())
    comm.close()
    cells["after close"] = answer(call, comm, given())
    return cells


def expected(name: str) -> dict[str, str]:
    _, takes_rank, in_place = VERBS[name]
    wrong = REFUSED if takes_rank else TAKES_NONE
    return {
        "as meant": RAN,
        "a float": wrong,
        "a string": wrong,
        "no rank": wrong,
        "-1": wrong,
        "np.int64": RAN if takes_rank else TAKES_NONE,
        "read-only": REFUSED if in_place else RAN,
        "with gaps": REFUSED if name in PRODUCTS else RAN,
        "empty": REFUSED if name in PRODUCTS else RAN,
        "a list": RAN if name in WITHOUT_ARRAY else REFUSED,
        "lazy": RAN if name in WITHOUT_ARRAY else REFUSED,
        "from two threads": RAN,
        "in a forked child": ForkedError.__name__,
        "as meant, later": RAN,
        "after close": RevokedError.__name__,
    }


@pytest.mark.parametrize("name", VERBS)
def test_each_cell_has_its_answer(name: str) -> None:
    def main(context: RankContext) -> dict[str, str]:
        return row(context, name)

    found = launch(main, ranks=2, topology=Topology.load("laptop"), memory=MemorySpec("shm"), deadline_s=PATIENT_S)
    assert found == [expected(name)] * 2


def test_every_verb_has_a_row() -> None:
    """Other methods call no peer, or have tests of their own."""
    rows = {part for name in VERBS for part in name.split(", ")}
    verbs = {name for name in dir(Communicator) if not name.startswith("_")}
    others = {
        *("abort", "choice", "close", "closed", "cluster", "deadline_s", "of", "pool"),
        *("product_of", "revoke", "shrink", "within", "world"),
    }
    assert verbs == others | rows & verbs


@on_ranks()
def test_an_array_in_the_place_of_op_is_one_for_the_result(comm: Communicator) -> None:
    with comm.coalesce() as batch:
        x, out = given(), given()
        for call in (
            lambda: comm.all_reduce(x, out),
            lambda: comm.all_reduce(x, out, async_op=True),
            lambda: comm.persistent.reduce(x, out),
            lambda: comm.reduce(x, [1.0]),
            lambda: comm.reduce_scatter(x, out, timeout_s=60),
            lambda: comm.scan(x, out),
            lambda: comm.exscan(x, out),
            lambda: comm.reduce_scatterv(x, out),
            lambda: comm.all_reduce_many([x], [out]),
            lambda: comm.reduce_scatter_many([x], [out]),
            lambda: batch.all_reduce(x, out),
            lambda: batch.reduce_scatter(x, out, out),
        ):
            with pytest.raises(ArgumentError, match=r"op is a \w+, not a name: the array for the result is out="):
                call()


@on_ranks()
def test_who_is_not_the_root_is_told_which_array_gives_its_size(comm: Communicator) -> None:
    if comm.rank:
        with pytest.raises(ArgumentError, match="gives its size: pass out, as x counts at the root alone"):
            comm.scatter(given())


@on_ranks()
def test_a_batch_takes_no_call_after_its_block(comm: Communicator) -> None:
    with pytest.raises(KeyError), comm.coalesce() as left:
        left.all_reduce(given())
        raise KeyError
    with comm.coalesce() as batch:
        everyone, block = batch.all_gather(x := np.full(2, comm.rank)), batch.reduce_scatter(np.ones((2, 3)))
        y = given()
        assert batch.all_reduce(y) is y and batch.broadcast(y) is y
    assert everyone.tolist() == [[0, 0], [1, 1]] and block.tolist() == [[2, 2, 2]]
    for over in (left, batch):
        for call in (over.all_reduce, over.broadcast, over.all_gather, over.reduce_scatter):
            with pytest.raises(ArgumentError, match=r"the block of this batch has ended"):
                call(y)
    assert x.tolist() == [comm.rank] * 2 and comm.all_reduce(x)[0] == 1


@on_ranks()
def test_lists_may_be_generators(comm: Communicator) -> None:
    x = [np.full(2, comm.rank + k) for k in range(2)]
    assert comm.all_reduce_many(x) is x
    assert [each.tolist() for each in comm.all_reduce_many(each for each in x)] == [[2, 2], [6, 6]]
    assert [each.tolist() for each in comm.broadcast_many(iter(x))] == [[2, 2], [6, 6]]
    outs = (np.zeros(1, np.int64) for _ in x)
    assert [each.tolist() for each in comm.reduce_scatter_many(iter(x), outs=outs)] == [[4], [12]]
    assert [each.shape for each in comm.all_gather_many({1: x[0], 2: x[1]}.values())] == [(2, 2)] * 2
    assert comm.scatter_object(str(rank) for rank in range(2)) == str(comm.rank)
    for call in (comm.all_reduce_many, comm.broadcast_many, comm.all_gather_many, comm.reduce_scatter_many):
        with pytest.raises(ArgumentError, match="arrays is a int: a list of arrays is needed"):
            call(3)
        with pytest.raises(ArgumentError, match="arrays is a ndarray: a list of arrays is needed"):
            call(given())
    for wrong in (3, iter("abc"), None):
        with pytest.raises(ArgumentError, match="pass a list of 2 objects at the root"):
            comm.scatter_object(wrong, root=comm.rank)


def test_a_communicator_that_is_closed_is_not_entered() -> None:
    def main(context: RankContext) -> None:
        comm = Communicator.world(context)
        with comm:
            pass
        with pytest.raises(RevokedError, match="this communicator is closed"), comm:
            pass

    launch(main, ranks=2, topology="laptop", memory="shm", deadline_s=PATIENT_S)


def test_what_programs_mistake_is_a_sentence() -> None:
    def main(context: RankContext) -> None:
        comm = Communicator.world(context)
        for name in ("rank", "size", "members", "heap"):
            with pytest.raises(AttributeError, match=f"{name} of a Communicator is read-only"):
                setattr(comm, name, 5)
        for name, near in (("Allreduce", "all_reduce"), ("Get_rank", "rank"), ("bcast", r"broadcast\?$")):
            with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did you mean {near}"):
                getattr(comm, name)
        request = comm.isend(given(), PROC_NULL)
        for verb in ("waitall", "waitany", "waitsome", "testall", "testany", "testsome"):
            with pytest.raises(ArgumentError, match=f"{verb} takes a list of requests, not a Request"):
                getattr(comm, verb)(request)
        for wrong, why in (
            (lambda: comm.choice("allreduce", 8), "unknown collective 'allreduce'; did you mean all_reduce"),
            (lambda: Communicator.world(None), "context is a RankContext, as `cxlemu.launch` passes it, not None"),
            (lambda: Communicator.of(3, [0]), "context is a RankContext, as `cxlemu.launch` passes it, not 3"),
            (lambda: Communicator.world(context, layout=3), "layout is a Layout, such as a saved plan's, not 3"),
        ):
            with pytest.raises(ArgumentError, match=why):
                wrong()
        assert str(UNDEFINED) == f"{UNDEFINED}" == "UNDEFINED" and comm.split(UNDEFINED) is None
        if comm.rank == 1:  # which says so before it tells rank 0 anything
            with pytest.raises(ArgumentError, match="scatterv: rank 1 needs out, an array for its block"):
                comm.scatterv(None)
        blocks = [np.zeros(1), np.ones(2)] if comm.rank == 0 else None
        assert (comm.scatterv(blocks, np.zeros(comm.rank + 1)) == comm.rank).all()
        comm.close()

    launch(main, ranks=2, topology="laptop", memory="shm", deadline_s=PATIENT_S)


@on_ranks()
def test_persistent_messages_check_their_ranks_and_tags_at_once(comm: Communicator) -> None:
    for make, role in ((comm.send_init, "dest"), (comm.recv_init, "source")):
        with pytest.raises(ArgumentError, match=f"{role} 7 is not one of the ranks 0..1"):
            make(given(), 7)
        with pytest.raises(ArgumentError, match="a tag is a whole number"):
            make(given(), 1, -1)
