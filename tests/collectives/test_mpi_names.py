"""What programs of MPI do without thinking: integers of any kind, requests in loops, null peers, probes that keep."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from collectives import ANY, ANY_SOURCE, ANY_TAG, PROC_NULL, UNDEFINED, Communicator, Request
from collectives.communicator.messages.traffic import EAGER_BYTES, UNEXPECTED_MAX
from cxlemu import RankContext, Topology, launch
from cxlemu.errors import ArgumentError, PeerLostError, RevokedError, TruncationError
from cxlemu.memory import MemorySpec
from tests.helpers.tiers import PATIENT_S
from tests.helpers.worlds import on_ranks, together

LAPTOP = Topology.load("laptop")


# --- integers -------------------------------------------------------------------------------------------------------

KINDS: dict[str, Callable[[int], Any]] = {
    "int": int,
    "int64": np.int64,
    "uint8": np.uint8,
    "argmax": lambda number: np.argmax(np.arange(number + 1)),
    "no axes": lambda number: np.array(number),
}
ROOTED: dict[str, Callable[[Communicator, Any], Any]] = {
    "reduce": lambda comm, root: comm.reduce(np.full(2, comm.rank + 1.0), root=root),
    "reduce, by name": lambda comm, root: comm.reduce(np.full(2, comm.rank + 1.0), out=np.zeros(2), root=root),
    "broadcast": lambda comm, root: comm.broadcast(np.full(2, comm.rank + 1.0), root=root),
    "gather": lambda comm, root: comm.gather(np.full(2, comm.rank + 1.0), root=root),
    "scatter": lambda comm, root: comm.scatter(np.arange(4.0), np.zeros(2), root=root),
    "pass_on": lambda comm, root: comm.pass_on(np.full(2, comm.rank + 1.0), root=root),
    "gatherv": lambda comm, root: comm.gatherv(np.full(comm.rank + 1, 3.0), root=root),
    "scatterv": lambda comm, root: comm.scatterv([np.ones(1), np.ones(2)], np.zeros(comm.rank + 1), root=root),
    "broadcast_many": lambda comm, root: comm.broadcast_many([np.full(2, comm.rank + 1.0)], root=root)[0],
    "broadcast_object": lambda comm, root: comm.broadcast_object(comm.rank, root=root),
    "gather_object": lambda comm, root: comm.gather_object(comm.rank, root=root),
    "scatter_object": lambda comm, root: comm.scatter_object([5, 6], root=root),
    "persistent": lambda comm, root: comm.persistent.reduce(np.full(2, comm.rank + 1.0), root=root)(),
    "with a time": lambda comm, root: comm.reduce(np.full(2, comm.rank + 1.0), root=root, timeout_s=PATIENT_S),
}


@pytest.mark.parametrize("verb", ROOTED)
def test_a_root_is_an_integer_of_any_kind(verb: str) -> None:
    """Twice each, so that the second call is one that C knows; and no rank takes what another one refuses."""

    def program(comm: Communicator) -> list[str]:
        found = [repr(ROOTED[verb](comm, kind(1))) for kind in KINDS.values() for _ in range(2)]
        for wrong in (1.0, True, "1", None, 2, -1, np.float64(1), 1 << 70):
            with pytest.raises(ArgumentError, match=r"root .* is not one of the ranks 0\.\.1"):
                ROOTED[verb](comm, wrong)
        return found

    for found in together(program):
        assert found == found[:1] * len(found)


@on_ranks()
def test_peers_and_tags_are_integers_of_any_kind(comm: Communicator) -> None:
    """Before and after couriers in C carry messages; what is no integer is refused in both."""
    peer, x, y = 1 - comm.rank, np.full(1, comm.rank + 5.0), np.zeros(1)
    for _ in range(3):
        for kind in KINDS.values():
            comm.send(x, kind(peer), tag=kind(2))
            assert comm.recv(y, kind(peer), tag=kind(2)) == (peer, 2, 8) and y[0] == peer + 5
            leaving = comm.isend(x, kind(peer), kind(3))
            assert comm.probe(kind(peer), kind(3)) == (peer, 3, 8) and leaving.tag == 3
            comm.irecv(y, kind(peer), kind(3)).wait()
            assert type(leaving.wait().tag) is int
            comm.sendrecv(x, kind(peer), y, kind(peer), kind(1), kind(1))
        for wrong in (float(peer), bool(peer), str(peer), -1, None):
            for call, array in ((comm.send, x), (comm.isend, x), (comm.recv, y)):
                with pytest.raises(ArgumentError, match="is not one of the ranks"):
                    call(array, wrong)
        for wrong in (1.0, True, "1", -1, None, np.float32(1), 1 << 31):
            for call, array in ((comm.send, x), (comm.recv, y)):
                with pytest.raises(ArgumentError, match="a tag is a whole number"):
                    call(array, peer, wrong)


@on_ranks()
def test_counts_colors_keys_and_members_are_integers_of_any_kind(comm: Communicator) -> None:
    got = comm.all_gatherv(np.ones(2), counts=np.array([2, 2], np.uint16))
    assert got.shape == (4,) or got.shape == (2, 2)
    for wrong in ([2.0, 2.0], ["2", "2"], [True, True], [2], 5):
        with pytest.raises(ArgumentError, match="whole numbers of elements"):
            comm.all_gatherv(np.ones(2), counts=wrong)
    pair = comm.group(np.array([1, 0]))
    assert pair.members == (1, 0)
    alone = comm.split(np.int32(comm.rank), key=np.uint8(3))
    assert alone is not None and alone.size == 1
    with pytest.raises(ArgumentError, match="a group is a list of ranks"):
        comm.group([0.0, 1.0])  # type: ignore[list-item]


BOOLS: dict[str, Callable[[Any], Any]] = {"bool": bool, "NumPy's": np.bool_, "no axes": np.array}


@pytest.mark.parametrize("kind", BOOLS)
@on_ranks(gives=[[2, 1]] * 2)
def test_a_bool_of_any_kind_is_a_color_and_no_number(comm: Communicator, kind: str) -> list[int]:
    true, x = BOOLS[kind](True), np.zeros(1)
    for call in (
        lambda: comm.all_reduce(x, timeout_s=true),
        lambda: comm.recv(x, timeout_s=true),
        lambda: comm.waitany([comm.irecv(x, PROC_NULL)], timeout_s=true),
        lambda: comm.within(true).__enter__(),
        lambda: comm.heap.empty(true),
        lambda: comm.heap.local.empty((2, true)),
        lambda: comm.send(x, true),
        lambda: comm.send(x, PROC_NULL, true),
        lambda: comm.broadcast(x, root=true),
        lambda: comm.group([true]),
        lambda: comm.split(np.array([True])),  # type: ignore[arg-type]
    ):
        with pytest.raises(ArgumentError):
            call()
    assert comm.heap.empty(np.array(3)).shape == (3,)
    pair = comm.split(BOOLS[kind](comm.rank < 2))
    alone = comm.split(BOOLS[kind](comm.rank == 0), key=BOOLS[kind](comm.rank == 1))
    assert pair is not None and alone is not None
    return [pair.size, alone.size]


# --- sentinels ------------------------------------------------------------------------------------------------------


def test_a_rank_that_a_program_computes_is_never_any() -> None:
    def program(comm: Communicator) -> Any:
        if comm.rank == 1:
            return comm.send(np.ones(1), comm.rank - 1, tag=1)
        left = np.full(1, -7.0)
        for _ in range(2):
            with pytest.raises(ArgumentError, match=r"source -1 is not one of the ranks 0\.\.1, ANY or PROC_NULL"):
                comm.recv(left, comm.rank - 1, tag=1)
        assert left[0] == -7
        return comm.recv(left, ANY_SOURCE, ANY_TAG)

    assert together(program)[0] == (1, 1, 8)
    assert ANY not in (-1, *range(9)) and repr((ANY, PROC_NULL, UNDEFINED)) == "(ANY, PROC_NULL, UNDEFINED)"


@on_ranks(gives=[[-7, 2], [1, -7]])
def test_messages_with_no_rank_are_over_at_once(comm: Communicator) -> list[float]:
    """A stencil at its edges: no branch."""
    left, right = (comm.rank - 1 if comm.rank else PROC_NULL), (1 if comm.rank == 0 else PROC_NULL)
    edges = np.full(2, -7.0)
    mine = np.full(1, comm.rank + 1.0)
    comm.sendrecv(mine, left, edges[1:], right)
    status = comm.sendrecv(mine, right, edges[:1], left)
    comm.send(mine, PROC_NULL)
    nothing = comm.isend(mine, PROC_NULL).wait()
    assert nothing.nbytes == 8 and (status == (PROC_NULL, ANY, 0)) == (comm.rank == 0)
    assert comm.recv(mine, PROC_NULL) == comm.probe(PROC_NULL) == comm.iprobe(PROC_NULL) == (PROC_NULL, ANY, 0)
    assert comm.mprobe(PROC_NULL).recv(mine) == (PROC_NULL, ANY, 0) and mine[0] == comm.rank + 1
    return edges.tolist()


# --- requests -------------------------------------------------------------------------------------------------------


@on_ranks(gives=[0, 1, 2], of=0)
def test_a_loop_over_waitany_gets_each_request_once(comm: Communicator) -> Any:
    if comm.rank == 1:
        for tag in (2, 0, 1):
            comm.send(np.array([float(tag)]), 0, tag)
        return None
    boxes = [np.full(1, -1.0) for _ in range(3)]
    requests = [comm.irecv(box, 1, tag) for tag, box in enumerate(boxes)]
    order = [comm.waitany(requests) for _ in requests]
    assert sorted(order) == [0, 1, 2] and [box[0] for box in boxes] == [0, 1, 2]
    assert comm.waitany(requests) is comm.waitany([]) is UNDEFINED
    assert comm.waitsome(requests) is comm.waitsome([]) is None
    assert comm.testany(requests) == comm.testany([]) == (UNDEFINED, True)
    assert comm.testall(iter(requests)) and comm.waitany(iter(requests)) is UNDEFINED
    assert len(comm.waitall(iter(requests))) == 3
    return [status.tag for status in comm.waitall(requests)]


@on_ranks(gives=[([1, 3], [0, 2])] * 2)
def test_waitsome_and_testany_tell_of_each_request_once(comm: Communicator) -> Any:
    peer, outs = 1 - comm.rank, np.zeros((4, 1))
    requests = [comm.irecv(out, peer, tag) for tag, out in enumerate(outs)]
    assert comm.testany(requests) == (UNDEFINED, False)
    comm.barrier()
    for tag in (3, 1):
        comm.send(np.ones(1), peer, tag)
    found: list[int] = []
    while len(found) < 2:
        found += comm.waitsome(requests) or []
    comm.barrier()
    for tag in (0, 2):
        comm.send(np.ones(1), peer, tag)
    while len(found) < 4:
        at, done = comm.testany(requests)
        found += [at] * done  # type: ignore[list-item]
    return sorted(found[:2]), sorted(found[2:])


@on_ranks(gives=[([1], None, UNDEFINED, True, True)] * 2)
def test_testsome_and_testall_make_progress_without_waiting(comm: Communicator) -> Any:
    peer, outs = 1 - comm.rank, np.zeros((3, 1))
    requests = [comm.irecv(out, peer, tag) for tag, out in enumerate(outs)]
    assert comm.testsome(requests) == [] and not comm.testall(requests)
    comm.barrier()
    comm.send(np.ones(1), peer, 1)
    while not (some := comm.testsome(requests)):
        assert some == [] and not comm.testall(requests)
    comm.barrier()
    leaving = [comm.isend(np.ones(1), peer, tag) for tag in (0, 2)]
    while not comm.testall(requests):
        pass
    comm.waitall(leaving)
    return some, comm.testsome(requests), comm.waitany(requests), comm.testall(requests), comm.testall([])


FAILS = "the error of the second"

# What a call gives of three requests that are done, again and again, where the second one failed.
FINDS: dict[str, tuple[Callable[[Communicator, list[Request]], Any], list[Any]]] = {
    "wait": (lambda comm, requests: requests[1].wait(), [FAILS, FAILS]),
    "test": (lambda comm, requests: requests[1].test(), [FAILS, FAILS]),
    "waitall": (lambda comm, requests: comm.waitall(requests), [FAILS, FAILS]),
    "testall": (lambda comm, requests: comm.testall(requests), [FAILS, FAILS]),
    "waitany": (lambda comm, requests: comm.waitany(requests), [0, FAILS, 2, UNDEFINED]),
    "waitsome": (lambda comm, requests: comm.waitsome(requests), [FAILS, [0, 2], None]),
    "testany": (lambda comm, requests: comm.testany(requests), [(0, True), FAILS, (2, True), (UNDEFINED, True)]),
    "testsome": (lambda comm, requests: comm.testsome(requests), [FAILS, [0, 2], None]),
}


@pytest.mark.parametrize("name", FINDS)
def test_a_request_that_failed_raises_in_the_call_that_finds_it_done(name: str) -> None:
    """What is about one request or all raises each time; the rest raises once, and loses none of the others."""
    call, expected = FINDS[name]

    def program(comm: Communicator) -> list[Any]:
        requests = [comm.irecv(np.zeros(size), comm.rank, tag) for tag, size in enumerate((2, 1, 2))]
        for tag in range(3):
            comm.send(np.ones(2), comm.rank, tag)

        def found() -> Any:
            try:
                return call(comm, requests)
            except TruncationError as error:
                assert error is requests[1].error
                return FAILS

        return [found() for _ in expected]

    assert together(program) == [expected] * 2


@on_ranks()
def test_loops_over_requests_of_a_revoked_communicator_end(comm: Communicator) -> None:
    with comm.dup() as other:
        requests = [other.irecv(np.zeros(1), comm.rank, tag) for tag in range(3)]
        other.revoke()
        for _ in requests:
            with pytest.raises(RevokedError):
                other.waitany(requests)
        assert other.waitany(requests) is UNDEFINED
        with pytest.raises(RevokedError):
            other.testall(requests)


@on_ranks(gives=[1, 1])
def test_what_is_not_all_done_is_told_of_later(comm: Communicator) -> Any:
    """testall skips none before all are done, as in MPI."""
    outs = np.zeros((2, 1))
    requests = [comm.irecv(out, comm.rank, tag) for tag, out in enumerate(outs)]
    comm.send(np.ones(1), comm.rank, 1)
    assert not comm.testall(requests)
    return comm.waitany(requests)


LOOPS: dict[str, Callable[[Communicator, Any], Any]] = {
    "test": lambda comm, request: request.test(),
    "testall": lambda comm, request: comm.testall([request]),
    "testany": lambda comm, request: comm.testany([request])[1],
    "testsome": lambda comm, request: comm.testsome([request]),
    "iprobe": lambda comm, request: comm.iprobe(1 - comm.rank, 3),
    "improbe": lambda comm, request: comm.improbe(1 - comm.rank, 3),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_of_calls_that_do_not_wait_ends_with_its_peer(name: str) -> None:
    """What the peer sent before it left still comes."""

    def program(comm: Communicator) -> Any:
        if comm.rank == 1:
            comm.send(np.ones(1), 0, 1)
            return None
        first, second = (comm.irecv(np.zeros(1), 1, tag) for tag in (1, 2))
        while not ("probe" in name or LOOPS[name](comm, first)):
            pass
        with pytest.raises(PeerLostError, match="rank 1 left"):
            while not LOOPS[name](comm, second):
                pass
            second.wait()
        return first.wait()

    def main(context: RankContext) -> Any:
        return program(Communicator.world(context))

    assert launch(main, ranks=2, topology=LAPTOP, memory=MemorySpec("shm"), deadline_s=PATIENT_S)[0] == (1, 1, 8)


@on_ranks(gives=[([8] * 3, [[2], [3]], [3])] * 2)
def test_requests_of_several_communicators_and_handles_wait_together(comm: Communicator) -> Any:
    """Each makes progress by its own communicator; where that cannot be, a sentence says so."""
    peer, other, outs = 1 - comm.rank, comm.dup(), np.zeros((2, 1))
    with other:
        handle = comm.all_reduce(np.full(1, comm.rank + 1.0), async_op=True)
        requests = [comm.irecv(outs[0], peer), other.irecv(outs[1], peer)]
        with pytest.raises(TimeoutError, match=r"waitany: no request has ended after 0\.01 s"):
            comm.waitany(requests, timeout_s=0.01)
        comm.barrier()
        for call in (comm.waitany, comm.waitsome, comm.testany, comm.testsome, comm.testall):
            with pytest.raises(ArgumentError, match=r"a Handle is not a request of a message: wait for it by its own"):
                call([*requests, handle])
        for call in (comm.waitall, comm.waitany, comm.testsome):
            with pytest.raises(ArgumentError, match=r"\w+: a NoneType is not a request of a message"):
                call([*requests, None])
        other.send(np.full(1, 3.0), peer)
        found: list[Any] = [comm.waitany(requests)]
        requests += [comm.isend(np.full(1, 2.0), peer)]
        while (some := other.waitsome(requests)) is not None:
            found += some
        assert sorted(found) == [0, 1, 2] and comm.testsome(requests) is None
        *statuses, total = comm.waitall([*requests, handle])
        return [status.nbytes for status in statuses], outs.tolist(), total.tolist()


def test_what_a_callback_raises_comes_out_of_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that finds a request done may wait for another one."""
    told: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda what: told.append(str(what.exc_value)))

    def program(comm: Communicator) -> Any:
        coming = comm.irecv(np.zeros(1), comm.rank)

        def fails(_: Request) -> None:
            raise ValueError(f"of rank {comm.rank}")

        coming.add_done_callback(fails)
        comm.send(np.zeros(1), comm.rank)
        assert coming.wait().nbytes == 8
        coming.add_done_callback(fails)

    together(program)
    assert sorted(told) == ["of rank 0"] * 2 + ["of rank 1"] * 2


