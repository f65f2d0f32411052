"""Measure this machine's memory: latencies, bandwidths, and how long its cache-line instructions take.

The memory that stands for cards is shared memory, on the farthest NUMA node where there are several. Each figure is the
best of some short rounds, because other work on the machine only adds to it; bandwidths of all cores are measured in
threads that begin together.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cxlemu import _measure, _native
from cxlemu.calibrate.device_copies import DeviceCopies
from cxlemu.errors import NothingJudgedError
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.pool import numa

SMALL_BYTES = 1 << 18  # stays in a core's own cache
ROUND_BYTES = 1 << 22  # a core moves this much in one go: it is done before other work gets the core
LEAST_BYTES = 1 << 25
ROUNDS = 5
_ROUND = ROUND_BYTES // 4  # in f32
_CHASED_LINES = 4_000
LINES = 4096  # written, flushed and dropped in one measurement
_ROUND_TRIPS, _TRIPS = 50_000, 500  # altogether, and in a round
_PING_PONG_S = 10.0  # all rounds: on a busy machine a trip may take as long as others hold the core

Step = Callable[[], object]


@dataclass(frozen=True)
class Bandwidth:
    """Bandwidths in GB/s. ``copy`` counts each copied byte once, though it is read and written."""

    read: float
    write: float
    copy: float


@dataclass(frozen=True)
class Calibration:
    """All that was measured: latencies in ns, bandwidths in GB/s.

    ``far`` figures are those of the memory that stands for cards, on NUMA node ``node``.
    """

    cores: int
    node: int | None  # None: this kernel has one node, or no NUMA
    local_latency_ns: float
    far_latency_ns: float
    one_core: Bandwidth
    one_core_far: Bandwidth
    all_cores_far: Bandwidth
    reduce_gbytes_per_s: float  # bytes of both operands, one core
    flush_line_ns: float | None  # None: the machine's cache-line instructions are not known
    invalidate_line_ns: float | None
    fence_ns: float | None
    ring_ns: float | None  # until a line that was stored is in memory
    round_trip_ns: float | None  # a line from core to core and back; None on one core
    device: DeviceCopies | None = None  # on which the ranks' arrays live; None: on the host


def steps(nbytes: int) -> dict[str, Step]:
    """Return the functions that measure, by the name of their figure, in the order in which they should run."""
    node = far_node()
    cores = len(os.sched_getaffinity(0))
    known = bool(_native.lines_instructions())
    return {
        "local_latency_ns": lambda: load_latency_ns(memory(nbytes, None)),
        "far_latency_ns": lambda: load_latency_ns(memory(nbytes, node)),
        "one_core": lambda: bandwidth(1, nbytes, None),
        "one_core_far": lambda: bandwidth(1, nbytes, node),
        "all_cores_far": lambda: bandwidth(cores, nbytes, node),
        "reduce_gbytes_per_s": lambda: reduce_gbytes_per_s(nbytes),
        **{name: partial(_of_lines, step, node) if known else _unknown for name, step in LINE_STEPS.items()},
        "round_trip_ns": lambda: round_trip_ns() if cores > 1 else None,
    }


def _of_lines(step: Callable[[Bytes], float], node: int | None) -> float:
    return step(memory(LINES * LINE_BYTES, node))


def _unknown() -> None:
    return None


def measure(nbytes: int, on_step: Callable[[str], None]) -> Calibration:
    """Measure everything, in some seconds, on arrays of ``nbytes``: a power of two, LEAST_BYTES or more per core."""
    figures = {}
    for name, step in steps(nbytes).items():
        on_step(name)
        figures[name] = step()
    return Calibration(cores=len(os.sched_getaffinity(0)), node=far_node(), **figures)  # type: ignore[arg-type]


def far_node() -> int | None:
    """Return the NUMA node for cards: the last one that is not this thread's; None where there are not several."""
    nodes = numa.nodes_with_memory()
    if len(nodes) < 2:
        return None
    here = numa.node_of(memory(mmap.PAGESIZE, None))
    return [node for node in nodes if node != here][-1]


def memory(nbytes: int, node: int | None) -> Bytes:
    """Map ``nbytes`` of new shared pages, touched, on a NUMA node (None: on this thread's)."""
    pages = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    if node is not None:
        numa.bind(pages, node)
    pages[:] = 1
    return pages


def load_latency_ns(pages: Bytes) -> float:
    """Return how long a load takes that needs the one before, anywhere in these pages; TLB misses are part of it."""
    cycle(pages)
    return min(chase_ns(pages, lambda: None, 20 * ROUNDS))


