"""CRC32C, from a library that uses the processor's instruction for it."""

from collections.abc import Callable
from functools import cache

import numpy as np

from cxlemu.choices import INTEGRITIES
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes
from cxlemu.suggest import unknown

CHECKSUM_BYTES = 8  # as it travels: a little-endian 64-bit word


def check_integrity(name: str | None) -> None:
    """Accept the name of a checksum that can be computed, or None."""
    if name is None:
        return
    if name not in INTEGRITIES:
        raise ArgumentError(unknown("integrity", name, INTEGRITIES, ", or None"))
    _library()


@cache
def _library() -> Callable[[Bytes], int]:
    try:
        from google_crc32c import value
    except ImportError:
        raise ArgumentError(
            "integrity crc32c needs google-crc32c, which is not installed: pip install 'cxlemu[integrity]'"
        ) from None
    crc32c: Callable[[Bytes], int] = value
    return crc32c


def checksum(data: Bytes) -> Bytes:
    """Return the CRC32C of ``data`` as it travels, 8 bytes. Raises ArgumentError where the library is missing."""
    return np.array([_library()(data)], "<u8").view(np.uint8)
