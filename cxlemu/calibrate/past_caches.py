"""From which size on is an array better stored past the caches? A short measurement, for cxlemu/machine.py.

An array that is larger than the caches is fetched line by line only to be overwritten; a store past the caches saves
that. In a smaller one the stores hit, and whoever reads it next finds it there.

The figure is kept, so only rounds count in which this process had its cores for itself: where other work takes them all
the time, there is no figure.
"""

import math
import os
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from cxlemu import _native
from cxlemu.calibrate.measure import memory
from cxlemu.machine import NEVER_BYTES
from cxlemu.memory.protocol import Bytes

SIZES = [1 << exponent for exponent in range(20, 27)]
PIECE_BYTES = 1 << 19  # what a call copies in one go
ROUND_BYTES = 32 << 20  # a round fills a small array more than once
ROUNDS = 5
ROUNDS_MAX = 16  # with those that other work disturbed
USUAL_WAY, PAST_CACHES_WAY = 0, 2  # of _native.copy
TOGETHER = 0.8  # of a round: each thread fills for so long at least
ELSEWHERE = 16  # the source lies in its lines: as a large NumPy array and a place in the pool do to each other
THREADS_MAX = 4  # that fill an array each, as ranks do, which share caches and memory
GATE_S = 60.0


class Fill(NamedTuple):
    """When a thread began and ended to fill its array, in seconds, and how often another took its core meanwhile."""

    began: float
    ended: float
    interruptions: int


def needed_bytes() -> int:
    """Return how much memory the measurement takes: a source, and an array for each thread."""
    return (1 + _threads()) * SIZES[-1]


def past_caches_bytes(ratio_of: Callable[[int], float | None] | None = None) -> int | None:
    """Return the bytes from which stores past the caches save most: NEVER_BYTES if none do, None on a busy machine."""
    if ratio_of is None:
        threads = _threads()
        source = memory(SIZES[-1] + ELSEWHERE, None)[ELSEWHERE:]
        arrays = [memory(SIZES[-1], None) for _ in range(threads)]
        with ThreadPoolExecutor(threads) as pool:
            return past_caches_bytes(lambda nbytes: _ratio(pool, source, arrays, nbytes))
    least, cost, least_cost = NEVER_BYTES, 0.0, 0.0
    for nbytes in reversed(SIZES):
        if (ratio := ratio_of(nbytes)) is None:
            return None
        cost += math.log(ratio)
        if cost < least_cost:
            least, least_cost = nbytes, cost
    return least


def _threads() -> int:
    return min(len(os.sched_getaffinity(0)), THREADS_MAX)


def _ratio(pool: ThreadPoolExecutor, source: Bytes, arrays: list[Bytes], nbytes: int) -> float | None:
    """Fill the first bytes of arrays both ways in turn, so that other work on the machine slows both down."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(ROUNDS_MAX):
        for fill, taken in zip((_past, _ordinary), times, strict=True):
            gate = threading.Barrier(len(arrays))
            fills = list(pool.map(partial(_fill, fill, gate, source[:nbytes]), [array[:nbytes] for array in arrays]))
            taken.extend(undisturbed_s(fills))
        if min(map(len, times)) >= ROUNDS:
            return min(times[0]) / min(times[1])
    return None


def undisturbed_s(fills: list[Fill]) -> list[float]:
    """Return how long a round took, in a list; an empty one where a thread had to wait for its core."""
    took_s = max(fill.ended for fill in fills) - min(fill.began for fill in fills)
    together = all(fill.ended - fill.began >= TOGETHER * took_s for fill in fills)
    return [took_s] if together and not any(fill.interruptions for fill in fills) else []


def _fill(fill: Callable[[Bytes, Bytes], None], gate: threading.Barrier, source: Bytes, array: Bytes) -> Fill:
    """Fill an array while others do.

    The first fill is not timed: stores past the caches throw the array out of them, and the first ordinary fill after
    them would fetch what later ones find there.
    """
    fill(array, source)
    gate.wait(GATE_S)
    interrupted = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    began = time.perf_counter()
    for _ in range(max(1, ROUND_BYTES // array.nbytes)):
        fill(array, source)
    ended = time.perf_counter()
    return Fill(began, ended, resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw - interrupted)


def _ordinary(array: Bytes, source: Bytes) -> None:
    _copy(array, source, USUAL_WAY)


def _past(array: Bytes, source: Bytes) -> None:
    _copy(array, source, PAST_CACHES_WAY)
    _native.fence()


def _copy(array: Bytes, source: Bytes, way: int) -> None:
    for begin in range(0, array.nbytes, PIECE_BYTES):
        _native.copy(array[begin : begin + PIECE_BYTES], 0, source[begin : begin + PIECE_BYTES], way)