def cycle(pages: Bytes) -> None:
    """Let every line say which one comes next: one cycle through all, in random order."""
    lines = pages.view(np.uint64).reshape(-1, LINE_BYTES // 8)
    order = np.random.default_rng(1).permutation(len(lines)).astype(np.uint64)
    lines[order, 0] = np.roll(order, -1)


def chase_ns(pages: Bytes, prepare: Step, rounds: int) -> list[float]:
    """Return what a load takes in each round that follows a `cycle` where the one before ended."""
    loads, offset, times = min(_CHASED_LINES, pages.nbytes // LINE_BYTES), 0, []
    for _ in range(rounds):
        prepare()
        seconds, offset = _measure.chase(pages, offset, loads)
        times.append(seconds / loads * 1e9)
    return times


def bandwidth(cores: int, nbytes: int, node: int | None) -> Bandwidth:
    """Measure cores at once, each on its share of ``nbytes``: reads to a small array, writes from one, and copies."""
    pages, own = ([_floats(nbytes // cores, its) for _ in range(cores)] for its in (node, None))
    small = [_floats(SMALL_BYTES, None) for _ in range(cores)]
    rounds = range(nbytes // cores // ROUND_BYTES)

    def work(kind: str, core: int, number: int) -> tuple[_measure.Move, ...]:
        page, local = (array[number * _ROUND : (number + 1) * _ROUND] for array in (pages[core], own[core]))
        pieces, s = np.split(page, ROUND_BYTES // SMALL_BYTES), small[core]
        if kind == "copy":
            return ((page, (local,)),)
        return tuple((s, (piece,)) if kind == "read" else (piece, (s,)) for piece in pieces)

    def best(kind: str) -> float:
        return together([[work(kind, core, number) for core in range(cores)] for number in rounds], cores * ROUND_BYTES)

    return Bandwidth(best("read"), best("write"), best("copy"))


def reduce_gbytes_per_s(nbytes: int) -> float:
    """Return how fast one core sums two arrays of f32: the bytes of both, by the time."""
    out, a, b = (np.split(_floats(nbytes, None), nbytes // ROUND_BYTES) for _ in range(3))
    return together([[((o, (x, y)),)] for o, x, y in zip(out, a, b, strict=True)], 2 * ROUND_BYTES)


def together(rounds: list[list[tuple[_measure.Move, ...]]], nbytes: int) -> float:
    """Run rounds in which all cores move bytes at once, and return the GB/s of the best round."""
    return best_rate([[partial(_measure.move, moves, None, 1) for moves in each] for each in rounds], nbytes)


def best_rate(rounds: Sequence[Sequence[Step]], nbytes: int) -> float:
    """Run rounds in which all cores begin their step together, and return the GB/s of the best: ``nbytes`` each."""
    gate = threading.Barrier(len(rounds[0]))

    def run(core: int) -> list[tuple[int, int]]:
        times = []
        for each in rounds:
            gate.wait()
            begin = time.perf_counter_ns()
            each[core]()
            times.append((begin, time.perf_counter_ns()))
        return times

    with ThreadPoolExecutor(gate.parties) as threads:
        seen = list(threads.map(run, range(gate.parties)))
    took: Iterator[int] = (
        max(end for _, end in each) - min(begin for begin, _ in each) for each in zip(*seen, strict=True)
    )
    return nbytes / min(took)


def _floats(nbytes: int, node: int | None) -> NDArray[np.float32]:
    return memory(nbytes, node).view(np.float32)


# --- one core's cache-line instructions -----------------------------------------------------------------------------


def _best_ns(prepare: Step, timed: Step) -> float:
    times = []
    for _ in range(4 * ROUNDS):
        prepare()
        begin = time.perf_counter_ns()
        timed()
        times.append(time.perf_counter_ns() - begin)
    return float(min(times))


def flush_line_ns(pages: Bytes) -> float:
    """Return how long the write-back of a dirty line takes, in ns; a fence after all lines is part of it."""

    def flush() -> None:
        _native.flush(pages, 0, pages.nbytes, False)
        _native.fence()

    return _best_ns(lambda: pages.fill(2), flush) / LINES


def invalidate_line_ns(pages: Bytes) -> float:
    """Return how long an INVALIDATE takes per line that is in the cache and clean, in ns."""

    def fetch() -> None:
        _native.flush(pages, 0, pages.nbytes, False)
        _native.fence()
        pages.sum()

    return _best_ns(fetch, lambda: _native.invalidate(pages, 0, pages.nbytes)) / LINES


def fence_ns(pages: Bytes) -> float:
    """Return how long a fence takes that has nothing to wait for, in ns."""
    return _push_ns(pages, stores=False)


def ring_ns(pages: Bytes) -> float:
    """Return the time from the store of a word until its line, which is in the cache, is in memory, in ns."""
    return _push_ns(pages, stores=True)


def _push_ns(pages: Bytes, *, stores: bool) -> float:
    times = []
    for _ in range(4 * ROUNDS):
        pages.fill(2)
        times.append(_native.pushes_s(pages, stores) / LINES * 1e9)
    return min(times)


LINE_STEPS: dict[str, Callable[[Bytes], float]] = {
    "flush_line_ns": flush_line_ns,
    "invalidate_line_ns": invalidate_line_ns,
    "fence_ns": fence_ns,
    "ring_ns": ring_ns,
}


def round_trip_ns() -> float:
    """Return the round trip of a cache line between two cores, in caches that the machine keeps coherent, in ns."""
    lines = memory(mmap.PAGESIZE, None)
    lines[:] = 0

    def play(rank: int) -> float:
        best, ends = float("inf"), time.monotonic() + _PING_PONG_S
        for first in range(1, _ROUND_TRIPS, _TRIPS):
            begin = time.perf_counter_ns()
            try:
                _measure.ping_pong(lines, rank, first, _TRIPS, False, ends - time.monotonic())
            except TimeoutError:
                if best == float("inf"):
                    busy = f"in {_PING_PONG_S:g} s other work left no two cores to a cache line that goes to and fro"
                    raise NothingJudgedError(f"{busy}: measure again when this machine is less busy") from None
                break  # the rounds before it count
            best = min(best, (time.perf_counter_ns() - begin) / _TRIPS)
        return best

    with ThreadPoolExecutor(2) as threads:
        return max(threads.map(play, range(2)))
