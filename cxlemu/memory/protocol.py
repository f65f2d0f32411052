"""The one narrow seam: what a rank can do to the pool. Every memory, real or emulated, is behind this interface.

Addresses are (card, offset): ``offset`` counts bytes from the start of the card's mapping, and a range
never crosses the end of its card. Ranks on one host share a cache; a HostMemory belongs to one rank, because
fences and non-temporal stores do.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from cxlemu.memory.line import LINE_BYTES as LINE_BYTES

PAYLOAD_BYTES = LINE_BYTES - 8

Bytes = NDArray[np.uint8]


class DoorbellLine(NamedTuple):
    """A doorbell's 64-byte line as it arrived."""

    word: int  # its first 8 bytes, little-endian and unsigned
    payload: bytes  # always PAYLOAD_BYTES long


class HostMemory(Protocol):
    """One rank's view of the pool. The memory model in docs/memory-model.md says what each step promises.

    ``offset`` says where bytes, or a doorbell's line, begin on a card; bytes are uint8. Of ``nbytes``, all lines that
    they touch are flushed or dropped.

    Every method raises ArgumentError for an address outside the cards. On broken hardware, those that load raise its
    FaultError; a host's lock that is not released raises DeadlineError.
    """

    def write(self, card: int, offset: int, data: Bytes) -> None:
        """Store through this host's cache (write-allocate, dirty until written back)."""

    def write_nt(self, card: int, offset: int, data: Bytes) -> None:
        """Store non-temporally: the bytes bypass the cache and are private to this rank until they land.

        They land at ``fence`` at the latest.
        """

    def read(self, card: int, offset: int, out: Bytes) -> None:
        """Load bytes: from the cache where a line is present, however old; else the line is fetched."""

    def flush(self, card: int, offset: int, nbytes: int, *, keep: bool = False) -> None:
        """Post write-backs of the range's dirty lines, and drop its lines; a later ``fence`` completes that.

        Args:
            keep: Keep the lines, clean.
        """

    def fence(self) -> None:
        """Return when everything this rank flushed or wrote non-temporally is in the pool."""

    def invalidate(self, card: int, offset: int, nbytes: int) -> None:
        """Flush, land and drop just these lines, so that later reads fetch. It is not a ``fence`` for other lines."""

    def signal(self, card: int, offset: int, word: int, payload: bytes = b"") -> None:
        """Ring a doorbell: store the payload, then the word, into its line and push that line to the pool.

        It fences nothing that was written before.

        Args:
            word: The new word, from 0 to below 2^64.
            payload: At most PAYLOAD_BYTES bytes.
        """

    def poll(self, card: int, offset: int) -> DoorbellLine:
        """Look at a doorbell once: invalidate its line and load it whole."""