@on_ranks(gives=[[5], [6], [7]], of=0)
def test_the_first_rank_of_a_scan(comm: Communicator) -> Any:
    """It gets its own array; of an exclusive one it keeps what was there, as in mpi4py."""
    arrays = np.full(1, 5.0), np.full(1, 6.0), np.full(1, 7.0)
    return [*map(list, (comm.scan(arrays[0]), comm.exscan(arrays[1]), comm.exscan(np.ones(1), out=arrays[2])))]


@on_ranks(gives=[2, 2])
def test_a_second_thread_is_refused_while_one_is_in_a_collective(comm: Communicator) -> Any:
    """Nothing has happened then; each thread may have a communicator of its own."""
    meet, calls = comm._context.session.barrier, comm._runner.sequencer.calls
    if comm.rank == 0:
        first = threading.Thread(target=comm.barrier)
        first.start()
        while comm._runner.sequencer.calls == calls:
            time.sleep(0)
        with pytest.raises(RuntimeError, match="this communicator is in a call in another thread"):
            comm.all_reduce(np.ones(1))
        meet(PATIENT_S)
        first.join()
    else:
        meet(PATIENT_S)
        comm.barrier()
    return comm.all_reduce(np.ones(1))[0]


@on_ranks()
def test_a_matched_message_is_its_own_receives_alone(comm: Communicator) -> Any:
    """Small and large ones, which lie in the mailbox until they are received."""
    peer = 1 - comm.rank
    for size in (1, 1 << 20):
        x, out = np.full(size, comm.rank + 1.0), np.zeros(size)
        first, second = comm.isend(x, peer, 1), comm.isend(x * 10, peer, 1)
        message = comm.mprobe(peer, 1)
        assert message.status == (peer, 1, 8 * size)
        later = comm.irecv(out, peer, 1)
        kept = np.zeros(size)
        assert message.recv(kept) == message.status and (kept == peer + 1).all()
        assert later.wait() == message.status and (out == 10 * (peer + 1)).all()
        with pytest.raises(ArgumentError, match="received once"):
            message.recv(kept)
        comm.waitall([first, second])
        assert comm.improbe(peer, 1) is None
        comm.barrier()  # the peer sends no more before
    comm.send(np.ones(2), peer)
    with pytest.raises(TruncationError):
        comm.mprobe(peer).recv(np.zeros(1))
    comm.barrier()


