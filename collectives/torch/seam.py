"""What the communicator does not have yet, made of what it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives.communicator.arrays import Array
from collectives.communicator.communicator import Communicator


class Seam:
    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)

    def reduce_scatterv(self, x: Array, op: str, out: Array, counts: Sequence[int]) -> None:
        total = x.copy()
        self._comm.all_reduce(total, op)
        at = sum(counts[: self._comm.rank])
        out[:] = total[at : at + counts[self._comm.rank]]

    def all_reduce_many(self, arrays: list[Array], op: str = "sum") -> None:
        for array in arrays:
            self._comm.all_reduce(array, op)

    def all_gatherv(self, x: Array, out: Array, counts: Sequence[int]) -> None:
        longest = max(counts)
        padded = np.zeros(longest, x.dtype)
        padded[: x.size] = x
        every = np.empty((self._comm.size, longest), x.dtype)
        self._comm.all_gather(padded, every.reshape(-1))
        at = 0
        for row, count in zip(every, counts, strict=True):
            out[at : at + count] = row[:count]
            at += count

    def all_to_allv(self, x: Array, out: Array, sent: Sequence[int], received: Sequence[int]) -> None:
        size = self._comm.size
        counts = np.array(sent, np.int64)
        theirs = np.empty(size, np.int64)
        self._comm.all_to_all(counts, theirs)
        if theirs.tolist() != list(received):
            raise ValueError(
                f"cxl: all_to_all: the others send {theirs.tolist()} elements, this rank expects {list(received)}"
            )
        longest = int(self._comm.all_reduce(np.array([max(*sent, *received, 0)], np.int64), "max")[0])
        if not longest:
            return
        padded, came = np.zeros((size, longest), x.dtype), np.empty((size, longest), x.dtype)
        at = 0
        for row, count in zip(padded, sent, strict=True):
            row[:count] = x[at : at + count]
            at += count
        self._comm.all_to_all(padded.reshape(-1), came.reshape(-1))
        at = 0
        for row, count in zip(came, received, strict=True):
            out[at : at + count] = row[:count]
            at += count
