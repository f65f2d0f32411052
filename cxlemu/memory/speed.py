"""How fast an emulated host's cache in C is, as a fraction of memcpy: ``python -m cxlemu.memory.speed``.

Every step of a round is timed right after the one before it, so that other load on the machine meets all of them; the
fractions are of medians.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from statistics import median

import numpy as np

from cxlemu import _native
from cxlemu.memory.adversary import DEFAULT_RATES, Adversary
from cxlemu.memory.cache import HostCache
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes

SIZES = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
_ROUND_BYTES = 1 << 26  # moved by each step in all of its rounds, at least
_PAGE_BYTES = 4096


def fractions_of_memcpy(nbytes: int) -> dict[str, float]:
    """Of each step, the time of a memcpy of ``nbytes`` divided by the step's time."""
    card = _lines(nbytes, 0)
    cache = HostCache.private([card])
    adversary = Adversary(1, DEFAULT_RATES, host=0, rank=0, card_lines=nbytes // LINE_BYTES)
    calm, disturbed = NativeShadowMemory(cache).shadow, NativeShadowMemory(cache, adversary).shadow
    # Not at the same place in their pages, or loads wait for stores that they only seem to depend on.
    given, copied, out = (_lines(nbytes, place) for place in (1, 20, 40))

    def write_and_flush(memory: _native.Shadow, *, fused: bool) -> None:
        memory.write(0, 0, given, fused)
        memory.flush(0, 0, nbytes, False)

    def invalidate_and_read(memory: _native.Shadow) -> None:
        memory.invalidate(0, 0, nbytes)
        memory.read(0, 0, out)

    steps: dict[str, Callable[[], object]] = {
        "memcpy": lambda: ctypes.memmove(copied.ctypes.data, given.ctypes.data, nbytes),
        "write": lambda: calm.write(0, 0, given, False),
        "write, flush": lambda: write_and_flush(calm, fused=False),
        "fence": lambda: calm.fence(),
        "write and flush in one": lambda: write_and_flush(calm, fused=True),
        "fence, again": lambda: calm.fence(),
        "invalidate, read": lambda: invalidate_and_read(calm),
        "read what is there": lambda: calm.read(0, 0, out),
        "write, flush, disturbed": lambda: write_and_flush(disturbed, fused=True),
        "fence, disturbed": lambda: disturbed.fence(),
        "invalidate, read, disturbed": lambda: invalidate_and_read(disturbed),
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(max(_ROUND_BYTES // nbytes, 7) + 1):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            if number:  # the first round makes pages
                times[name].append(time.perf_counter() - start)
    memcpy = median(times["memcpy"])
    return {name: memcpy / median(taken) for name, taken in times.items()}


def _lines(nbytes: int, place: int) -> Bytes:
    """Pages that are there, and ``nbytes`` of them from a line of the first page on."""
    pages = np.ones(nbytes + 2 * _PAGE_BYTES, np.uint8)
    begin = -pages.ctypes.data % _PAGE_BYTES + place * LINE_BYTES
    return pages[begin : begin + nbytes]


def main() -> None:
    found = {nbytes: fractions_of_memcpy(nbytes) for nbytes in SIZES}
    print(f"{'KiB':30}" + "".join(f"{nbytes >> 10:8}" for nbytes in SIZES))
    for name in found[SIZES[0]]:
        print(f"{name:30}" + "".join(f"{found[nbytes][name]:8.2f}" for nbytes in SIZES))


if __name__ == "__main__":
    main()
