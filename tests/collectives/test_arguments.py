"""What may be an argument: every dtype, every array that shares its memory with NumPy's, gaps, shapes of nothing."""

import ctypes
from array import array
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives import Communicator
from collectives.communicator.calls.arguments import as_array
from cxlemu.dlpack import _Versioned
from cxlemu.errors import ArgumentError
from cxlemu.memory import AdversaryRates, MemorySpec
from cxlemu.plan import DTYPES
from tests.helpers import worlds
from tests.helpers.tables import with_rows
from tests.helpers.worlds import Program

MEMORIES = [MemorySpec(), MemorySpec("emulated", seed=3, rates=AdversaryRates())]


together = partial(worlds.together, ranks=3, memory=MEMORIES[0], region_bytes=1 << 16)
on_ranks = partial(worlds.on_ranks, by=together)


STRUCT = np.dtype([("a", "<i2"), ("b", "<f8"), ("c", "S3")])
MOVED = [
    *DTYPES.values(),
    *map(np.dtype, (">f4", "<M8[ns]", "S5", "<U2", "V7", STRUCT)),
    *(np.dtype(getattr(ml_dtypes, name)) for name in ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu")),
]


def any_bits(comm: Communicator, dtype: np.dtype[Any], count: int, of: int | None = None) -> np.ndarray:
    rng = np.random.default_rng(comm.rank if of is None else of)
    return rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)


def moves_all(dtype: np.dtype[Any]) -> Program:
    def program(comm: Communicator) -> None:
        def bits(rank: int, count: int = 6) -> np.ndarray:
            return any_bits(comm, dtype, count, rank)

        def same(got: np.ndarray, *wanted: np.ndarray) -> None:
            assert got.dtype == dtype
            assert got.tobytes() == b"".join(piece.tobytes() for piece in wanted)

        own, everyone = bits(comm.rank), [bits(rank) for rank in range(3)]
        same(comm.all_gather(own), *everyone)
        same(comm.broadcast(own.copy(), root=1), everyone[1])
        same(comm.all_to_all(own), *(x[2 * comm.rank :][:2] for x in everyone))
        same(comm.scatter(own, own[:2].copy(), root=2), everyone[2][2 * comm.rank :][:2])
        got = comm.gather(own, root=2)
        assert (got is not None) is (comm.rank == 2)
        if got is not None:
            same(got, *everyone)

    return program


@pytest.mark.each_value_once
@pytest.mark.parametrize("dtype", MOVED, ids=str)
@pytest.mark.parametrize("engine", ["native", "reference"])
@pytest.mark.parametrize("memory", MEMORIES, ids=["shm", "emulated"])
def test_whatever_an_array_holds_moves_as_bytes(dtype: np.dtype[Any], engine: str, memory: MemorySpec) -> None:
    together(moves_all(dtype), memory=memory, engine=engine)


# --- shapes ---------------------------------------------------------------------------------------------------------


@on_ranks(gives=[((), 6.0, [0, 1, 2])] * 3)
def test_arrays_of_nothing_and_of_no_axes(comm: Communicator) -> Any:
    nothing = np.empty((0, 4), np.float32)
    assert comm.all_reduce(nothing) is nothing
    assert comm.all_gather(nothing).shape == (3, 0, 4)
    assert comm.all_to_all(np.empty(0)).shape == comm.reduce_scatter(np.empty(0)).shape == (0,)
    assert comm.broadcast(np.empty((), "V0")).shape == ()
    one = np.array(float(comm.rank + 1))
    return comm.all_reduce(one).shape, float(one), comm.all_gather(np.array(comm.rank)).tolist()


@pytest.mark.parametrize("engine", ["native", "reference"])
@on_ranks(asks="engine")
def test_arrays_with_gaps_are_copied_in_and_out(comm: Communicator) -> None:
    grid = np.full((6, 8), -1, np.int32)
    grid[:, ::2] = comm.rank + np.arange(24).reshape(6, 4)
    before = grid.copy()
    column = grid[:, ::2]
    assert comm.all_reduce(column) is column  # in place
    assert (column == 3 + 3 * np.arange(24).reshape(6, 4)).all() and (grid[:, 1::2] == -1).all()
    out = np.zeros((3, 6, 8), np.int32)[:, :, ::-2]
    assert comm.all_gather(before[:, ::2], out) is out
    assert (out == np.arange(3)[:, None, None] + np.arange(24).reshape(6, 4)).all()
    assert (comm.all_gather(np.asfortranarray(before)) == comm.all_gather(before)).all()
    turned = comm.broadcast(np.array([[comm.rank, 1], [2, 3]]).T, root=2)
    assert turned.tolist() == [[2, 2], [1, 3]]
    again = comm.persistent.all_reduce(column)
    for k in (1, 2):
        column[:] = k
        assert again() is column and (column == 3 * k).all()
    column[:] = 1
    pending = [comm.all_reduce(column, async_op=True) for _ in range(3)]
    assert pending[2].wait() is column and (column == 27).all()


