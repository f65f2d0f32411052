"""A real card as this host maps it: ordinary loads and stores, and the processor's own cache-line instructions."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cxlemu import _native
from cxlemu.errors import ArgumentError
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes, DoorbellLine
from cxlemu.memory.ranges import check_bytes, check_range


class DaxMemory(DirectMemory):
    """One rank's view of a mapped device, a `HostMemory`. Addresses outside the cards raise ArgumentError.

    ``write_nt`` stores whole lines non-temporally; lines that are overwritten in part are fetched afresh, and flushed.
    """

    def __init__(self, cards: Sequence[Bytes], *, writable: bool = True) -> None:
        """Use the cards (uint8, one size, whole lines) as this host maps them; ``writable`` refuses read-only ones."""
        super().__init__(cards, writable=writable)
        if not _native.lines_instructions():
            raise ArgumentError(
                "the cache-line instructions of this machine are not known: dax runs on x86-64 and arm64"
            )

    def write_nt(self, card: int, offset: int, data: Bytes) -> None:
        check_bytes(data)
        check_range(self._cards, card, offset, data.size)
        end = offset + data.size
        for edge in {offset, end}:
            if edge % LINE_BYTES and data.size:
                _native.invalidate(self._cards[card], edge - edge % LINE_BYTES, LINE_BYTES)
        _native.copy_nt(self._cards[card], offset, np.ascontiguousarray(data), 0)

    def flush(self, card: int, offset: int, nbytes: int, *, keep: bool = False) -> None:
        check_range(self._cards, card, offset, nbytes)
        _native.flush(self._cards[card], offset, nbytes, keep)

    def clear(self, base: int, extents: NDArray[np.int64], *, flushes: bool = True) -> None:
        super().clear(base, extents, flushes=flushes)

    def fence(self) -> None:
        _native.fence()

    def invalidate(self, card: int, offset: int, nbytes: int) -> None:
        check_range(self._cards, card, offset, nbytes)
        _native.invalidate(self._cards[card], offset, nbytes)

    def signal(self, card: int, offset: int, word: int, payload: bytes = b"") -> None:
        super().signal(card, offset, word, payload)
        _native.flush(self._cards[card], offset, LINE_BYTES, False)

    def poll(self, card: int, offset: int) -> DoorbellLine:
        self.invalidate(card, offset, LINE_BYTES)
        return super().poll(card, offset)
