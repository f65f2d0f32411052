"""A device in this process, for tests where there is none: memory that host code cannot touch, and adversarial queues.

Its memory is mapped twice. The address that the host gets is of a mapping without any right: touching it ends the
process with SIGSEGV, as a device's pointer would. The device's own mapping nobody is given.

Work is done whenever the adversary wants, as a real device may do it: at once or much later, a copy piece by piece, and
bytes are read when their piece is done. Only a queue's order and events bind it. No clock is asked and no thread runs:
the device moves when it is called, so the same seed and the same calls give the same moves.
"""

from __future__ import annotations

import mmap
import os
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, pairwise
from typing import Any, Literal
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from cxlemu.accelerator.device import DeviceBuffer, TileProduct
from cxlemu.engines.mover import BufferPart
from cxlemu.errors import ArgumentError, DeviceError
from cxlemu.memory.protocol import LINE_BYTES, Bytes, HostMemory
from cxlemu.plan import DTYPES, RedOp
from cxlemu.plan.address import StridedRun
from cxlemu.plan.kernels import KERNELS
from cxlemu.plan.reduction import fold

DmaWrites = Literal["cache", "memory"]
PIECES_MAX = 3  # into which a copy falls
EAGERNESS = (0.0, 0.05, 0.3, 0.7, 1.0)  # how likely work is done before anybody waits for it; a seed chooses one
POISON = 0xD7  # fills fresh memory
DLPACK_DEVICE = 12  # DLPack's number of devices that it does not know
_numbers = count()
_devices: WeakValueDictionary[int, FakeDevice] = WeakValueDictionary()


def fake_device(number: int) -> FakeDevice:
    """Return the fake device of this number. Raises DeviceError where there is none, or none any more."""
    if (device := _devices.get(number)) is None:
        raise DeviceError(f"there is no fake device {number}")
    return device


class FakeMemory:
    """One allocation: two mappings of the same pages, of which the host may use neither."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, size = nbytes, max(nbytes, 1)
        fd = os.memfd_create("cxlemu-device")
        try:
            os.ftruncate(fd, size)
            self._guard = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=0)
            self._device = mmap.mmap(fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        finally:
            os.close(fd)
        self.address: int = np.frombuffer(self._guard, np.uint8).ctypes.data  # asks for no byte
        self._bytes = np.frombuffer(self._device, np.uint8)
        self._bytes[:] = POISON

    def of(self, address: int, nbytes: int) -> Bytes:
        """Return the device's view of a part. Only the device asks."""
        offset = address - self.address
        return self._bytes[offset : offset + nbytes]


@dataclass(eq=False)
class FakeEvent:
    queue: FakeQueue  # the queue in which it was recorded
    happened: bool = False  # whether all before it has been done


@dataclass(eq=False)
class _Work:
    """What a queue does next: pieces in the order in which they are done. ``after`` comes first, ``event`` last."""

    pieces: deque[Callable[[], None]] = field(default_factory=deque)
    after: FakeEvent | None = None
    event: FakeEvent | None = None


@dataclass(eq=False)
class FakeQueue:
    todo: deque[_Work] = field(default_factory=deque)

    @property
    def ready(self) -> bool:
        return bool(self.todo) and (self.todo[0].after is None or self.todo[0].after.happened)

    def move(self) -> None:
        """Do one piece of the work whose turn it is."""
        work = self.todo[0]
        if work.pieces:
            work.pieces.popleft()()
        if not work.pieces:
            if work.event is not None:
                work.event.happened = True
            self.todo.popleft()


