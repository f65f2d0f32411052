"""mpi4py's names over a communicator, as far as mpi4py's tests of messages and collectives use them.

Each name is one call of ours; nothing is computed here. What MPI has and we have not is not here either, or raises
NotImplementedError: `suite.SKIPPED` says which tests need it.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from collectives import ANY, PROC_NULL, UNDEFINED, Communicator
from collectives.communicator.calls.arguments import as_array
from cxlemu import RankContext

IN_PLACE = "in place"
OBJECT_BYTES = 1 << 15  # mpi4py's room for an object whose size a receive does not know


class Datatype(NamedTuple):
    """A datatype that is an element of NumPy's."""

    dtype: np.dtype[Any]

    @property
    def extent(self) -> int:
        return self.dtype.itemsize


DATATYPES = dict(  # noqa: C408
    SIGNED_CHAR="b", SHORT="h", INT="i", LONG="l", LONG_LONG="q", FLOAT="f", DOUBLE="d", LONG_DOUBLE="g",
    UNSIGNED_CHAR="B", UNSIGNED_SHORT="H", UNSIGNED_INT="I", UNSIGNED_LONG="L", UNSIGNED_LONG_LONG="Q",
    C_BOOL="?", BYTE="B", C_FLOAT_COMPLEX="F", C_DOUBLE_COMPLEX="D", C_LONG_DOUBLE_COMPLEX="G",
)  # fmt: skip
NOT_REDUCED = {"LONG_DOUBLE", "C_LONG_DOUBLE_COMPLEX"}  # null where a module also reduces


class Spec(NamedTuple):
    """What mpi4py calls a message: an object with a buffer; how many elements of it, for each rank or in all; where."""

    buffer: Any
    counts: Any = None
    displs: Any = None
    types: Any = None

    @classmethod
    def of(cls, given: Any) -> Spec:
        if not isinstance(given, list | tuple):
            return cls(given)
        buffer, *rest = given
        types = rest.pop() if rest and not _counts(rest[-1]) else None
        counts, displs = (rest[0] if len(rest) == 1 and isinstance(rest[0], tuple) else [*rest, None, None])[:2]
        if buffer is None:
            return cls(np.empty(0, types.dtype if isinstance(types, Datatype) else np.uint8), counts or 0, None, types)
        return cls(buffer, counts, displs, types)

    def flat(self) -> Any:
        return as_array(self.buffer, "buffer").reshape(-1)

    def array(self, blocks: int = 1) -> Any:
        """The buffer itself, so that it is the communicator that looks at it; or as many of its elements as go."""
        if self.counts is None or self.buffer is None:
            return self.buffer
        return self.flat()[: self.counts * blocks]

    def uneven(self, ranks: int) -> tuple[Any, Any, Any]:
        """Buffer, counts and displacements, where one number stands for that of each rank."""
        counts = [self.counts] * ranks if isinstance(self.counts, int) else self.counts
        displs = [self.displs * rank for rank in range(ranks)] if isinstance(self.displs, int) else self.displs
        return self.buffer, counts, displs

    def arrays(self) -> list[Any]:
        """An array for each rank, of a datatype of its own; displacements are in bytes."""
        memory = self.flat().view(np.uint8)
        return [
            memory[at : at + count * each.extent].view(each.dtype)
            for count, at, each in zip(self.counts, self.displs, self.types, strict=True)
        ]


def _counts(given: Any) -> bool:
    """Whether an item of a message says how much, and not of which datatype."""
    return isinstance(given, int) or (
        isinstance(given, list | tuple)
        and not isinstance(given, Datatype)
        and not any(isinstance(each, Datatype) for each in given)
    )


class Status:
    source, tag, error, nbytes = ANY, ANY, 0, 0

    def fill(self, found: Any) -> None:
        self.source, self.tag, self.nbytes = found if isinstance(found, tuple) and found else (ANY, ANY, 0)


