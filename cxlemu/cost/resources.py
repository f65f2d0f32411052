"""Resources that a transfer keeps while its bytes pass: engines, links and cards, in the order of requests."""

from typing import NamedTuple

import numpy as np

SERVICE_RATE_FIELDS = ("rate", "message_ns", "flit_bytes", "payload_bytes", "buffer_bytes", "request_bytes")
SERVICE_RATE_DTYPE = np.dtype([(name, "<i8") for name in SERVICE_RATE_FIELDS])


class Resource(NamedTuple):
    """A device that one transfer at a time uses."""

    name: str
    kind: str  # "engine", "link" or "card"
    gbytes_per_s: float | None  # its rate in 10^9 bytes per second; without one it never delays anything
    message_ns: int = 0  # time beyond that of its bytes for which a transfer keeps it, in nanoseconds
    flit_bytes: int = 1  # the size of the flits in which transfers travel, whole ones only
    payload_bytes: int = 1  # how many bytes of a flit carry data
    buffer_bytes: int = 0  # bytes that may queue before it; 0: any number
    # what each flit of data from the pool asks for on the resource before it, which is the link's way to the pool
    request_bytes: int = 0


def bytes_per_ms(gbytes_per_s: float | None) -> int:
    """Convert a rate to that with which the model computes, in bytes per millisecond; None, no delay, becomes 0."""
    return 0 if gbytes_per_s is None else max(round(gbytes_per_s * 10**6), 1)


def duration_ns(nbytes: int, gbytes_per_s: float | None) -> int:
    """Return the nanoseconds, rounded up, for which bytes keep a resource; none where it has no rate (10^9 bytes/s)."""
    rate = bytes_per_ms(gbytes_per_s)
    return -(-nbytes * 10**6 // rate) if rate else 0
