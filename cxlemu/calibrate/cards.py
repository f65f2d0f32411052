"""Measure cards of a pool on devices: each port alone and all at once, mixes, latency under load, flushes and fences.

Only a region that the pool's arena lends is written. Lines that a measurement reads are dropped from this host's caches
before, and lines that it stores are flushed within the measured time: what is measured is the card, not a cache.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from cxlemu import _measure, _native
from cxlemu.calibrate.measure import (
    LINE_STEPS,
    LINES,
    ROUNDS,
    SMALL_BYTES,
    Bandwidth,
    best_rate,
    chase_ns,
    cycle,
    memory,
)
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.pool.dax import DaxPool
from cxlemu.world import RankContext

_PIECES = 3  # of a group: what a mix of two reads to a write touches
_GROUP = _PIECES * SMALL_BYTES
REGION_BYTES_MAX = 1 << 28
_CHASED_BYTES_MAX = 1 << 24
MIXES = {"reads": (3, 0), "two reads to a write": (2, 1), "a read to a write": (1, 1), "writes": (0, 3)}  # pieces


@dataclass(frozen=True)
class Loaded:
    """How long a load takes while other cores read the same card."""

    cores: int  # that read meanwhile
    gbytes_per_s: float  # which they read
    latency_ns: float


@dataclass(frozen=True)
class MeasuredCard:
    """What was measured of one card, in ns and GB/s; mixes count the bytes read and the bytes written."""

    path: str
    kind: str  # "device-DAX", or "file" for a stand-in
    nbytes: int
    latency_ns: float
    one_core: Bandwidth
    mixes: dict[str, float]  # of all cores
    loaded: tuple[Loaded, ...]
    flush_line_ns: float
    invalidate_line_ns: float
    fence_ns: float
    ring_ns: float  # until a line that was stored is on the card


@dataclass(frozen=True)
class MeasuredCards:
    """All cards, and what their ports carry at once."""

    cards: tuple[MeasuredCard, ...]
    together_gbytes_per_s: float  # all cores read all cards

    @property
    def devices(self) -> bool:
        return all(card.kind == "device-DAX" for card in self.cards)


def measure_cards(context: RankContext, on_step: Callable[[str], None]) -> MeasuredCards:
    """Measure all cards of the pool on devices that the only rank of a world has."""
    pool, cores = context.pool, len(os.sched_getaffinity(0))
    if not isinstance(pool, DaxPool):
        raise ArgumentError("cards are measured in a pool on devices or files")
    share = min(context.arena.nbytes, REGION_BYTES_MAX) // (2 * cores * _GROUP) * _GROUP
    if not share:
        raise ArgumentError(
            f"each card needs {2 * cores * _GROUP} bytes to be measured, and has {context.arena.nbytes} left"
        )
    at = context.arena.take(2 * cores * share).at
    regions = [card[at : at + 2 * cores * share] for card in pool.cards]
    cards = []
    for mapped, region in zip(pool.mapped, regions, strict=True):
        device = mapped.device
        on_step(f"{device.path}: latency")
        half = region[: cores * share]
        latency_ns, loaded = _latencies(half[: min(half.nbytes, _CHASED_BYTES_MAX)], region[half.nbytes :], cores)
        on_step(f"{device.path}: bandwidth")
        lines = region[: LINES * LINE_BYTES]
        cards.append(
            MeasuredCard(
                path=device.path,
                kind=device.kind,
                nbytes=device.usable_bytes,
                latency_ns=latency_ns,
                one_core=_one_core(half),
                mixes={mix: _rate([region], cores, mix) for mix in MIXES},
                loaded=loaded,
                **{name: step(lines) for name, step in LINE_STEPS.items()},
            )
        )
    on_step("all cards at once")
    return MeasuredCards(tuple(cards), _rate(regions, cores, "reads"))


def _rate(regions: Sequence[Bytes], cores: int, mix: str) -> float:
    """Return the GB/s of the best round in which cores move pieces of all regions, each core its own."""
    reads, writes = MIXES[mix]
    shares = [[_groups(region, core, cores) for region in regions] for core in range(cores)]
    own = [_small() for _ in range(cores)]
    rounds = [
        [partial(move, [share[number] for share in its], mix, small) for its, small in zip(shares, own, strict=True)]
        for number in range(len(shares[0][0]))
    ]
    for region in regions:
        _drop(region)
    return best_rate(rounds, cores * len(regions) * (reads + writes) * SMALL_BYTES)


def _one_core(region: Bytes) -> Bandwidth:
    """Return what one core carries; a copy is as fast as the slower of reads and writes, its other end is a cache."""
    read, write = (_rate([region], 1, mix) for mix in ("reads", "writes"))
    return Bandwidth(read, write, min(read, write))


def _groups(region: Bytes, core: int, cores: int) -> list[Bytes]:
    share = region.nbytes // cores
    own = region[core * share : (core + 1) * share]
    return [own[begin : begin + _GROUP] for begin in range(0, own.nbytes // _GROUP * _GROUP, _GROUP)]


def _small() -> Bytes:
    return memory(SMALL_BYTES, None)


def move(groups: Sequence[Bytes], mix: str, small: Bytes) -> None:
    """Move the pieces of groups as a mix does, to and from memory of the core's own, and flush what was stored."""
    for group in groups:
        first, *others = (piece.view(np.float32) for piece in np.split(group, _PIECES))
        own = small.view(np.float32)
        if mix == "reads":
            _measure.move(tuple((own, (piece,)) for piece in (first, *others)), None, 1)
            continue
        stored = (first, *others) if mix == "writes" else (first,)
        sources = {"writes": (own,), "a read to a write": (others[0],)}.get(mix, tuple(others))
        _measure.move(tuple((piece, sources) for piece in stored), None, 1)
        _native.flush(group, 0, len(stored) * SMALL_BYTES, False)
        _native.fence()


def _drop(region: Bytes) -> None:
    _native.flush(region, 0, region.nbytes, False)
    _native.fence()


def _latencies(chased: Bytes, read: Bytes, cores: int) -> tuple[float, tuple[Loaded, ...]]:
    cycle(chased)
    alone = min(chase_ns(chased, partial(_drop, chased), ROUNDS))
    return alone, tuple(_beside(chased, read, busy) for busy in _doubling(cores - 1))


def _doubling(most: int) -> Iterator[int]:
    busy = 1
    while busy < most:
        yield busy
        busy *= 2
    if most:
        yield most


def _beside(chased: Bytes, read: Bytes, busy: int) -> Loaded:
    """Chase lines while ``busy`` cores read; the mean, as what is slow now and then is asked, too."""
    stop, begun = threading.Event(), threading.Barrier(busy + 1)

    def work(core: int) -> int:
        groups, small, moved = _groups(read, core, busy), _small(), 0
        begun.wait()
        while not stop.is_set():
            group = groups[moved // _GROUP % len(groups)]
            _drop(group)
            move([group], "reads", small)
            moved += _GROUP
        return moved

    with ThreadPoolExecutor(busy) as threads:
        workers = [threads.submit(work, core) for core in range(busy)]
        begun.wait()
        begin = time.perf_counter_ns()
        try:
            ns = chase_ns(chased, partial(_drop, chased), ROUNDS)
        finally:
            stop.set()
        moved = sum(worker.result() for worker in workers)
    return Loaded(busy, moved / (time.perf_counter_ns() - begin), sum(ns) / len(ns))
