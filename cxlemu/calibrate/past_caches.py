"""From which size on is an array better stored past the caches? A short measurement, for cxlemu/machine.py.

An array that is larger than the caches is fetched line by line only to be overwritten; a store past the caches saves
that. In a smaller one the stores hit, and whoever reads it next finds it there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import numpy as np

from cxlemu import _native
from cxlemu.calibrate.measure import memory
from cxlemu.machine import NEVER_BYTES
from cxlemu.memory.protocol import Bytes

SIZES = [1 << exponent for exponent in range(20, 27)]
RING_BYTES, PIECE_BYTES = 8 << 20, 1 << 20  # what a call fills an array from
ROUNDS = 6
WORTH = 0.95  # of the time by ordinary stores


def past_caches_bytes(ratio_of: Callable[[int], float] | None = None) -> int:
    """Return the smallest size from which on stores past the caches are faster, at it and all larger ones.

    Args:
        ratio_of: How long it takes to fill an array of so many bytes by stores past the caches, as a share of the time
            by ordinary ones (default: measured).

    Returns:
        A number of bytes; `cxlemu.machine.NEVER_BYTES` where they are not faster at the largest size either.
    """
    if ratio_of is None:
        ring, array = memory(RING_BYTES, None), memory(SIZES[-1], None)
        ratio_of = partial(_ratio, ring, array)
    found = NEVER_BYTES
    for nbytes in reversed(SIZES):
        if ratio_of(nbytes) > WORTH:
            break
        found = nbytes
    return found


def _ratio(ring: Bytes, array: Bytes, nbytes: int) -> float:
    """Fill an array both ways in turn, so that other work on the machine slows both down."""
    best = [np.inf, np.inf]
    for _ in range(ROUNDS):
        for way, store in enumerate((_past, _ordinary)):
            began = time.perf_counter()
            for at in range(0, nbytes, PIECE_BYTES):
                store(array[at : at + PIECE_BYTES], ring[at % RING_BYTES :][:PIECE_BYTES])
            best[way] = min(best[way], time.perf_counter() - began)
    return best[0] / best[1]


def _ordinary(array: Bytes, piece: Bytes) -> None:
    array[:] = piece


def _past(array: Bytes, piece: Bytes) -> None:
    _native.copy_nt(array, 0, piece, 0)
    _native.fence()
