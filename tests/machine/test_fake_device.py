"""The fake device: memory that no host code can touch, queues that are as late as they may be, moves that repeat."""

import signal
import subprocess
import sys

import numpy as np
import pytest

from cxlemu.accelerator.device import DeviceBuffer, TileProduct
from cxlemu.accelerator.fake import POISON, FakeDevice
from cxlemu.engines.mover import BufferPart
from cxlemu.errors import ArgumentError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPE_NAMES, RedOp
from cxlemu.plan.address import StridedRun
from tests.helpers.tables import with_rows

TOUCH = """
import ctypes
from cxlemu.accelerator.fake import FakeDevice
buffer = FakeDevice().allocate(100)
{touch}
"""


@pytest.mark.parametrize("touch", ["ctypes.string_at(buffer.address, 1)", "ctypes.memset(buffer.address, 0, 1)"])
def test_the_host_that_touches_a_devices_memory_dies(touch: str) -> None:
    ended = subprocess.run([sys.executable, "-c", TOUCH.format(touch=touch)], capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGSEGV


def whole(buffer: DeviceBuffer) -> BufferPart:
    return BufferPart(buffer, 0, buffer.nbytes)


def filled(device: FakeDevice, *values: int) -> DeviceBuffer:
    buffer = device.allocate(len(values))
    device.write(whole(buffer), np.array(values, np.uint8))
    return buffer


def shows(device: FakeDevice, buffer: DeviceBuffer) -> list[int]:
    return device.read(whole(buffer)).tolist()


def test_work_is_done_no_sooner_than_somebody_waits_for_it_and_then_reads_its_source() -> None:
    device = FakeDevice(eagerness=0)
    source, target, queue = filled(device, 1, 2), device.allocate(2), device.queue()
    device.copy(queue, whole(target), whole(source))
    done = device.record(queue)
    assert shows(device, target) == [POISON, POISON]
    device.write(whole(source), np.array([3, 4], np.uint8))
    assert device.happened(done) and shows(device, target) == [3, 4]


def test_an_eager_device_does_it_at_once() -> None:
    device = FakeDevice(eagerness=1)
    source, target = filled(device, 1, 2), device.allocate(2)
    device.copy(device.queue(), whole(target), whole(source))
    assert shows(device, target) == [1, 2]


def test_queues_are_bound_by_events_alone() -> None:
    device = FakeDevice(eagerness=0)
    first, second, third = filled(device, 1), filled(device, 2), filled(device, 3)
    one, other = device.queue(), device.queue()
    device.copy(one, whole(second), whole(first))
    device.copy(other, whole(third), whole(second))
    device.synchronize(other)
    assert shows(device, third) == [2]  # the other queue overtook

    device.wait(other, device.record(one))
    device.copy(other, whole(third), whole(second))
    device.synchronize(other)
    assert shows(device, third) == [1]


def test_a_fold_is_that_of_the_host() -> None:
    device = FakeDevice()
    a, b = filled(device, 200, 7), filled(device, 100, 1)
    queue = device.queue()
    device.fold(queue, whole(a), DTYPE_NAMES.index("u8"), RedOp.SUM, [whole(a), whole(b)], 2)
    device.synchronize(queue)
    assert shows(device, a) == [22, 4]


def test_a_product_reads_late_and_its_rows_come_in_pieces_and_nothing_else_is_touched() -> None:
    product = TileProduct("f32", m=5, n=3, k=4, lda=4, ldb=7, ldc=6)
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((5, 4)).astype(np.float32), rng.standard_normal((4, 7)).astype(np.float32)
    parts = set()
    for seed in range(12):
        device = FakeDevice(seed, eagerness=0)
        c, left, right = device.allocate(5 * 6 * 4), device.allocate(a.nbytes), device.allocate(b.nbytes)
        queue = device.queue()
        device.write(whole(right), b.view(np.uint8).reshape(-1))
        device.multiply(queue, BufferPart(c, 0, (4 * 6 + 3) * 4), product, whole(left), BufferPart(right, 0, 96 + 12))
        device.write(whole(left), a.view(np.uint8).reshape(-1))  # read when it is done
        moves = device.moves
        device.synchronize(queue)
        parts.add(device.moves - moves)
        got = device.read(whole(c)).view(np.float32).reshape(5, 6)
        assert np.array_equal(got[:, :3], np.matmul(a, b[:, :3]))
        assert (device.read(whole(c)).reshape(5, 24)[:, 12:] == POISON).all()
    assert len(parts) > 1


def published(seed: int, dma_writes: str = "cache", *, flush: bool, fence: bool) -> tuple[Bytes, FakeDevice]:
    """What 4 lines, interleaved with other data in the source, are in the pool after a device has copied them there."""
    cards = [np.zeros(1024, np.uint8)]
    memory = MemorySpec().open(cards, host_cache=HostCache.private(cards), host=0, rank=0)
    device = FakeDevice(seed, dma_writes=dma_writes)  # type: ignore[arg-type]
    source, queue = filled(device, *(k % 251 for k in range(512))), device.queue()
    run = StridedRun(card=0, card_offset=128, local_offset=64, block_bytes=64, blocks=4, stride_bytes=128)
    device.publish(queue, memory, run, whole(source), non_temporal=False)
    device.synchronize(queue)
    if flush:
        memory.flush(0, 128, 256)
    if fence:
        memory.fence()
    return cards[0][128:384], device


WANTED = np.array([(64 + 128 * block + k) % 251 for block in range(4) for k in range(64)], np.uint8)


@with_rows(
    ("cache", True, True, True),
    ("cache", True, False, False),
    ("cache", False, True, False),
    ("memory", False, True, True),
    ("memory", True, False, False),
    ("memory", True, True, True),
)
def test_a_devices_writes_end_in_the_hosts_cache_or_go_past_it(
    dma_writes: str, flush: bool, fence: bool, there: bool
) -> None:
    for seed in range(5):
        pool, _ = published(seed, dma_writes, flush=flush, fence=fence)
        assert np.array_equal(pool, WANTED) == there


def test_copies_come_back_whatever_pieces_they_fall_into() -> None:
    cards = [np.arange(1024, dtype=np.uint16).astype(np.uint8)]
    memory = MemorySpec("shm").open(cards, host_cache=None, host=0, rank=0)
    for seed in range(20):
        device = FakeDevice(seed)
        target, queue = filled(device, *[0] * 700), device.queue()
        run = StridedRun(card=0, card_offset=33, local_offset=5, block_bytes=200, blocks=3, stride_bytes=230)
        device.retrieve(queue, memory, run, whole(target))
        device.synchronize(queue)
        wanted = np.zeros(700, np.uint8)
        run.local(wanted)[:] = cards[0][33:633].reshape(3, 200)
        assert shows(device, target) == wanted.tolist()


def test_a_seed_repeats_all_moves() -> None:
    moves = [published(seed, flush=True, fence=True)[1].moves for seed in (*range(12), *range(12))]
    assert moves[:12] == moves[12:] and len(set(moves)) > 1


def test_a_part_lies_inside_and_a_figure_is_one_of_two() -> None:
    with pytest.raises(ArgumentError, match="not hold 3 bytes at 2"):
        filled(FakeDevice(), 1, 2, 3, 4).part(2, 3)
    with pytest.raises(ArgumentError, match="'past'"):
        FakeDevice(dma_writes="past")  # type: ignore[arg-type]
