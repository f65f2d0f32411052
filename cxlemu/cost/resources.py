"""What is kept while bytes pass: engines, links and cards, in the order of requests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SERVICE_RATE_FIELDS = ("rate", "message_ns", "flit_bytes", "payload_bytes")
SERVICE_RATE_DTYPE = np.dtype([(name, "<i8") for name in SERVICE_RATE_FIELDS])


class Resource(NamedTuple):
    """What one transfer at a time uses: an "engine", a "link" or a "card" (``kind``).

    Without ``gbytes_per_s`` it never delays anything. Each transfer keeps it ``message_ns`` longer than its bytes take,
    and travels in whole flits of ``flit_bytes``, of which ``payload_bytes`` carry data.
    """

    name: str
    kind: str
    gbytes_per_s: float | None
    message_ns: int = 0
    flit_bytes: int = 1
    payload_bytes: int = 1

    def kept_ns(self, nbytes: int) -> int:
        """How long a transfer of ``nbytes`` keeps it, in nanoseconds."""
        if self.gbytes_per_s is None:
            return 0
        flits = -(-nbytes // self.payload_bytes)
        return self.message_ns + duration_ns(flits * self.flit_bytes, self.gbytes_per_s)


def bytes_per_ms(gbytes_per_s: float | None) -> int:
    """A rate as the model computes with it, in bytes per millisecond; 0 where nothing takes time."""
    return 0 if gbytes_per_s is None else max(round(gbytes_per_s * 10**6), 1)


def duration_ns(nbytes: int, gbytes_per_s: float | None) -> int:
    """How long a resource is kept: rounded up to whole nanoseconds."""
    rate = bytes_per_ms(gbytes_per_s)
    return -(-nbytes * 10**6 // rate) if rate else 0