class Request:
    """A request of a message, or a handle of a collective. It is true until a call told that it is over."""

    def __init__(self, comm: Any, inner: Any, load: Callable[[Any], Any] = lambda status: None) -> None:
        self.comm, self.inner, self.load, self.open = comm, inner, load, True

    @property
    def pending(self) -> Any:
        return self.inner

    def __bool__(self) -> bool:
        return self.open

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Request) and (self.open, self.open and self.inner) == (
            other.open,
            other.open and other.inner,
        )

    __hash__ = None  # type: ignore[assignment]

    def wait(self, status: Status | None = None) -> Any:
        found = self.inner.wait()
        self.open = False
        if status is not None:
            status.fill(found)
        return self.load(found)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        over = self.inner.test()
        return over, self.wait(status) if over else None

    def Wait(self, status: Status | None = None) -> bool:
        self.wait(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        return self.test(status)[0]

    def Free(self) -> None:
        self.open = False

    # Of several: the indices are those that the communicator tells.

    @classmethod
    def waitany(cls, requests: list[Request], status: Status | None = None) -> tuple[Any, Any]:
        at = requests[0].comm.waitany([each.pending for each in requests])
        return at, requests[at].wait(status) if isinstance(at, int) else None

    @classmethod
    def testany(cls, requests: list[Request], status: Status | None = None) -> tuple[Any, bool, Any]:
        at, over = requests[0].comm.testany([each.pending for each in requests])
        return at, over, requests[at].wait(status) if isinstance(at, int) else None

    @classmethod
    def _some(cls, requests: list[Request], found: list[int] | None, statuses: list[Status] | None) -> Any:
        if statuses is not None:
            statuses[:] = [Status() for _ in found or ()]
        each = statuses or [None] * len(found or ())
        return found, None if found is None else [requests[at].wait(one) for at, one in zip(found, each, strict=True)]

    @classmethod
    def waitsome(cls, requests: list[Request], statuses: list[Status] | None = None) -> Any:
        return cls._some(requests, requests[0].comm.waitsome([each.pending for each in requests]), statuses)

    @classmethod
    def testsome(cls, requests: list[Request], statuses: list[Status] | None = None) -> Any:
        return cls._some(requests, requests[0].comm.testsome([each.pending for each in requests]), statuses)

    @classmethod
    def waitall(cls, requests: list[Request], statuses: list[Status] | None = None) -> list[Any]:
        requests[0].comm.waitall([each.pending for each in requests])
        return [each.wait() for each in requests]

    @classmethod
    def testall(cls, requests: list[Request], statuses: list[Status] | None = None) -> tuple[bool, Any]:
        over = requests[0].comm.testall([each.pending for each in requests])
        return over, [each.wait() for each in requests] if over else None

    @classmethod
    def Waitall(cls, requests: list[Request]) -> bool:
        cls.waitall(requests)
        return True

    @classmethod
    def Testall(cls, requests: list[Request]) -> bool:
        return cls.testall(requests)[0]

    @classmethod
    def Waitany(cls, requests: list[Request]) -> Any:
        return cls.waitany(requests)[0]

    @classmethod
    def Testany(cls, requests: list[Request]) -> Any:
        return cls.testany(requests)[:2]

    @classmethod
    def Waitsome(cls, requests: list[Request]) -> Any:
        return cls.waitsome(requests)[0]

    @classmethod
    def Testsome(cls, requests: list[Request]) -> Any:
        return cls.testsome(requests)[0]


class Prequest(Request):
    """A persistent operation, or a persistent message."""

    started: Any = None

    @property
    def pending(self) -> Any:
        return self.started

    def Start(self) -> None:
        self.started = self.inner.start() if hasattr(self.inner, "start") else self.inner()

    def wait(self, status: Status | None = None) -> Any:
        if hasattr(self.started, "wait"):
            self.started.wait()

    @classmethod
    def Startall(cls, requests: list[Prequest]) -> None:
        for each in requests:
            each.Start()


class Both(NamedTuple):
    """A send and a receive that are waited for together."""

    requests: list[Request]

    def Wait(self) -> None:
        Request.waitall(self.requests)


class Message:
    """A matched message, true until it is received."""

    def __init__(self, comm: Communicator, inner: Any) -> None:
        self.comm, self.inner = comm, inner

    def __bool__(self) -> bool:
        return self.inner is not None

    def Irecv(self, buffer: Any) -> Request:
        inner, self.inner = self.inner, None
        return Request(self.comm, inner.irecv(Spec.of(buffer).array()))

    def Recv(self, buffer: Any) -> None:
        self.Irecv(buffer).Wait()

    def irecv(self) -> Request:
        box = bytearray(self.inner.status.nbytes)
        request = self.Irecv(box)
        request.load = lambda status: loaded(box, status)
        return request

    def recv(self) -> Any:
        return self.irecv().wait()

    @staticmethod
    def Probe(comm: Comm, *which: Any) -> Message:
        return comm.Mprobe(*which)

    @staticmethod
    def Iprobe(comm: Comm, *which: Any) -> Message | None:
        return comm.Improbe(*which)

    probe, iprobe = Probe, Iprobe


def loaded(box: Any, status: Any) -> Any:
    """Unpickle an object; a message of nothing is None."""
    return pickle.loads(box) if status.nbytes else None


class Comm:
    """A communicator. `collective` adds Name, Iname and Name_init of each function below."""

    def __init__(self, inner: Communicator) -> None:
        self.inner, self.rank, self.size = inner, inner.rank, inner.size

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def Dup(self) -> Comm:
        return Comm(self.inner.dup())

    def Free(self) -> None:
        self.inner.close()

    # --- buffers between two ranks

    def Isend(self, buf: Any, dest: Any, tag: int = 0) -> Request:
        return Request(self.inner, self.inner.isend(_sent(buf), dest, tag))

    def Send(self, buf: Any, dest: Any, tag: int = 0) -> None:
        self.inner.send(_sent(buf), dest, tag)

    def Irecv(self, buf: Any, source: Any = ANY, tag: Any = ANY) -> Request:
        return Request(self.inner, self.inner.irecv(_box(buf), source, tag))

    def Recv(self, buf: Any, source: Any = ANY, tag: Any = ANY, status: Status | None = None) -> None:
        found = self.inner.recv(_box(buf), source, tag)
        if status is not None:
            status.fill(found)

    def Sendrecv(self, sendbuf: Any, dest: Any, sendtag: int = 0, recvbuf: Any = None, source: Any = ANY,
                 recvtag: Any = ANY) -> None:  # fmt: skip
        self.inner.sendrecv(_sent(sendbuf), dest, _box(recvbuf), source, sendtag, recvtag)

    def Isendrecv(self, sendbuf: Any, dest: Any, sendtag: int = 0, recvbuf: Any = None, source: Any = ANY,
                  recvtag: Any = ANY) -> Both:  # fmt: skip
        return Both([self.Irecv(recvbuf, source, recvtag), self.Isend(sendbuf, dest, sendtag)])

    def Isendrecv_replace(self, buf: Any, dest: Any, sendtag: int = 0, source: Any = ANY, recvtag: Any = ANY) -> Both:
        sent = as_array(_sent(buf), "buffer").copy()
        return self.Isendrecv(sent, dest, sendtag, buf, source, recvtag)

    def Sendrecv_replace(self, buf: Any, *where: Any) -> None:
        self.Isendrecv_replace(buf, *where).Wait()

    def Send_init(self, buf: Any, dest: Any, tag: int = 0) -> Prequest:
        return Prequest(self.inner, self.inner.send_init(_sent(buf), dest, tag))

    def Recv_init(self, buf: Any, source: Any = ANY, tag: Any = ANY) -> Prequest:
        return Prequest(self.inner, self.inner.recv_init(_box(buf), source, tag))

    # A small buffered or ready message is a message; what only a synchronous one shows is in `suite.SKIPPED`.
    Bsend = Ssend = Rsend = Send
    Ibsend = Issend = Irsend = Isend
    Bsend_init = Ssend_init = Rsend_init = Send_init

    def Probe(self, source: Any = ANY, tag: Any = ANY, status: Status | None = None) -> None:
        found = self.inner.probe(source, tag)
        if status is not None:
            status.fill(found)

    def Iprobe(self, source: Any = ANY, tag: Any = ANY, status: Status | None = None) -> bool:
        found = self.inner.iprobe(source, tag)
        if status is not None:
            status.fill(found)
        return found is not None

    def Mprobe(self, source: Any = ANY, tag: Any = ANY) -> Message:
        return Message(self.inner, self.inner.mprobe(source, tag))

    def Improbe(self, source: Any = ANY, tag: Any = ANY, status: Status | None = None) -> Message | None:
        found = self.inner.improbe(source, tag)
        return None if found is None else Message(self.inner, found)

    probe, iprobe, mprobe, improbe = Probe, Iprobe, Mprobe, Improbe

    # --- objects between two ranks: mpi4py's pickles, in messages of bytes

    def isend(self, obj: Any, dest: Any, tag: int = 0) -> Request:
        return Request(self.inner, self.inner.isend(pickle.dumps(obj), dest, tag))

    def send(self, obj: Any, dest: Any, tag: int = 0) -> None:
        self.inner.send(pickle.dumps(obj), dest, tag)

    bsend = ssend = send
    ibsend = issend = isend

    def irecv(self, buf: Any = None, source: Any = ANY, tag: Any = ANY) -> Request:
        box = bytearray(buf or OBJECT_BYTES) if buf is None or isinstance(buf, int) else buf
        return Request(self.inner, self.inner.irecv(box, source, tag), lambda status: loaded(box, status))

    def recv(self, buf: Any = None, source: Any = ANY, tag: Any = ANY) -> Any:
        return self.Mprobe(source, tag).recv()

    def sendrecv(self, obj: Any, dest: Any, sendtag: int = 0, recvbuf: Any = None, source: Any = ANY,
                 recvtag: Any = ANY) -> Any:  # fmt: skip
        coming = self.irecv(recvbuf, source, recvtag)
        self.isend(obj, dest, sendtag).wait()
        return coming.wait()

    # --- collectives of objects

    def barrier(self) -> None:
        self.inner.barrier()

    def bcast(self, obj: Any, root: int = 0) -> Any:
        return self.inner.broadcast_object(obj, root=root)

    def gather(self, obj: Any, root: int = 0) -> Any:
        return self.inner.gather_object(obj, root=root)

    def scatter(self, objs: Any, root: int = 0) -> Any:
        return self.inner.scatter_object(objs, root=root)

    def allgather(self, obj: Any) -> Any:
        return self.inner.all_gather_object(obj)


def _sent(buf: Any) -> Any:
    return np.empty(0) if buf is None else Spec.of(buf).array()


_box = _sent


# --- collectives of buffers: each takes the communicator, whose verbs (its own or the persistent ones), and how


def collective(function: Callable[..., Any]) -> None:
    name = function.__name__

    def at_once(self: Comm, *args: Any, **named: Any) -> None:
        function(self, self.inner, {}, *args, **named)

    def later(self: Comm, *args: Any, **named: Any) -> Request:
        return Request(self.inner, function(self, self.inner, {"async_op": True}, *args, **named))

    def prepared(self: Comm, *args: Any, **named: Any) -> Prequest:
        return Prequest(self.inner, function(self, self.inner.persistent, {}, *args, **named))

    for its, method in ((name, at_once), (f"I{name.lower()}", later), (f"{name}_init", prepared)):
        setattr(Comm, its, method)


def pair(send: Any, recv: Any) -> tuple[Any, Any]:
    """Both arrays of a call that may be in place."""
    out = None if recv is None else Spec.of(recv).array()
    return (out if send is None or send is IN_PLACE else Spec.of(send).array()), out


def own_block(comm: Comm, whole: Any) -> Any:
    flat = as_array(whole, "buffer").reshape(-1)
    size = len(flat) // comm.size
    return flat[comm.rank * size : (comm.rank + 1) * size]


@collective
def Barrier(comm: Comm, verbs: Any, how: Any) -> Any:
    return verbs.barrier(**how)


@collective
def Bcast(comm: Comm, verbs: Any, how: Any, buf: Any, root: int = 0) -> Any:
    return verbs.broadcast(Spec.of(buf).array(), root=root, **how)


@collective
def Gather(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any, root: int = 0) -> Any:
    out = Spec.of(recv).array() if comm.rank == root else None
    x = own_block(comm, out) if send is None or send is IN_PLACE else Spec.of(send).array()
    return verbs.gather(x, out, root=root, **how)


@collective
def Scatter(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any, root: int = 0) -> Any:
    x = Spec.of(send).array() if comm.rank == root else None
    out = own_block(comm, x) if recv is None or recv is IN_PLACE else Spec.of(recv).array()
    return verbs.scatter(x, out, root=root, **how)


@collective
def Allgather(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any) -> Any:
    out = Spec.of(recv).array(comm.size)
    return verbs.all_gather(
        own_block(comm, out) if send is None or send is IN_PLACE else Spec.of(send).array(), out, **how
    )


@collective
def Alltoall(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any) -> Any:
    return verbs.all_to_all(Spec.of(send).array(comm.size), Spec.of(recv).array(comm.size), **how)


@collective
def Reduce(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any, op: str = "sum", root: int = 0) -> Any:
    x, out = pair(send, recv)
    return verbs.reduce(x, op, out, root=root, **how)


def folding(name: str, verb: str) -> None:
    def folded(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any, op: str = "sum") -> Any:
        x, out = pair(send, recv)
        return getattr(verbs, verb)(x, op, out, **how)

    folded.__name__ = name
    collective(folded)


for _name, _verb in (("Allreduce", "all_reduce"), ("Scan", "scan"), ("Exscan", "exscan")):
    folding(_name, _verb)


@collective
def Reduce_scatter_block(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any, op: str = "sum") -> Any:
    x, out = pair(send, recv)
    if x is out:  # MPI puts the result where the buffer begins, we in the rank's own block
        x, out = as_array(out, "buffer").copy(), as_array(out, "buffer").reshape(-1)
        out = out[: len(out) // comm.size]
    return verbs.reduce_scatter(x, op, out, **how)


@collective
def Reduce_scatter(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any, counts: Any = None, op: str = "sum") -> Any:
    x, out = pair(send, recv)
    if x is out:
        x, out = as_array(out, "buffer").copy(), as_array(out, "buffer")[: counts[comm.rank]]
    return verbs.reduce_scatterv(x, op, out, counts, **how)


@collective
def Gatherv(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any, root: int = 0) -> Any:
    return verbs.gatherv(Spec.of(send).array(), *Spec.of(recv).uneven(comm.size), root=root, **how)


@collective
def Scatterv(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any, root: int = 0) -> Any:
    x, counts, displs = Spec.of(send).uneven(comm.size)
    return verbs.scatterv(x, Spec.of(recv).array(), counts, displs, root=root, **how)


@collective
def Allgatherv(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any) -> Any:
    return verbs.all_gatherv(Spec.of(send).array(), *Spec.of(recv).uneven(comm.size), **how)


@collective
def Alltoallv(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any) -> Any:
    out, recv_counts, recv_displs = Spec.of(recv).uneven(comm.size)
    x, send_counts, send_displs = (
        (
            as_array(out, "buffer").copy(),
            recv_counts,
            recv_displs,
        )  # no collective of ours sends block by block in place
        if send is IN_PLACE
        else Spec.of(send).uneven(comm.size)
    )
    return verbs.all_to_allv(x, out, send_counts, recv_counts, send_displs, recv_displs, **how)


@collective
def Alltoallw(comm: Comm, verbs: Any, how: Any, send: Any, recv: Any) -> Any:
    out = Spec.of(recv).arrays()
    x = [each.copy() for each in out] if send is IN_PLACE else Spec.of(send).arrays()
    return verbs.all_to_allw(x, out, **how)


def null() -> Request:
    request = Request(None, None)
    request.open = False
    return request


def module(context: RankContext, *, reduces: bool, deadline_s: float) -> ModuleType:
    """Make the module `mpi4py.MPI` of a rank, with communicators of its own."""
    made: Any = ModuleType("mpi4py.MPI")
    world = Communicator.world(context, deadline_s=deadline_s)
    made.COMM_WORLD, made.COMM_SELF, made.COMM_NULL = Comm(world), Comm(world.group([world.rank])), None
    made.Request, made.Prequest, made.Status, made.Message, made.pickle = Request, Prequest, Status, Message, pickle
    made.REQUEST_NULL, made.MESSAGE_NULL, made.MESSAGE_NO_PROC = null(), "no message", "no rank's"
    for name, code in DATATYPES.items():
        setattr(made, name, None if reduces and name in NOT_REDUCED else Datatype(np.dtype(code)))
    for op in ("SUM", "PROD", "MIN", "MAX"):
        setattr(made, op, op.lower())
    made.ANY_SOURCE = made.ANY_TAG = ANY
    made.PROC_NULL, made.UNDEFINED, made.IN_PLACE, made.SUCCESS = PROC_NULL, UNDEFINED, IN_PLACE, 0
    made.DATATYPE_NULL, made.BOTTOM, made.BSEND_OVERHEAD, made.THREAD_SINGLE = None, "bottom", 0, 0
    made.Attach_buffer, made.Detach_buffer, made.Free_mem = (lambda *_: None,) * 3
    made.Alloc_mem, made.Query_thread = bytearray, lambda: 3
    made.Get_version, made.get_vendor = lambda: (4, 0), lambda: ("cxlemu", (0, 0, 0))
    return made