@on_ranks()
def test_read_only_arrays_with_gaps_take_no_result(comm: Communicator) -> None:
    x = np.zeros(8, np.int32)
    x.flags.writeable = False
    with pytest.raises(ArgumentError, match="x is read-only"):
        comm.all_reduce(x[::2])
    assert comm.all_gather(x[::2]).shape == (3, 4)


# --- other libraries' arrays --------------------------------------------------------------------------------------


@on_ranks()
def test_what_has_the_buffer_protocol_is_an_array(comm: Communicator) -> None:
    text = bytearray(b"rank %d" % comm.rank)
    assert comm.broadcast(text, root=1) is text and text == b"rank 1"
    numbers = array("d", [comm.rank, 1.0])
    assert comm.all_reduce(numbers) is numbers and numbers.tolist() == [3.0, 3.0]
    words = memoryview(bytearray(12)).cast("i", (3,))
    comm.all_gather(memoryview(np.int32(comm.rank)), out=words)
    assert words.tolist() == [0, 1, 2]
    assert comm.all_gather(b"ab")[2].tobytes() == b"ab"
    some = (ctypes.c_uint16 * 4)(1, 2, 3, 4)
    assert list(comm.all_reduce(some, "bxor")) == [1, 2, 3, 4]
    with pytest.raises(ArgumentError, match="read-only"):
        comm.all_reduce(b"ab")
    with pytest.raises(
        ArgumentError, match="x is a str: a NumPy array is needed, or an object that shares its memory by"
    ):
        comm.broadcast("text")


class Lent:
    """An array that lends its memory by DLPack alone, as other libraries' do."""

    def __init__(self, x: np.ndarray, *, device: int = 1, old: bool = False) -> None:
        self._x, self._device, self._old = x, device, old

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device, 0

    def __dlpack__(self, **wanted: Any) -> Any:
        if self._old and wanted:
            raise TypeError("no keywords before 1.0")
        return self._x.__dlpack__(**wanted)


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("name", [name for name in DTYPES if name != "bf16"])
def test_a_tensor_shares_its_memory_whatever_it_holds(name: str, old: bool) -> None:
    x = np.arange(24).astype(DTYPES[name]).reshape(4, 6)
    for given in (x, x[1:, ::2], x.T, x[:0], np.array(1, DTYPES[name])):
        view = as_array(Lent(given, old=old), "x")
        assert (view.dtype, view.shape) == (given.dtype, given.shape) and (view == given).all()
        if given.size:
            assert view.ctypes.data == given.ctypes.data and view.flags.writeable
    view = as_array(Lent(x), "x")
    address = x.ctypes.data
    del x
    assert view.ctypes.data == address and view.sum() == np.arange(24).astype(DTYPES[name]).sum()


@on_ranks()
def test_a_tensor_is_an_argument_of_every_verb(comm: Communicator) -> None:
    x = np.full(5, comm.rank, np.float32)
    tensor = Lent(x)
    assert comm.all_reduce(tensor) is tensor and x.tolist() == [3] * 5
    assert comm.all_gather(Lent(x)).shape == (3, 5)


def test_a_tensor_that_is_elsewhere_or_read_only_is_refused_in_a_sentence() -> None:
    x = np.arange(4.0)
    with pytest.raises(ArgumentError, match=r"x, a .*Lent, is not in the CPU's memory \(DLPack device 2\): copy it"):
        as_array(Lent(x, device=2), "x")
    x.flags.writeable = False
    assert not as_array(Lent(x), "x").flags.writeable
    with pytest.raises(ArgumentError, match=r"cannot be exported by its library: .*readonly"):
        as_array(Lent(x, old=True), "x")
    backwards = np.arange(4.0)[::-1]
    with pytest.raises(ArgumentError, match="runs backwards along an axis: pass a copy"):
        as_array(Lent(backwards), "x")


@with_rows((4, 16, "bfloat16"), (10, 8, "float8_e4m3fn"), (12, 8, "float8_e5m2"), (6, 8, None), (7, 4, ""), (2, 80, ""))
def test_elements_that_numpy_does_not_lend(code: int, bits: int, dtype: str | None) -> None:
    """As PyTorch lends bf16 and f8: the capsule's description is changed, as NumPy makes no such capsule."""

    class Other(Lent):
        def __dlpack__(self, **wanted: Any) -> Any:
            capsule = super().__dlpack__(**wanted)
            pointer = ctypes.pythonapi.PyCapsule_GetPointer(ctypes.py_object(capsule), b"dltensor_versioned")
            its = _Versioned.from_address(pointer).tensor.dtype
            its.code, its.bits = code, bits
            return capsule

    x = np.arange(6, dtype=np.uint16 if bits == 16 else np.uint8)
    if dtype == "":
        with pytest.raises(ArgumentError, match="has elements of a type that NumPy lacks"):
            as_array(Other(x), "x")
        return
    view = as_array(Other(x), "x")
    assert view.dtype == np.dtype(np.bool_ if dtype is None else getattr(ml_dtypes, dtype))
    assert view.view(x.dtype).tolist() == x.tolist()
