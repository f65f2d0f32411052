"""From which size on is an array better stored past the caches? A short measurement, for cxlemu/machine.py.

An array that is larger than the caches is fetched line by line only to be overwritten; a store past the caches saves
that. In a smaller one the stores hit, and whoever reads it next finds it there.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
THREADS_MAX = 4  # that fill an array each, as ranks do, which share caches and memory
GATE_S = 60.0
Span = tuple[float, float]


def needed_bytes() -> int:
    """Return how much memory the measurement takes: a source, and an array for each thread."""
    return (1 + _threads()) * SIZES[-1]


def past_caches_bytes(ratio_of: Callable[[int], float] | None = None) -> int:
    """Return the size from which on stores past the caches save most: one size that other work slowed down is outvoted.

    Args:
        ratio_of: How long it takes to fill an array of this many bytes by stores past the caches, as a share of the
            time by ordinary ones (default: measured).

    Returns:
        A number of bytes; `cxlemu.machine.NEVER_BYTES` where they save nothing from any size on.
    """
    if ratio_of is None:
        threads = _threads()
        source, arrays = memory(SIZES[-1], None), [memory(SIZES[-1], None) for _ in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            return past_caches_bytes(lambda nbytes: _ratio(pool, source, arrays, nbytes))
    found, cost, least_cost = NEVER_BYTES, 0.0, 0.0
    for nbytes in reversed(SIZES):
        cost += math.log(ratio_of(nbytes))
        if cost < least_cost:
            found, least_cost = nbytes, cost
    return found


def _threads() -> int:
    return min(len(os.sched_getaffinity(0)), THREADS_MAX)


def _ratio(pool: ThreadPoolExecutor, source: Bytes, arrays: list[Bytes], nbytes: int) -> float:
    """Fill the first bytes of arrays both ways in turn, so that other work on the machine slows both down."""
    best = [np.inf, np.inf]
    for _ in range(ROUNDS):
        for way, fill in enumerate((_past, _ordinary)):
            gate = threading.Barrier(len(arrays))
            spans = list(pool.map(partial(_fill, fill, gate, source[:nbytes]), [array[:nbytes] for array in arrays]))
            best[way] = min(best[way], max(end for _, end in spans) - min(begin for begin, _ in spans))
    return best[0] / best[1]


def _fill(fill: Callable[[Bytes, Bytes], None], gate: threading.Barrier, source: Bytes, array: Bytes) -> Span:
    """Fill an array while others do, and return from when to when, in seconds.

    The first fill is not timed: stores past the caches throw the array out of them, and the first ordinary fill after
    them would fetch what later ones find there.
    """
    fill(array, source)
    gate.wait(GATE_S)
    began = time.perf_counter()
    for _ in range(max(1, ROUND_BYTES // array.nbytes)):
        fill(array, source)
    return began, time.perf_counter()


def _ordinary(array: Bytes, source: Bytes) -> None:
    for at in range(0, array.nbytes, PIECE_BYTES):
        _native.copy(array[at : at + PIECE_BYTES], 0, source[at : at + PIECE_BYTES], False)


def _past(array: Bytes, source: Bytes) -> None:
    for at in range(0, array.nbytes, PIECE_BYTES):
        _native.copy_nt(array[at : at + PIECE_BYTES], 0, source[at : at + PIECE_BYTES], 0)
    _native.fence()
