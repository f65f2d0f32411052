"""The interface of a device: memory, queues that work in order and late, events, copies from and to the pool, sums.

`cxlemu.accelerator.runner` runs plans through it; all that a kind of device adds is one class with these methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cxlemu.engines.mover import BufferPart
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.plan import RedOp
from cxlemu.plan.address import StridedRun

Queue = Any  # of the device's kind; only the device looks inside
Event = Any


@dataclass(frozen=True)
class DeviceBuffer:
    """Memory of a device. Nothing but the device touches it."""

    address: int  # where it begins, as the device counts
    nbytes: int
    owner: Any  # what keeps the memory, which only the device looks into

    def part(self, offset: int, nbytes: int) -> DeviceBuffer:
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise ArgumentError(f"a device buffer of {self.nbytes} bytes does not hold {nbytes} bytes at {offset}")
        return replace(self, address=self.address + offset, nbytes=nbytes)


class TileProduct(NamedTuple):
    """One tile C = A @ B, row-major, as the kernels gemm_* have it: A is m x k, B is k x n.

    ``lda``, ``ldb`` and ``ldc`` are how many elements rows are apart.
    """

    dtype: str
    m: int
    n: int
    k: int
    lda: int
    ldb: int
    ldc: int


class ComputeDevice(Protocol):
    """A device of one rank.

    A queue does its work in order, each piece at some time after it was queued, and reads sources at that time. Two
    queues know nothing of each other but by events. Parts are of DeviceBuffers, or of pinned arrays of the host.
    """

    @property
    def name(self) -> str:
        """What reports call the device."""

    def allocate(self, nbytes: int) -> DeviceBuffer:
        """Allocate memory of the device, of any value."""

    def adopt(self, array: NDArray[Any]) -> DeviceBuffer:
        """Return memory that another library allocated: a C-contiguous array, shown by its address, which keeps it.

        Raises DeviceError where the device does not know it.
        """

    def pinned(self, nbytes: int) -> Bytes:
        """Allocate memory of the host, 1-D uint8, which the device reaches."""

    def register(self, cards: Sequence[Bytes]) -> object:
        """Make the pool's cards, as this host maps them, reachable for the device while what this returns is kept.

        Raises DeviceError where they cannot be registered.
        """

    def queue(self) -> Queue:
        """Make a queue."""

    def stream_of(self, queue: Queue) -> int:
        """Return the number by which other libraries know a queue: DLPack's stream."""

    @property
    def lent(self) -> Queue:
        """The queue in which arrays are used that other libraries lend."""

    def publish(
        self, queue: Queue, memory: HostMemory, run: StridedRun, source: BufferPart, *, non_temporal: bool
    ) -> None:
        """Queue a copy of the run's bytes of ``source``, a whole transfer, to the pool.

        ``memory`` is for a device that reaches the pool no other way; ``non_temporal``: past the host's cache.
        """

    def retrieve(self, queue: Queue, memory: HostMemory, run: StridedRun, target: BufferPart) -> None:
        """Queue a copy from the pool; arguments as of `publish`."""

    def copy(self, queue: Queue, target: BufferPart, source: BufferPart) -> None:
        """Queue a copy within the device, or between it and pinned memory."""

    def fold(
        self, queue: Queue, target: BufferPart, dtype: int, redop: RedOp, sources: Sequence[BufferPart], divisor: int
    ) -> None:
        """Queue a fold, as `cxlemu.plan.reduction.fold` defines it, bit by bit."""

    def multiply(self, queue: Queue, target: BufferPart, product: TileProduct, a: BufferPart, b: BufferPart) -> None:
        """Queue a product of matrices, in the precision of `cxlemu.plan.kernels`; each device rounds in its own way."""

    def record(self, queue: Queue) -> Event:
        """Return an event that happens when all that was queued before has been done."""

    def wait(self, queue: Queue, event: Event) -> None:
        """Let what is queued from now on wait for an event that was recorded already."""

    def happened(self, event: Event) -> bool:
        """Look whether an event has happened; does not wait. Raises DeviceError where queued work failed."""

    def synchronize(self, queue: Queue) -> None:
        """Wait until all that was queued has been done. Raises as `happened`."""

    def read(self, part: BufferPart) -> Bytes:
        """Return a copy of a part's bytes, for the host; waits for nothing that is queued."""

    def write(self, part: BufferPart, data: Bytes) -> None:
        """Store bytes of the host in a part; waits for nothing that is queued."""


class Kin(Protocol):
    def like(self, shape: tuple[int, ...]) -> Any:
        """Make an array of this shape, of the same kind and dtype, on the same device."""


@dataclass(frozen=True)
class DeviceView:
    """What a call has to know of an array on a device."""

    device: ComputeDevice
    buffer: DeviceBuffer  # the array's bytes, C-contiguous
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    # the device's queue in which its user works on it: a call comes after what is queued there, and before what is
    # queued there later
    queue: Queue
    kin: Kin  # makes arrays like it
    writeable: bool = True  # whether results may be stored to it
    # lets the queue come after what the array's user has queued by now; None: its user works in the queue
    lend: Callable[[], object] | None = None


def come_after(views: Iterable[DeviceView]) -> None:
    """Let each array's queue come after what its user has queued, before anything of a call is queued there."""
    for view in views:
        if view.lend is not None:
            view.lend()


def hand_back(views: Iterable[DeviceView]) -> None:
    """Wait for a call on arrays whose users work in queues that nobody here knows; those of others need not wait."""
    for view in views:
        if view.lend is not None:
            view.device.synchronize(view.queue)
