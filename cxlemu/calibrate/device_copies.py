"""Measure a device's copies to and from the pool, through the interface that calls use.

As for cores, each figure is the best of some short rounds.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cxlemu.accelerator.device import ComputeDevice, Queue
from cxlemu.engines.mover import BufferPart
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.plan import DTYPE_NAMES, RedOp
from cxlemu.plan.address import StridedRun

ROUNDS = 5
COPIES = 4  # one after another in a round, so that queueing the next hides behind the last
SMALL_COPIES = 64


@dataclass(frozen=True)
class DeviceCopies:
    """What was measured of a device: bandwidths in GB/s, times in ns."""

    device: str  # what the device calls itself
    to_pool: float  # copies to the pool alone
    from_pool: float  # copies from the pool alone
    both: float  # both at once, in two queues, together
    to_pinned: float  # plain copies to pinned memory of the host, which no copy to the pool is faster than
    from_pinned: float  # plain copies from there
    copy_ns: float  # a copy of one line, in a row of them
    event_ns: float  # from a copy's end until the host knows of it
    local_copy: float  # copies within the device
    reduce: float  # sums of two arrays of f32: the bytes of both operands


def device_copies(device: ComputeDevice, pool: Bytes) -> DeviceCopies:
    """Measure a device's copies, which overwrite the first half of the pool; the pool has two whole lines or more."""
    kept = device.register([pool])
    memory, nbytes = DirectMemory([pool]), pool.nbytes // 2 // LINE_BYTES * LINE_BYTES
    there, here, other = (device.allocate(nbytes) for _ in range(3))
    whole, local = BufferPart(there, 0, nbytes), BufferPart(here, 0, nbytes)
    pinned = BufferPart(device.pinned(nbytes), 0, nbytes)
    out, back = device.queue(), device.queue()

    def publish(count: int = COPIES, size: int = nbytes) -> None:
        for _ in range(count):
            device.publish(out, memory, _run(0, size), whole, non_temporal=False)

    def retrieve() -> None:
        for _ in range(COPIES):
            device.retrieve(back, memory, _run(nbytes, nbytes), local)

    def crosswise() -> None:
        for _ in range(COPIES):
            device.publish(out, memory, _run(0, nbytes), whole, non_temporal=False)
            device.retrieve(back, memory, _run(nbytes, nbytes), local)

    def copy(to: BufferPart, source: BufferPart) -> None:
        for _ in range(COPIES):
            device.copy(out, to, source)

    def sum_two() -> None:
        for _ in range(COPIES):
            device.fold(out, BufferPart(other, 0, nbytes), DTYPE_NAMES.index("f32"), RedOp.SUM, [whole, local], 1)

    def event() -> None:
        ended = device.record(out)
        while not device.happened(ended):
            pass

    def best_ns(work: Callable[[], None]) -> float:
        return min(_took_ns(device, (out, back), work) for _ in range(ROUNDS))

    moved = COPIES * nbytes
    try:
        return DeviceCopies(
            device=device.name,
            to_pool=moved / best_ns(publish),
            from_pool=moved / best_ns(retrieve),
            both=2 * moved / best_ns(crosswise),
            to_pinned=moved / best_ns(lambda: copy(pinned, whole)),
            from_pinned=moved / best_ns(lambda: copy(local, pinned)),
            copy_ns=best_ns(lambda: publish(SMALL_COPIES, LINE_BYTES)) / SMALL_COPIES,
            event_ns=best_ns(event),
            local_copy=moved / best_ns(lambda: copy(local, whole)),
            reduce=2 * moved / best_ns(sum_two),
        )
    finally:
        for queue in (out, back):
            device.synchronize(queue)
        del kept  # until here the device may copy


def _run(offset: int, nbytes: int) -> StridedRun:
    return StridedRun(card=0, card_offset=offset, local_offset=0, block_bytes=nbytes, blocks=1, stride_bytes=nbytes)


def _took_ns(device: ComputeDevice, queues: Sequence[Queue], work: Callable[[], None]) -> int:
    """Return how long it takes until idle queues have done what is queued, in ns."""
    begin = time.perf_counter_ns()
    work()
    for queue in queues:
        device.synchronize(queue)
    return time.perf_counter_ns() - begin
