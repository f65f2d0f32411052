"""The one narrow seam: what a rank can do to the pool. Every memory, real or emulated, is behind it.

Addresses are (card, offset): ``offset`` counts bytes from the start of the card's mapping, and a range
never crosses the end of its card. Ranks on one host share a cache; a HostMemory belongs to one rank, because
fences and non-temporal stores do.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

LINE_BYTES = 64
PAYLOAD_BYTES = LINE_BYTES - 8

Bytes = NDArray[np.uint8]


class DoorbellLine(NamedTuple):
    """A doorbell's 64-byte line as it arrived: its 8-byte word (little-endian, unsigned) and its payload."""

    word: int
    payload: bytes  # always PAYLOAD_BYTES long


class HostMemory(Protocol):
    """One rank's view of the pool. Semantics: the memory model in docs/memory-model.md."""

    def write(self, card: int, offset: int, data: Bytes) -> None:
        """Store ``data`` through this host's cache (write-allocate, dirty until written back)."""

    def write_nt(self, card: int, offset: int, data: Bytes) -> None:
        """Non-temporal store: bypasses the cache, private to this rank until it lands, at ``fence``."""

    def read(self, card: int, offset: int, out: Bytes) -> None:
        """Load ``out.nbytes`` bytes: from the cache where a line is present, however old; else fetched."""

    def flush(self, card: int, offset: int, nbytes: int, *, keep: bool = False) -> None:
        """Post write-backs of the range's dirty lines and drop its lines (``keep`` keeps them)."""

    def fence(self) -> None:
        """Return when everything this rank flushed or wrote non-temporally is in the pool."""

    def invalidate(self, card: int, offset: int, nbytes: int) -> None:
        """Flush, land and drop just these lines: later reads fetch. Not a ``fence`` for others."""

    def signal(self, card: int, offset: int, word: int, payload: bytes = b"") -> None:
        """Store payload (at most PAYLOAD_BYTES) then word into the line at ``offset`` and push that line."""

    def poll(self, card: int, offset: int) -> DoorbellLine:
        """Invalidate the line at ``offset`` and load it whole."""
