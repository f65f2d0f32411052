"""Calls whose arrays live on a device, a fake one: the same results, in kind, in the order of queues."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from collectives import Communicator
from cxlemu import RankContext, launch
from cxlemu.accelerator.arrays import FakeArray, device_view, fetched
from cxlemu.accelerator.device import DeviceView
from cxlemu.accelerator.fake import FakeDevice
from cxlemu.engines.mover import BufferPart
from cxlemu.errors import ArgumentError, DeviceError, RankFailures, TruncationError
from cxlemu.memory import MemorySpec
from tests.helpers.device_verbs import RANKS, values, verbs
from tests.helpers.lent_array import READ_ONLY, LentArray
from tests.helpers.tables import with_rows


def device_of(context: RankContext, **how: Any) -> FakeDevice:
    return FakeDevice(context.rank + 7, dma_writes=context.topology.hosts.dma_writes, **how)


@dataclass(frozen=True)
class InQueue:
    """An array on whose elements its user works in a queue of its own."""

    array: FakeArray
    queue: Any

    @property
    def __cxl_device_array__(self) -> DeviceView:
        return replace(self.array.__cxl_device_array__, queue=self.queue)

    def set(self, given: Any) -> None:
        view = self.__cxl_device_array__
        pinned = view.device.pinned(given.nbytes)
        pinned.view(given.dtype)[...] = given
        view.device.copy(self.queue, BufferPart(view.buffer, 0, given.nbytes), BufferPart(pinned, 0, given.nbytes))

    def get(self) -> Any:
        return fetched(self.__cxl_device_array__)


def both(context: RankContext) -> bool:
    """Whether a rank's arrays on a device and its arrays on the host come to the same bits; ranks differ in which."""
    device = device_of(context)
    with Communicator.world(context, region_bytes=1 << 16) as comm:
        on_host = verbs(comm, np.copy, np.asarray)
        on_device = verbs(comm, lambda given: FakeArray.of(device, given), FakeArray.get)
        mixed = comm.rank == 1
        some = verbs(
            comm,
            np.copy if mixed else lambda given: FakeArray.of(device, given),
            np.asarray if mixed else FakeArray.get,
        )
    for wanted, *got in zip(on_host, on_device, some, strict=True):
        for each in got:
            assert (wanted is None) == (each is None)
            if wanted is not None:
                assert (each.dtype, each.shape) == (wanted.dtype, wanted.shape)
                assert each.tobytes() == wanted.tobytes()
    return True


@with_rows(
    ("threads", MemorySpec(seed=3)),
    pytest.param("threads", MemorySpec("shm"), marks=pytest.mark.deep),
    pytest.param("threads", MemorySpec(), marks=pytest.mark.deep),
    pytest.param("processes", MemorySpec(seed=5), marks=pytest.mark.deep),
    ids=str,
)
def test_every_verb_gives_the_hosts_bits_in_kind(how: str, memory: MemorySpec) -> None:
    assert launch(both, ranks=RANKS, topology="six-cards", how=how, memory=memory) == [True] * RANKS


def ordered(context: RankContext) -> list[float]:
    """A lazy device: nothing is done before somebody waits. Only queues' order makes these right."""
    device = device_of(context, eagerness=0)
    with Communicator.world(context) as comm:
        x = FakeArray.of(device, np.full(1000, 1 + comm.rank, np.float32))
        comm.all_reduce(x)  # comes after what sets x, which is not done yet
        y = FakeArray.of(device, np.zeros(1000, np.float32))
        comm.all_reduce(x, out=y)  # after the call before
        x.set(np.full(1000, 100, np.float32))  # after both
        pending = comm.all_reduce(x, async_op=True)
        again = comm.persistent.all_reduce(y)
        again()
        again()
        pending.wait()
        gathered = comm.all_gather(y)
        return [float(x.get()[0]), float(y.get()[-1]), float(gathered[comm.size - 1].get()[5])]


def test_a_call_comes_after_its_arrays_producer_and_before_their_consumer() -> None:
    got = launch(ordered, ranks=RANKS, topology="six-cards", how="threads")
    assert got == [[300.0, 162.0, 162.0]] * RANKS


