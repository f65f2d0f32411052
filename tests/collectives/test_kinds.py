"""Each kind of array that programs hold, through every verb of arrays: what NumPy's own would give, or a refusal."""

import inspect
import tempfile
from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives import Communicator
from cxlemu import RankContext, launch
from cxlemu.errors import ArgumentError, RevokedError
from tests.helpers.tiers import PATIENT_S

Make = Callable[[np.ndarray], Any]
BLOCK, SIZE = 2, 4  # elements for one rank, and for both


class Odd(np.ndarray):
    """Indexes and reshapes in ways of its own."""

    def __getitem__(self, key: Any) -> Any:
        raise AssertionError("indexed")

    def reshape(self, *shape: Any, **how: Any) -> Any:
        raise AssertionError("reshaped")


class Lends:
    """Has an array's memory, and says so by one protocol alone."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x


def lender(*names: str, of: Make = np.copy) -> Make:
    said = {name: property(lambda its, name=name: getattr(its.x, name)) for name in names}
    return lambda x: type("Lender", (Lends,), said)(of(x))


def gaps(x: np.ndarray) -> np.ndarray:
    room = np.zeros((*x.shape, 2), x.dtype)
    room[..., 0] = x
    return room[..., 0]


def unaligned(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(bytearray(b"-" + x.tobytes()), np.uint8)[1:].view(x.dtype)


def mapped(mode: Any) -> Make:
    def make(x: np.ndarray) -> np.ndarray:
        with tempfile.NamedTemporaryFile() as file:
            x.tofile(file.name)
            return np.memmap(file.name, x.dtype, mode)

    return make


def locked(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


def torch_of(change: Callable[[Any], Any] = lambda t: t) -> Make:
    return lambda x: change(pytest.importorskip("torch").from_numpy(x.copy()))


DLPACK = ("__dlpack__", "__dlpack_device__")
ALL, MOVED, READ, NONE = "takes all", "is not reduced", "is only read", "is refused"
KINDS: dict[str, tuple[Any, Make, str]] = {
    "matrix": ("f8", lambda x: np.matrix(x).T, ALL),
    "subclass": ("f8", lambda x: x.copy().view(Odd), ALL),
    "backwards": ("f8", lambda x: x[::-1].copy()[::-1], ALL),
    "gaps": ("f8", gaps, ALL),
    "unaligned": ("c16", unaligned, ALL),
    "field": ("f8", lambda x: np.rec.fromarrays([x.astype("u1"), x])["f1"], ALL),
    "half": ("f2", np.copy, ALL),
    "bfloat16": (ml_dtypes.bfloat16, np.copy, ALL),
    "bool": ("?", np.copy, ALL),
    "memoryview": ("f8", lambda x: memoryview(x.copy()), ALL),
    "memoryview backwards": ("f8", lambda x: memoryview(x[::-1].copy())[::-1], ALL),
    "bytearray": ("u1", lambda x: bytearray(x.tobytes()), ALL),
    "array.array": ("f8", lambda x: array("d", x.tobytes()), ALL),
    "copy on write": ("f8", mapped("c"), ALL),
    "DLPack": ("f8", lender(*DLPACK), ALL),
    "DLPack with gaps": ("f8", lender(*DLPACK, of=gaps), ALL),
    "torch": ("f4", torch_of(), ALL),
    "torch with gaps": ("f4", torch_of(lambda t: t.repeat_interleave(2)[::2]), ALL),
    "big-endian": (">f8", np.copy, MOVED),
    "structure": ("i2,f8,S3", np.copy, MOVED),
    "record": ("i2,f8", lambda x: x.copy().view(np.recarray), MOVED),
    "date": ("M8[ns]", np.copy, MOVED),
    "text": ("S3", np.copy, MOVED),
    "locked": ("f8", locked, READ),
    "mapped to read": ("f8", mapped("r"), READ),
    "bytes": ("u1", lambda x: x.tobytes(), READ),
    "memoryview to read": ("f8", lambda x: memoryview(locked(x)), READ),
    "objects": ("O", np.copy, NONE),
    "structure of objects": ("O,i4", np.copy, NONE),
    "masked": ("f8", np.ma.array, NONE),
    "__array__": ("f8", lender("__array__"), NONE),
    "__array_interface__": ("f8", lender("__array_interface__"), NONE),
    "DLPack backwards": ("f8", lender(*DLPACK, of=lambda x: x[::-1]), NONE),
    "list": ("f8", np.ndarray.tolist, NONE),
    "torch with gradient": ("f4", torch_of(lambda t: t.requires_grad_()), NONE),
}


# Taken in the same way as one beside them.
LIKE_OTHERS = {"half", "memoryview backwards", "DLPack with gaps", "torch with gaps", "record", "text", "date"}
LIKE_OTHERS |= {"array.array", "mapped to read", "memoryview to read", "structure of objects"}


def cut(x: np.ndarray, rank: int) -> np.ndarray:
    return x[BLOCK * rank :][:BLOCK]


def folded(everyone: list[np.ndarray]) -> np.ndarray:
    return np.add.reduce(everyone, dtype=everyone[0].dtype)


def joined(arrays: list[np.ndarray]) -> np.ndarray:
    return np.frombuffer(b"".join(x.tobytes() for x in arrays), arrays[0].dtype)


Given = Callable[..., Any]  # makes an array


def _swap(comm: Communicator, x: Given, out: Given) -> Any:
    comm.sendrecv(x(), 1 - comm.rank, into := out(), 1 - comm.rank)
    return into


def _posted(comm: Communicator, x: Given, out: Given) -> Any:
    peer, into = 1 - comm.rank, out()
    comm.waitall([comm.recv_init(into, peer).start(), comm.send_init(x(), peer).start()])
    return into


def _sent(comm: Communicator, x: Given, out: Given) -> Any:
    coming = comm.irecv(into := out(), 1 - comm.rank)
    comm.send(x(), 1 - comm.rank)
    coming.wait()
    return into


def _received(comm: Communicator, x: Given, out: Given) -> Any:
    leaving = comm.isend(x(), 1 - comm.rank)
    comm.recv(into := out(), 1 - comm.rank)
    leaving.wait()
    return into


def _coalesced(comm: Communicator, x: Given, out: Given) -> Any:
    with comm.coalesce() as batch:
        batch.all_reduce(x())
        return batch.all_reduce(x())


# By verb: the call of an array to send and one for the result, what it gives, whether it reduces and writes to either.
Row = tuple[Callable[[Communicator, Given, Given], Any], Callable[[list[np.ndarray], int], Any], bool, bool]
CALLS: dict[str, Row] = {
    "all_reduce": (lambda c, x, out: c.all_reduce(x(), out=out()), lambda xs, me: folded(xs), True, True),
    "all_reduce, in place": (lambda c, x, out: c.all_reduce(x()), lambda xs, me: folded(xs), True, True),
    "reduce": (lambda c, x, out: c.reduce(x()), lambda xs, me: None if me else folded(xs), True, True),
    "scan": (lambda c, x, out: c.scan(x(), out=out()), lambda xs, me: folded(xs[: me + 1]), True, True),
    "exscan": (
        lambda c, x, out: c.exscan(x(), out=out()),
        lambda xs, me: xs[0] if me else np.zeros_like(xs[0]),
        True,
        True,
    ),
    "reduce_scatter": (lambda c, x, out: c.reduce_scatter(x()), lambda xs, me: cut(folded(xs), me), True, False),
    "reduce_scatterv": (lambda c, x, out: c.reduce_scatterv([x(), x()]), lambda xs, me: folded(xs), True, False),
    "all_reduce_many": (lambda c, x, out: c.all_reduce_many([x(), x()])[1], lambda xs, me: folded(xs), True, True),
    "reduce_scatter_many": (
        lambda c, x, out: c.reduce_scatter_many([x()])[0],
        lambda xs, me: cut(folded(xs), me),
        True,
        False,
    ),
    "coalesce": (_coalesced, lambda xs, me: folded(xs), True, True),
    "persistent": (
        lambda c, x, out: c.persistent.all_reduce(x(), out=out())(),
        lambda xs, me: folded(xs),
        True,
        True,
    ),
    "broadcast": (lambda c, x, out: c.broadcast(out() if c.rank else x()), lambda xs, me: xs[0], False, True),
    "broadcast_many": (
        lambda c, x, out: c.broadcast_many([out() if c.rank else x()])[0],
        lambda xs, me: xs[0],
        False,
        True,
    ),
    "all_gather": (lambda c, x, out: c.all_gather(x()), lambda xs, me: joined(xs), False, False),
    "all_gather_many": (lambda c, x, out: c.all_gather_many([x()])[0], lambda xs, me: joined(xs), False, False),
    "gather": (lambda c, x, out: c.gather(x(), root=1), lambda xs, me: joined(xs) if me else None, False, False),
    "scatter": (lambda c, x, out: c.scatter(x(), out(BLOCK)), lambda xs, me: cut(xs[0], me), False, True),
    "all_to_all": (
        lambda c, x, out: c.all_to_all(x()),
        lambda xs, me: joined([cut(x, me) for x in xs]),
        False,
        False,
    ),
    "pass_on": (lambda c, x, out: c.pass_on(x(), out()), lambda xs, me: xs[0] if me else None, False, True),
    "all_gatherv": (lambda c, x, out: c.all_gatherv(x(), [out(), out()])[1], lambda xs, me: xs[1], False, True),
    "gatherv": (lambda c, x, out: c.gatherv(x(), root=1), lambda xs, me: joined(xs) if me else None, False, False),
    "scatterv": (lambda c, x, out: c.scatterv([x(), x()], out()), lambda xs, me: xs[0], False, True),
    "all_to_allv": (lambda c, x, out: c.all_to_allv([x(), x()]), lambda xs, me: joined(xs), False, False),
    "all_to_allw": (
        lambda c, x, out: c.all_to_allw([x()] * 2, [out(), out()])[0],
        lambda xs, me: xs[0],
        False,
        True,
    ),
    "sendrecv": (_swap, lambda xs, me: xs[1 - me], False, True),
    "send_init, recv_init": (_posted, lambda xs, me: xs[1 - me], False, True),
    "send, irecv": (_sent, lambda xs, me: xs[1 - me], False, True),
    "isend, recv": (_received, lambda xs, me: xs[1 - me], False, True),
}


def values(dtype: Any, rank: int) -> np.ndarray:
    of = np.dtype(dtype)
    if of.hasobject:
        return np.zeros(SIZE, of)
    if of.names or of.kind in "SM":
        return np.random.default_rng(rank).integers(65, 90, SIZE * of.itemsize, np.uint8).view(of)
    return (np.arange(SIZE) + rank).astype(of)


def elements(x: Any) -> bytes:
    return bytes(np.asarray(x.x if isinstance(x, Lends) else x, order="C").tobytes())


def answers(context: RankContext, kind: str) -> dict[str, str]:
    """What comes of each verb on this rank, in a communicator of its own."""
    dtype, make, _ = KINDS[kind]
    everyone, found = [values(dtype, rank) for rank in range(2)], dict[str, str]()

    def out(size: int = SIZE) -> Any:
        return make(np.zeros(size, dtype))

    with Communicator.world(context, deadline_s=PATIENT_S) as comm:
        for name, (call, expected, _, _) in CALLS.items():
            own = comm.dup()
            try:
                result, wanted = call(own, lambda: make(everyone[comm.rank]), out), expected(everyone, comm.rank)
                right = wanted is None or elements(result) == wanted.tobytes()
                own.barrier()
                found[name] = "right" if right else f"{result} instead of {wanted}"
            except ArgumentError:
                own.revoke()
                found[name] = "refused"
            except RevokedError:
                found[name] = "refused by its peer"
            own.close()
    return found


@pytest.mark.deep(rows=lambda kind: kind in LIKE_OTHERS)
@pytest.mark.filterwarnings("ignore:the matrix subclass")
@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_gives_what_numpy_does_or_refuses(kind: str) -> None:
    takes = KINDS[kind][2]
    if kind.startswith("torch"):
        pytest.importorskip("torch")
    found = launch(partial(answers, kind=kind), ranks=2, topology="laptop", memory="shm", deadline_s=PATIENT_S)
    for name, (_, _, reduces, writes) in CALLS.items():
        cells = {each[name] for each in found}
        if takes == NONE or (takes == MOVED and reduces) or (takes == READ and writes):
            assert "refused" in cells and cells <= {"refused", "refused by its peer"}, (name, cells)
        else:
            assert cells == {"right"}, (name, cells)


def test_every_verb_of_arrays_has_a_row() -> None:
    verbs = {
        name
        for name, verb in inspect.getmembers(Communicator, inspect.isfunction)
        if {"x", "array", "arrays"} & inspect.signature(verb).parameters.keys() and not name.startswith("_")
    }
    assert verbs and verbs <= {part for name in CALLS for part in name.split(", ")}
