"""Arrays in the pool that a rank makes alone, as `comm.heap.local`."""

from __future__ import annotations

import weakref
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from collectives.communicator.arrays import Array
from cxlemu.errors import ArgumentError


class MakesAlone(Protocol):
    """The communicator's heap, as far as arrays of one rank need it."""

    def alone(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        """Make an array."""

    def trim_alone(self) -> int:
        """Give memory back."""


class LocalHeap:
    """Makes arrays in the pool that this rank alone knows of; any thread may, at any time."""

    def __init__(self, heap: MakesAlone) -> None:
        self._of = weakref.ref(heap)

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> Array:
        """Make an array in the pool without the other ranks, as np.empty does. Not collective."""
        return self._heap().alone(shape, dtype)

    def trim(self) -> int:
        """Give back memory kept for arrays to come, as far as no array lies behind it; return its bytes. For one
        rank."""
        return self._heap().trim_alone()

    def _heap(self) -> MakesAlone:
        heap = self._of()
        if heap is None:
            raise ArgumentError("the communicator of this heap is gone: make arrays while it is open")
        return heap
