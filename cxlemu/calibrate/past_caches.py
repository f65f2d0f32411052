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
PIECE_BYTES = 1 << 19  # what a call copies in one go
ROUND_BYTES = 8 << 20  # a round fills a small array more than once
ROUNDS = 5
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
        source, array = memory(SIZES[-1], None), memory(SIZES[-1], None)
        ratio_of = partial(_ratio, source, array)
    found = NEVER_BYTES
    for nbytes in reversed(SIZES):
        if ratio_of(nbytes) > WORTH:
            break
        found = nbytes
    return found


def _ratio(source: Bytes, array: Bytes, nbytes: int) -> float:
    """Fill an array both ways in turn, so that other work on the machine slows both down.

    The first fill of a turn is not timed: stores past the caches throw the array out of them, and after them the first
    ordinary fill would fetch what it finds there from then on.
    """
    best = [np.inf, np.inf]
    for _ in range(ROUNDS):
        for way, fill in enumerate((_past, _ordinary)):
            fill(array, source, nbytes)
            began = time.perf_counter()
            for _ in range(max(1, ROUND_BYTES // nbytes)):
                fill(array, source, nbytes)
            best[way] = min(best[way], time.perf_counter() - began)
    return best[0] / best[1]


def _ordinary(array: Bytes, source: Bytes, nbytes: int) -> None:
    for at in range(0, nbytes, PIECE_BYTES):
        _native.copy(array[at : at + PIECE_BYTES], 0, source[at : at + PIECE_BYTES], False)


def _past(array: Bytes, source: Bytes, nbytes: int) -> None:
    for at in range(0, nbytes, PIECE_BYTES):
        _native.copy_nt(array[at : at + PIECE_BYTES], 0, source[at : at + PIECE_BYTES], 0)
    _native.fence()