class FakeDevice:
    """A `ComputeDevice` without hardware, for one rank."""

    def __init__(self, seed: int = 0, *, dma_writes: DmaWrites = "cache", eagerness: float | None = None) -> None:
        """Make a device.

        Args:
            seed: Chooses when work is done. The same seed and the same calls give the same moves.
            dma_writes: Whether copies to the pool end in the host's cache, or go past it: the topology's figure.
            eagerness: The probability of a move at each call, from 0 (work is done when it is waited for) to 1 (at
                once); None: the seed chooses.
        """
        if dma_writes not in ("cache", "memory"):
            raise ArgumentError(f"dma_writes is {dma_writes!r}, expected 'cache' or 'memory'")
        self._rng = random.Random(f"device {seed}")
        self._past_cache = dma_writes == "memory"
        self._eagerness = self._rng.choice(EAGERNESS) if eagerness is None else eagerness
        self._lock = threading.RLock()  # a user's thread and that of asynchronous calls both queue work
        self._queues: list[FakeQueue] = []
        self._memories: WeakValueDictionary[int, FakeMemory] = WeakValueDictionary()
        self.default, self.lent = self.queue(), self.queue()
        self.number = next(_numbers)
        _devices[self.number] = self
        self.seed, self.moves, self.forced = seed, 0, 0

    @property
    def name(self) -> str:
        return f"fake device, seed {self.seed}, writes {'past' if self._past_cache else 'into'} the host's cache"

    # --- memory --------------------------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> DeviceBuffer:
        memory = FakeMemory(nbytes)
        self._memories[id(memory)] = memory
        return DeviceBuffer(memory.address, nbytes, memory)

    def adopt(self, array: NDArray[Any]) -> DeviceBuffer:
        if not array.nbytes:
            return self.allocate(0)
        for memory in list(self._memories.values()):
            whole = DeviceBuffer(memory.address, memory.nbytes, memory)
            if 0 <= (offset := array.ctypes.data - memory.address) <= memory.nbytes - array.nbytes:
                return whole.part(offset, array.nbytes)
        raise DeviceError(f"{self.name} has no memory at {array.ctypes.data:#x}")

    def pinned(self, nbytes: int) -> Bytes:
        return np.full(nbytes, POISON, np.uint8)

    def register(self, cards: Sequence[Bytes]) -> None:
        """Do nothing: this device reaches the pool through its rank's memory."""

    def read(self, part: BufferPart) -> Bytes:
        return _bytes(part).copy()

    def write(self, part: BufferPart, data: Bytes) -> None:
        _bytes(part)[:] = data

    # --- queues --------------------------------------------------------------------------------------------------

    def queue(self) -> FakeQueue:
        self._queues.append(FakeQueue())
        return self._queues[-1]

    def stream_of(self, queue: FakeQueue) -> int:
        return 1 + self._queues.index(queue)

    def queue_of(self, stream: int) -> FakeQueue:
        """Return the queue that other libraries know by this number."""
        return self._queues[stream - 1]

    def publish(
        self, queue: FakeQueue, memory: HostMemory, run: StridedRun, source: BufferPart, *, non_temporal: bool
    ) -> None:
        write = memory.write_nt if non_temporal or self._past_cache else memory.write

        def piece(begin: int, end: int) -> None:
            data = np.ascontiguousarray(run.local(_bytes(source))).reshape(-1)[begin:end]
            write(run.card, run.card_offset + begin, data)

        self._put(queue, _Work(self._pieces(piece, run.nbytes, run.card_offset)))

    def retrieve(self, queue: FakeQueue, memory: HostMemory, run: StridedRun, target: BufferPart) -> None:
        def piece(begin: int, end: int) -> None:
            data = np.empty(end - begin, np.uint8)
            memory.read(run.card, run.card_offset + begin, data)
            at = np.arange(begin, end)
            run.local(_bytes(target))[at // run.block_bytes, at % run.block_bytes] = data

        self._put(queue, _Work(self._pieces(piece, run.nbytes, run.card_offset)))

    def copy(self, queue: FakeQueue, target: BufferPart, source: BufferPart) -> None:
        self._put(queue, _Work(deque([lambda: self.write(target, _bytes(source).copy())])))

    def fold(
        self,
        queue: FakeQueue,
        target: BufferPart,
        dtype: int,
        redop: RedOp,
        sources: Sequence[BufferPart],
        divisor: int,
    ) -> None:
        def piece() -> None:
            self.write(target, fold(dtype, redop, [_bytes(source).copy() for source in sources], divisor))

        self._put(queue, _Work(deque([piece])))

    def multiply(
        self, queue: FakeQueue, target: BufferPart, product: TileProduct, a: BufferPart, b: BufferPart
    ) -> None:
        """Queue NumPy's product: it reads A and B in one piece, and its rows come in others, in any order."""
        c = np.empty(target.nbytes, np.uint8)

        def compute() -> None:
            KERNELS[f"gemm_{product.dtype}"].run(tuple(product[1:]), c, [_bytes(a), _bytes(b)])

        def rows(some: range) -> None:
            tile, got = (_tile(product, data)[some.start : some.stop] for data in (_bytes(target), c))
            tile[:] = got

        cuts = sorted(self._rng.sample(range(1, product.m), min(product.m - 1, self._rng.randrange(PIECES_MAX))))
        pieces = [partial(rows, range(first, end)) for first, end in pairwise([0, *cuts, product.m])]
        self._rng.shuffle(pieces)
        self._put(queue, _Work(deque([compute, *pieces])))

    def record(self, queue: FakeQueue) -> FakeEvent:
        event = FakeEvent(queue)
        self._put(queue, _Work(event=event))
        return event

    def wait(self, queue: FakeQueue, event: FakeEvent) -> None:
        self._put(queue, _Work(after=event))

    def happened(self, event: FakeEvent) -> bool:
        """Do all that has to be done before the event, and perhaps more. The answer is always yes.

        A host that looked and was told to wait would do nothing that it could not have done before it looked.
        """
        with self._lock:
            self._disturb()
            while not event.happened:
                self._move(self._next(event))
                self.forced += 1
        return True

    def synchronize(self, queue: FakeQueue) -> None:
        self.happened(self.record(queue))

    # --- the adversary -------------------------------------------------------------------------------------------

    def _put(self, queue: FakeQueue, work: _Work) -> None:
        with self._lock:
            self._disturb()
            queue.todo.append(work)
            self._disturb()

    def _disturb(self) -> None:
        while self._rng.random() < self._eagerness:
            ready = [queue for queue in self._queues if queue.ready]
            if not ready:
                return
            self._move(self._rng.choice(ready))

    def _next(self, event: FakeEvent) -> FakeQueue:
        """Find the queue that has to move for an event: its own, or one that this one waits for."""
        while not event.queue.ready:
            blocked = event.queue.todo[0].after
            assert blocked is not None, "an event that has not happened has work before it"
            event = blocked
        return event.queue

    def _move(self, queue: FakeQueue) -> None:
        self.moves += 1
        queue.move()

    def _pieces(self, piece: Callable[[int, int], Any], nbytes: int, offset: int) -> deque[Callable[[], None]]:
        """Cut a copy at lines of its card, and shuffle the pieces."""
        lines = range(LINE_BYTES - offset % LINE_BYTES, nbytes, LINE_BYTES)
        cuts = sorted(self._rng.sample(lines, min(len(lines), self._rng.randrange(PIECES_MAX))))
        ends = [0, *cuts, nbytes]
        pieces = [partial(piece, begin, end) for begin, end in pairwise(ends)]
        self._rng.shuffle(pieces)
        return deque(pieces)


def _tile(product: TileProduct, data: Bytes) -> NDArray[Any]:
    """View C's elements, as they lie in rows that are ``ldc`` elements apart."""
    dtype = DTYPES[product.dtype]
    strides = (product.ldc * dtype.itemsize, dtype.itemsize)
    return np.ndarray((product.m, product.n), dtype, data, strides=strides)


def _bytes(part: BufferPart) -> Bytes:
    """Return the device's view of a part of its own memory, or of pinned memory."""
    buffer = part.buffer
    if isinstance(buffer, DeviceBuffer):
        inside = buffer.part(part.offset, part.nbytes)
        memory: FakeMemory = inside.owner
        return memory.of(inside.address, part.nbytes)
    pinned: Bytes = buffer[part.offset : part.offset + part.nbytes]
    return pinned