def of_many_users(context: RankContext) -> list[list[float]]:
    """Arrays in two queues of their users, in lists and batches: what was queued before comes first, later last."""
    device = device_of(context, eagerness=0)
    with Communicator.world(context) as comm:
        mine, others = (FakeArray.of(device, np.full(300, value, np.float32)) for value in (0, 0))
        elsewhere = InQueue(others, device.queue())
        for _ in range(2):
            mine.set(np.full(300, 1 + comm.rank, np.float32))
            elsewhere.set(np.full(300, 10 + comm.rank, np.float32))
            comm.all_reduce_many([mine, elsewhere])
            with comm.coalesce() as batch:
                batch.all_reduce(elsewhere, "max")
                batch.all_reduce(mine, "max")
            first = [float(mine.get()[-1]), float(elsewhere.get()[7])]  # who waits longer is asked first
        pending = comm.all_reduce_many([elsewhere, mine], async_op=True)
        pending.wait()
        return [first, [float(mine.get()[-1]), float(elsewhere.get()[7])]]


def test_a_list_comes_after_what_each_of_its_users_queued() -> None:
    got = launch(of_many_users, ranks=RANKS, topology="six-cards", how="threads")
    assert got == [[[6.0, 33.0], [18.0, 99.0]]] * RANKS


def lent(context: RankContext) -> bool:
    """Arrays that have DLPack alone, each in a queue of its user's; nothing is done before somebody waits."""
    device = device_of(context, eagerness=0)

    def put(given: Any) -> LentArray:
        return LentArray.of(device, given)

    with Communicator.world(context, region_bytes=1 << 16) as comm:
        x, y = put(np.full(1000, 1 + comm.rank, np.float32)), put(np.zeros(1000, np.float32))
        comm.all_reduce(x, out=y)  # comes after both of their queues
        assert not device.lent.todo  # the host has waited
        assert y.get().tolist() == [6.0] * 1000  # in y's queue, which nobody let come after the call
        again = comm.persistent.all_reduce(x, out=y)
        for value in (10, 100):
            x.set(np.full(1000, value + comm.rank, np.float32))
            again()  # each run comes after what was queued before it
            assert y.get().tolist() == [3.0 * value + 3] * 1000
        gathered = comm.all_gather(x)
        assert type(gathered) is LentArray and gathered.get()[2].tolist() == [102.0] * 1000
        x.set(np.full(1000, comm.rank, np.float32))
        comm.all_reduce_many([x, y])
        assert (x.get()[5], y.get()[5]) == (3.0, 909.0)
        pending = comm.all_reduce(x, async_op=True)
        pending.wait()
        assert x.get()[7] == 9.0
        x.set(np.full(1000, comm.rank, np.float32))
        comm.sendrecv(x, (comm.rank + 1) % comm.size, y, (comm.rank - 1) % comm.size)
        assert y.get()[-1] == (comm.rank - 1) % comm.size
        one, some = put(values(0)[:4]), put(np.zeros((4, 2), np.float32))
        some.strides = (1, 4)
        with pytest.raises(ArgumentError, match="not contiguous"):
            comm.all_reduce(some)
        one.flags = READ_ONLY
        with pytest.raises(ArgumentError, match="read-only"):
            comm.all_reduce(one)
        assert set(x.asked) == {device.stream_of(device.lent)}
        elsewhere = put(values(1)[:4])
        elsewhere._array = FakeArray.of(FakeDevice(9), np.zeros(4, np.float32))
        with pytest.raises(DeviceError, match="has no memory at"):
            comm.all_reduce(elsewhere)
    return True


def test_arrays_that_have_dlpack_alone_come_after_their_producer_and_are_done_for_their_consumer() -> None:
    assert launch(lent, ranks=RANKS, topology="six-cards", how="threads") == [True] * RANKS


def lent_everywhere(context: RankContext) -> bool:
    device = device_of(context)
    with Communicator.world(context, region_bytes=1 << 16) as comm:
        on_host = verbs(comm, np.copy, np.asarray)
        with_blocks = verbs(comm, partial(lent_or_ours, device), lambda array: array.get())
    return all(
        (wanted is None) == (got is None) and (wanted is None or wanted.tobytes() == got.tobytes())
        for wanted, got in zip(on_host, with_blocks, strict=True)
    )


def lent_or_ours(device: FakeDevice, given: Any) -> Any:
    """Ours where a test takes a block of it, or where DLPack's arrays in this test have no such elements."""
    mine = given.shape == (RANKS, 700) or given.dtype == ml_dtypes.bfloat16
    return FakeArray.of(device, given) if mine else LentArray.of(device, given)


@pytest.mark.deep
def test_every_verb_takes_arrays_that_have_dlpack_alone() -> None:
    assert launch(lent_everywhere, ranks=RANKS, topology="six-cards", how="threads") == [True] * RANKS


def test_a_fake_device_that_is_gone_lends_nothing() -> None:
    array = LentArray.of(FakeDevice(), np.zeros(3))
    array.device = SimpleNamespace(number=1 << 40)  # type: ignore[assignment]
    with pytest.raises(DeviceError, match="no fake device"):
        device_view(array, "x")