@on_ranks(gives=[[1, 2, 3], [0, 1, 2]])
def test_persistent_messages_send_what_their_array_holds_now(comm: Communicator) -> list[float]:
    peer, x, out, came = 1 - comm.rank, np.zeros(3), np.zeros(3), []
    leaving, coming = comm.send_init(x, peer, 4), comm.recv_init(out, peer, 4)
    for turn in range(3):
        x[:] = turn + comm.rank
        comm.waitall([leaving.start(), coming.start()])
        came.append(out[0])
    return came


@on_ranks(gives=[[[1, 2], [1, 1, 1]], [[3], [b"abc", b"de"]]])
def test_all_to_allw_moves_arrays_of_several_dtypes(comm: Communicator) -> list[Any]:
    out = [np.zeros(2, np.int16), np.zeros(3)] if comm.rank == 0 else [np.zeros(1, np.float32), np.zeros(2, "S3")]
    x = {0: [np.array([1, 2], np.int16), np.array([3], np.float32)], 1: [np.ones(3), np.array([b"abc", b"de"])]}
    with pytest.raises(ArgumentError, match="x is a list of 2 arrays"):
        comm.all_to_allw(np.zeros(2), out)  # type: ignore[arg-type]
    return [each.tolist() for each in comm.all_to_allw(x[comm.rank], out)]


