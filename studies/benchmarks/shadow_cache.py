"""How fast an emulated host's cache in C is, as a fraction of memcpy: ``python -m studies.benchmarks.shadow_cache``.

Each step is timed right after a memcpy of as many bytes, again and again, so that other load on the machine meets both;
time is the thread's own, and the fractions are of medians.
"""

import time
from collections.abc import Callable
from statistics import median

import numpy as np

from cxlemu import _native
from cxlemu.memory.adversary import Adversary
from cxlemu.memory.cache import HostCache
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.memory.rates import DEFAULT_RATES

SIZES = (1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24)
_BYTES = 1 << 27  # that a step moves in all of its rounds, at least
_PAGE_BYTES = 4096


def fractions_of_memcpy(nbytes: int) -> dict[str, float]:
    """Return, for each step, the time of a memcpy of ``nbytes`` divided by the step's time."""
    card = _lines(nbytes, 0)
    cache = HostCache.private([card])
    adversary = Adversary(1, DEFAULT_RATES, host=0, rank=0, card_lines=nbytes // LINE_BYTES)
    calm, disturbed = NativeShadowMemory(cache).shadow, NativeShadowMemory(cache, adversary).shadow
    # Not at the same place in their pages, or loads wait for stores that they only seem to depend on.
    given, copied, out = (_lines(nbytes, place) for place in (1, 20, 40))

    into, source = copied.data, given.data

    def memcpy() -> None:
        into[:] = source

    def write(memory: _native.Shadow, follows: int) -> None:
        memory.write(0, 0, given, follows)
        memory.flush(0, 0, nbytes, False)

    def read(memory: _native.Shadow) -> None:
        memory.invalidate(0, 0, nbytes)
        memory.read(0, 0, out)

    def publish(memory: _native.Shadow) -> None:
        write(memory, 2)
        memory.fence()

    steps: dict[str, Callable[[], object]] = {
        "write": lambda: calm.write(0, 0, given, 0),
        "write, flush": lambda: write(calm, 0),
        "write and flush in one": lambda: write(calm, 1),
        "write, flush and fence in one": lambda: publish(calm),
        "invalidate, read": lambda: read(calm),
        "read what is there": lambda: calm.read(0, 0, out),
        "adversary: write, flush": lambda: write(disturbed, 1),
        "adversary: write, flush, fence": lambda: publish(disturbed),
        "adversary: invalidate, read": lambda: read(disturbed),
    }
    return {name: _fraction(memcpy, step, calm.fence, max(_BYTES // nbytes, 9)) for name, step in steps.items()}


def _fraction(
    whole: Callable[[], object], step: Callable[[], object], after: Callable[[], object], rounds: int
) -> float:
    times: dict[Callable[[], object], list[int]] = {whole: [], step: []}
    for number in range(rounds + 1):
        for timed in (whole, step):
            start = time.thread_time_ns()
            timed()
            if number:  # the first round makes pages
                times[timed].append(time.thread_time_ns() - start)
        after()
    return median(times[whole]) / median(times[step])


def _lines(nbytes: int, place: int) -> Bytes:
    """Pages that are there, and ``nbytes`` of them from a line of the first page on."""
    pages = np.ones(nbytes + 2 * _PAGE_BYTES, np.uint8)
    begin = -pages.ctypes.data % _PAGE_BYTES + place * LINE_BYTES
    return pages[begin : begin + nbytes]


def main() -> None:
    fractions = {nbytes: fractions_of_memcpy(nbytes) for nbytes in SIZES}
    print(f"{'KiB':32}" + "".join(f"{nbytes >> 10:8}" for nbytes in SIZES))
    for name in fractions[SIZES[0]]:
        print(f"{name:32}" + "".join(f"{fractions[nbytes][name]:8.2f}" for nbytes in SIZES))


if __name__ == "__main__":
    main()