def multiplied(comm: Communicator, put: Callable[[Any], Any], get: Callable[[Any], Any], dtype: Any) -> list[bytes]:
    """Results of every fused product of matrices that ``put`` makes."""

    def matrix(seed: int, *shape: int) -> Any:
        return put(np.random.default_rng(seed).standard_normal(shape).astype(dtype))

    m, n, k, rank = 6 * RANKS, 4 * RANKS, 3 * RANKS, comm.rank
    rows, columns = matrix(rank, m // RANKS, k), matrix(10 + rank, k, n // RANKS)
    left, right = matrix(20 + rank, m, k // RANKS), matrix(30 + rank, k // RANKS, n)
    cut = {"comm_tile_rows": 2, "compute_tile": (3, 2)}
    out = matrix(40, m // RANKS, n)
    again = comm.persistent.matmul_reduce_scatter(left, right, out, style="medium")
    again()
    found = [
        comm.all_gather_matmul(rows, columns),
        comm.all_gather_matmul(rows, columns, **cut),
        comm.matmul_reduce_scatter(left, right, **cut),
        comm.matmul_all_reduce(left, right, style="unfused"),
        again(),
        out,
    ]
    comm.all_reduce(found[3])  # what is queued for a result comes after it
    return [get(each).tobytes() for each in found]


def products(context: RankContext, dtype: Any) -> bool:
    """Whether a device, which multiplies late and by NumPy, has the bits of the host; ranks differ in where they do."""
    device = device_of(context)
    with Communicator.world(context, region_bytes=1 << 16) as comm:
        on_host = multiplied(comm, np.copy, np.asarray, dtype)
        on_device = multiplied(comm, lambda given: FakeArray.of(device, given), lambda array: array.get(), dtype)
        mixed = comm.rank == 1
        some = multiplied(
            comm,
            np.copy if mixed else lambda given: FakeArray.of(device, given),
            np.asarray if mixed else lambda array: array.get(),
            dtype,
        )
    assert device.moves > 0
    return on_host == on_device == some


@with_rows(
    (np.float32, MemorySpec(seed=3)),
    *(
        pytest.param(dtype, memory, marks=pytest.mark.deep)
        for dtype in (np.float16, ml_dtypes.bfloat16, np.float64)
        for memory in (MemorySpec("shm"), MemorySpec(seed=4))
    ),
)
def test_products_of_matrices_on_a_device_have_the_bits_of_its_multiplication(dtype: Any, memory: MemorySpec) -> None:
    asked = partial(products, dtype=dtype)
    assert launch(asked, ranks=RANKS, topology="six-cards", how="threads", memory=memory) == [True] * RANKS


def refused_products(context: RankContext) -> list[str]:
    device = device_of(context)
    a, b = (FakeArray.of(device, np.ones((RANKS, RANKS), np.float32)) for _ in range(2))
    said = []
    with Communicator.world(context) as comm:
        for call in (
            lambda: comm.matmul_all_reduce(a, np.ones((RANKS, RANKS), np.float32)),
            lambda: comm.matmul_all_reduce(a, FakeArray(FakeDevice(1), (RANKS, RANKS), np.float32)),
            lambda: comm.matmul_all_reduce(a, b, a),
            lambda: comm.matmul_all_reduce(a, FakeArray(device, (RANKS + 1, RANKS), np.float32)),
            lambda: comm.matmul_all_reduce(a, FakeArray(device, (RANKS, RANKS), np.float64)),
            lambda: comm.matmul_all_reduce(a, b, FakeArray(device, (RANKS, 1), np.float32)),
        ):
            with pytest.raises(ArgumentError) as refused:
                call()
            said.append(str(refused.value))
    return said


def test_matrices_that_do_not_fit_are_refused_and_nothing_is_sent() -> None:
    words = ["on the host", "two devices", "overlaps", "do not match the rows of b", "is float64", "must have shape"]
    for said in launch(refused_products, ranks=RANKS, topology="six-cards", how="threads"):
        assert all(word in text for text, word in zip(said, words, strict=True)), said


def messages(context: RankContext, mixed: bool) -> list[Any]:
    """Round the ring, to oneself, from anyone; larger than a mailbox, into an array that is too small, and small."""
    device, size = device_of(context, eagerness=0), context.ranks
    on_host = mixed and context.rank == 1

    def put(given: Any) -> Any:
        return given.copy() if on_host else FakeArray.of(device, given)

    def get(array: Any) -> Any:
        return array if on_host else array.get()

    with Communicator.world(context, region_bytes=1 << 16) as comm:
        after, before, got = (comm.rank + 1) % size, (comm.rank - 1) % size, []
        for count in (1, 5, 0, 300_000):
            there = put(np.full(count + 3, -1, np.float32))
            status = comm.sendrecv(put(values(comm.rank, count)), after, there, before, 4, 4)
            got.append((status.source, status.nbytes, get(there).tobytes() == expected(before, count)))
        itself = put(np.zeros(7, np.float32))
        comm.isend(put(values(9, 7)), comm.rank, 1)
        comm.recv(itself, comm.rank)
        got.append(get(itself).tobytes() == values(9, 7).tobytes())
        with pytest.raises(TruncationError):
            comm.sendrecv(put(values(0, 9)), after, put(np.zeros(8, np.float32)), before)
        for _ in range(20):  # couriers carry the host's small messages, and none of a device
            small = put(np.zeros(4, np.float32))
            comm.sendrecv(put(values(comm.rank, 4)), after, small, before, 2)
            got.append(get(small).tobytes() == values(before, 4).tobytes())
    return got


def expected(rank: int, count: int) -> bytes:
    return bytes(values(rank, count).tobytes() + np.full(3, -1, np.float32).tobytes())


@pytest.mark.parametrize("mixed", [False, True])
def test_messages_go_between_devices_and_hosts(mixed: bool) -> None:
    for rank, got in enumerate(
        launch(partial(messages, mixed=mixed), ranks=RANKS, topology="six-cards", how="threads")
    ):
        before = (rank - 1) % RANKS
        assert got[:4] == [(before, 4 * count, True) for count in (1, 5, 0, 300_000)]
        assert got[4:] == [True] * 21


def refusals(context: RankContext) -> list[str]:
    device, other = device_of(context), device_of(context)
    with Communicator.world(context) as comm:
        x = FakeArray.of(device, values(0))
        said = []
        for call in (
            lambda: comm.all_reduce(x, out=np.zeros(3000, np.float32)),
            lambda: comm.all_reduce(x, out=FakeArray(other, (3000,), np.float32)),
            lambda: comm.all_reduce(x, out=FakeArray(device, (7,), np.float32)),
            lambda: comm.all_reduce(x, variant="zero_copy"),
            lambda: comm.all_reduce_many([x, np.zeros(3)]),
            lambda: comm.all_gather_many([x], [FakeArray(other, (RANKS, 3000), np.float32)]),
            lambda: comm.all_gather_many([x], [FakeArray(device, (7,), np.float32)]),
            lambda: comm.reduce_scatter(FakeArray(device, (RANKS + 1,), np.float32)),
            lambda: comm.all_gatherv(x[0], FakeArray(device, (9,), np.float32), [1, 1, 1], [0, 3, 6]),
            lambda: comm.all_gatherv(x[0], FakeArray(device, (9,), np.float32), [1, 1, 1]),
            lambda: comm.all_to_allv([x] * RANKS, np.zeros(9000, np.float32), None, [3000] * RANKS),
        ):
            with pytest.raises(ArgumentError) as refused:
                call()
            said.append(str(refused.value))
        return said


def test_what_cannot_be_is_refused_with_a_sentence_and_nothing_is_sent() -> None:
    for said in launch(refusals, ranks=RANKS, topology="six-cards", how="threads"):
        words = ["on the host", "two devices", "must have 12000 bytes", "comm.heap", "on the host"]
        words += ["two devices", "pass 9000 elements", "3 blocks"]
        words += [
            "where blocks follow each other, without gaps",
            "1 + 1 + 1: pass an array of 3",
            "a list of arrays on",
        ]
        for text, word in zip(said, words, strict=True):
            assert word in text


def mismatched(context: RankContext) -> None:
    device = device_of(context)
    with Communicator.world(context, deadline_s=20) as comm:
        x = FakeArray.of(device, values(0))
        comm.all_reduce(x, op="sum" if comm.rank else "max")


def test_ranks_that_call_different_things_on_devices_are_told() -> None:
    with pytest.raises(RankFailures, match="must call the same"):
        launch(mismatched, ranks=2, topology="six-cards", how="threads")


def test_arrays_on_a_device_show_nothing_by_themselves() -> None:
    x = FakeArray.of(FakeDevice(1), np.arange(6.0).reshape(2, 3))
    with pytest.raises(TypeError, match=r"get\(\)"):
        np.asarray(x)
    with pytest.raises(IndexError, match="no block 2"):
        x[2]
    assert x[-1].get().tolist() == [3, 4, 5] and "FakeArray(shape=(2, 3)" in repr(x)