@on_ranks()
def test_bytes_are_elements_of_the_receivers_dtype(comm: Communicator) -> None:
    """In messages and where a dtype is none of those that plans name: ranks compare only sizes."""
    its = [np.ones(2, ">f4"), np.array([b"abcd", b"efgh"])]
    found = comm.all_gather(its[comm.rank])
    assert found.dtype == its[comm.rank].dtype and found.tobytes() == its[0].tobytes() + its[1].tobytes()
    comm.sendrecv(np.ones(2, np.float32), 1 - comm.rank, out := np.zeros(2, np.int32), 1 - comm.rank)
    assert out.tolist() == [0x3F800000] * 2


@pytest.mark.parametrize("memory", ["shm", "emulated"])
@pytest.mark.parametrize(("count", "nbytes"), [(9, 8), (40, 2000), (9, EAGER_BYTES)])
def test_ranks_that_all_send_first_bring_in_what_comes(count: int, nbytes: int, memory: str) -> None:
    """In a ring of three: more messages than a mailbox holds, and no rank receives before all its own have left."""

    def program(comm: Communicator) -> None:
        right, left = (comm.rank + 1) % 3, (comm.rank - 1) % 3
        for number in range(count):
            comm.send(np.full(nbytes, 3 * number + comm.rank, np.uint8), right)
        out = np.zeros(nbytes, np.uint8)
        for number in range(count):
            comm.recv(out, left)
            assert (out == 3 * number + left).all()

    assert count < UNEXPECTED_MAX
    together(program, 3, memory)
