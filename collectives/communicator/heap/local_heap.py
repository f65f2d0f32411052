"""Arrays in the pool that a rank makes alone, as `comm.heap.local`: a caching allocator on the far end of its strip.

Places are given from the strip's end downwards, on demand; arrays of all ranks (heap.py) begin at its other end. Freed
blocks wait in a list for each size; when the rest of the strip is used up, they all go back to it. No place depends on
anything but the sizes that were asked for and the order of making and freeing: ranks that do the same have the same
places.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections import defaultdict, deque
from typing import Any, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from cxlemu.capacity.first_fit import FirstFit
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.rounding import round_up
from cxlemu.unshared import Unshared

STEPS = 4  # sizes to each doubling: a block is at most a fourth larger than what was asked for


def size_class(nbytes: int) -> int:
    """Return how many bytes a block for ``nbytes`` has: whole lines, of one of four sizes to each doubling."""
    nbytes = max(nbytes, 1)
    doubling = 1 << max((nbytes - 1).bit_length() - 1, 0)
    step = max(doubling, STEPS * LINE_BYTES) // STEPS
    return round_up(nbytes, step)


class LocalBlocks:
    """Gives blocks of a strip from its end on, and keeps those that were freed for the next of their size."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.lock = threading.Lock()
        self.dropped: deque[tuple[int, int]] = deque()
        self._room = FirstFit(nbytes)  # counted from the end: 0 is the strip's last byte
        self._cached: defaultdict[int, list[int]] = defaultdict(list)  # places by size

    def take(self, nbytes: int, lowest: int) -> int | None:
        """Take a block of `size_class` bytes from ``lowest`` on, with the lock held; return its first byte, or None."""
        self._collect()
        if cached := self._cached.get(nbytes):
            return cached.pop()
        offset = self._carve(nbytes, lowest)
        if offset is None:
            gc.collect()  # arrays in cycles
            self.trim()
            offset = self._carve(nbytes, lowest)
        return offset

    def trim(self) -> None:
        """Give all freed blocks that are kept back to the rest of the strip, with the lock held."""
        self._collect()
        for nbytes, places in self._cached.items():
            for offset in places:
                self._room.give_back(self.nbytes - offset - nbytes, nbytes)
        self._cached.clear()

    @property
    def floor(self) -> int:
        """Where the lowest block begins that is taken or kept: everything below is free."""
        holes = self._room.holes
        return self.nbytes - (holes[-1][0] if holes and holes[-1][1] == self.nbytes else self.nbytes)

    def _collect(self) -> None:
        while self.dropped:
            offset, nbytes = self.dropped.popleft()
            self._cached[nbytes].append(offset)

    def _carve(self, nbytes: int, lowest: int) -> int | None:
        begin = self._room.take(nbytes)
        if begin is None:
            return None
        offset = self.nbytes - begin - nbytes
        if offset < lowest:  # the hole nearest to the end; all others are lower
            self._room.give_back(begin, nbytes)
            return None
        return offset


class MakesAlone(Protocol):
    """The communicator's heap, as far as arrays of one rank need it."""

    def alone(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """Make an array."""

    def trim_alone(self) -> int:
        """Give memory back."""


class LocalHeap(Unshared):
    """Makes arrays in the pool that this rank alone knows of; any thread may, at any time."""

    def __init__(self, heap: MakesAlone) -> None:
        self._of = weakref.ref(heap)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
        """Make an array in the pool without the other ranks, as np.empty does. Not collective."""
        return self._heap().alone(shape, dtype)

    def trim(self) -> int:
        """Give back memory kept for arrays to come, as far as no array lies behind it; return its bytes. For one
        rank."""
        return self._heap().trim_alone()

    def __repr__(self) -> str:
        return f"<LocalHeap of {self._of() or 'a heap that is gone'}>"

    def _heap(self) -> MakesAlone:
        heap = self._of()
        if heap is None:
            raise ArgumentError("the communicator of this heap is gone: make arrays while it is open")
        return heap
