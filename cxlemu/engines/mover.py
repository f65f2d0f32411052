"""Movers, which move bytes between a rank's buffers and the pool: one Mover for each kind of buffer.

The reference engine decides what moves where; its mover decides how, and by whose stores. A rank's buffers are all of
one kind: NumPy arrays on the host, or memory of a device that nothing but the device's mover touches. A new kind is one
class with the methods of `Mover`, given to the engine: ``ReferenceEngine(memory, mover=MyMover())``. The native engine
moves the host's buffers alone. Devices that work in queues, late, run plans of their own: see ``cxlemu.accelerator``.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.plan.address import StridedRun
from cxlemu.plan.instructions import RedOp
from cxlemu.plan.reduction import fold

Buffer = Any  # of the mover's kind; only the mover looks inside


class BufferPart(NamedTuple):
    """Bytes [offset, offset + nbytes) of a buffer of a mover's kind."""

    buffer: Buffer
    offset: int
    nbytes: int


class Mover(Protocol):
    """Moves bytes of one kind of buffer, for one rank.

    ``memory`` is that rank's view of the pool, and ``run`` says which bytes of a whole transfer lie where on which
    card: contiguous there, strided in the buffer. A mover whose device reaches the pool by itself may leave it alone,
    and then keeps its promises: after ``flush`` of a range and a ``fence``, what the rank stored there is in the pool,
    and after ``flush`` with ``drop`` its loads fetch the range afresh. Doorbells are rung and looked at by the host,
    after the instructions before them have returned; a mover that works in the background therefore has all stores of
    which a fence was asked behind it when ``fence`` returns, and everything it does to buffers in the order of the
    calls.
    """

    def nbytes(self, buffer: Buffer) -> int:
        """Return how many bytes a buffer has."""

    def temporary(self, nbytes: int) -> BufferPart:
        """Make a new buffer of this kind with ``nbytes`` bytes of any value, and return all of it."""

    def get(self, part: BufferPart) -> Bytes:
        """Give the host the part's bytes, as a 1-D uint8 array: a view or a copy, which the caller does not write."""

    def put(self, part: BufferPart, data: Bytes) -> None:
        """Store bytes of the host, 1-D uint8 of ``part.nbytes`` bytes, into a part."""

    def store(self, memory: HostMemory, run: StridedRun, source: BufferPart, *, non_temporal: bool) -> None:
        """Store the run's bytes of ``source`` to the pool, at once or until the next flush and fence.

        ``non_temporal``: past this host's cache, so that a fence alone lands the bytes.
        """

    def load(self, memory: HostMemory, run: StridedRun, target: BufferPart) -> None:
        """Load the run's bytes of ``target`` from the pool. They are there on return."""

    def copy(self, target: BufferPart, source: BufferPart) -> None:
        """Copy a part to another one of the same size; where both overlap, as if through a third."""

    def fold(self, target: BufferPart, dtype: int, redop: RedOp, sources: Sequence[BufferPart], divisor: int) -> None:
        """Fold the sources element by element, from left to right, and divide by ``divisor``, 1 for nothing.

        The result is that of `cxlemu.plan.reduction.fold`, bit by bit; ``dtype`` is an index of ``DTYPE_NAMES``, and
        ``target`` may be one of the sources, which have its size.
        """

    def flush(self, memory: HostMemory, card: int, offset: int, nbytes: int, *, drop: bool) -> None:
        """Write a range's lines back to the pool; with ``drop``, later loads fetch them (INVALIDATE)."""

    def fence(self, memory: HostMemory) -> None:
        """Return when everything that this rank stored and flushed is in the pool."""


class HostMover:
    """The `Mover` of NumPy arrays, 1-D uint8, by the host's own loads and stores. Stateless: one serves all ranks."""

    def nbytes(self, buffer: Bytes) -> int:
        return buffer.nbytes

    def temporary(self, nbytes: int) -> BufferPart:
        return BufferPart(np.empty(nbytes, np.uint8), 0, nbytes)

    def get(self, part: BufferPart) -> Bytes:
        """Return a view of the part's bytes, so that what is stored to it is in the buffer."""
        data: Bytes = part.buffer[part.offset : part.offset + part.nbytes]
        return data

    def put(self, part: BufferPart, data: Bytes) -> None:
        self.get(part)[:] = data

    def store(self, memory: HostMemory, run: StridedRun, source: BufferPart, *, non_temporal: bool) -> None:
        write = memory.write_nt if non_temporal else memory.write
        write(run.card, run.card_offset, np.ascontiguousarray(run.local(self.get(source))).reshape(-1))

    def load(self, memory: HostMemory, run: StridedRun, target: BufferPart) -> None:
        local = run.local(self.get(target))
        if run.blocks == 1:
            memory.read(run.card, run.card_offset, local[0])
        else:
            piece = np.empty(run.nbytes, np.uint8)
            memory.read(run.card, run.card_offset, piece)
            local[:] = piece.reshape(local.shape)

    def copy(self, target: BufferPart, source: BufferPart) -> None:
        self.put(target, self.get(source))

    def fold(self, target: BufferPart, dtype: int, redop: RedOp, sources: Sequence[BufferPart], divisor: int) -> None:
        self.put(target, fold(dtype, redop, [self.get(source) for source in sources], divisor))

    def flush(self, memory: HostMemory, card: int, offset: int, nbytes: int, *, drop: bool) -> None:
        (memory.invalidate if drop else memory.flush)(card, offset, nbytes)

    def fence(self, memory: HostMemory) -> None:
        memory.fence()


HOST_MOVER = HostMover()
