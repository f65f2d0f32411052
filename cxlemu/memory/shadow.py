"""What one rank sees of a pool that its host caches without coherence: real bytes, real staleness.

The memory model is docs/memory-model.md; the comments here only say where NumPy's shadow restricts it. This is the
definition of memory/native.py, which does the same in C.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cxlemu.memory.adversary import Action, Adversary, AdversaryStats, CacheMove
from cxlemu.memory.cache import CardCache, HostCache, lines_of
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes, DoorbellLine
from cxlemu.memory.ranges import WORD, check_bytes, check_doorbell, check_range


class _Posted(NamedTuple):
    """A non-temporal store on its way."""

    card: int
    offset: int
    data: Bytes

    @property
    def end(self) -> int:
        return self.offset + self.data.size


class ShadowMemory:
    """One rank of a host whose ranks share a cache, a `HostMemory`.

    Addresses outside the cards raise ArgumentError; a host lock that is not released, DeadlineError; loads where
    hardware is broken, its FaultError.
    """

    def __init__(self, cache: HostCache, adversary: Adversary | None = None) -> None:
        """Join a host's cache; without an adversary, only programs move lines."""
        self.cache = cache
        self._adversary = adversary
        self._flushed: dict[tuple[int, int, int], None] = {}  # (card, first, last) since the last fence
        self._posted_nt: list[_Posted] = []  # in program order
        self.stats = AdversaryStats()

    @cached_property
    def native(self) -> NativeShadowMemory:
        """This rank's memory in C, for the native engine; its adversary begins where this one's stands now.

        Fences and non-temporal stores belong to one of the two memories: before a rank uses one of them, it has fenced
        what went through the other.
        """
        return NativeShadowMemory(self.cache, self._adversary)

    def moved(self) -> int:
        """Count the lines that this rank's adversary has moved so far, here and in C."""
        counters = [self.stats, *([self.native.stats] if "native" in vars(self) else [])]
        return sum(sum(astuple(stats)) for stats in counters)

    def write(self, card: int, offset: int, data: Bytes) -> None:
        check_bytes(data)
        with self._operation(card, offset, data.size) as cached:
            self._store(cached, card, offset, data)

    def write_nt(self, card: int, offset: int, data: Bytes) -> None:
        check_bytes(data)
        with self._operation(card, offset, data.size):
            self._posted_nt.append(_Posted(card, offset, data.flatten()))

    def read(self, card: int, offset: int, out: Bytes) -> None:
        check_bytes(out)
        with self._operation(card, offset, out.size) as cached:
            self._load(cached, card, offset, out)

    def flush(self, card: int, offset: int, nbytes: int, *, keep: bool = False) -> None:
        with self._operation(card, offset, nbytes) as cached:
            first, last = lines_of(offset, nbytes)
            cached.flush(first, last, keep=keep)
            self._flushed[card, first, last] = None

    def fence(self) -> None:
        with self.cache.lock:
            self._disturb()
            for nt in self._posted_nt:
                self.cache.cards[nt.card].land_nt(nt.offset, nt.data)
            self._posted_nt.clear()
            for card, first, last in self._flushed:
                self.cache.cards[card].complete(first, last)
            self._flushed.clear()
            self._disturb()

    def invalidate(self, card: int, offset: int, nbytes: int) -> None:
        with self._operation(card, offset, nbytes) as cached:
            cached.invalidate(*lines_of(offset, nbytes))

    def signal(self, card: int, offset: int, word: int, payload: bytes = b"") -> None:
        """Ring a doorbell, as `HostMemory.signal` says. Its line arrives at once.

        The model may hold the line back, but nothing here would ever let it go.
        """
        check_doorbell(self.cache.memory, card, offset, word, payload)
        with self._operation(card, offset, LINE_BYTES) as cached:
            if payload:
                self._store(cached, card, offset + WORD.itemsize, np.frombuffer(payload, np.uint8))
            self._store(cached, card, offset, np.array([word], WORD).view(np.uint8))
            line = offset // LINE_BYTES
            cached.push_doorbell(line)
            self._flushed[card, line, line + 1] = None

    def poll(self, card: int, offset: int) -> DoorbellLine:
        """Look at a doorbell, as `HostMemory.poll` says.

        The adversary does not act here: how often a rank polls depends on time, and the adversary must not.
        """
        check_doorbell(self.cache.memory, card, offset, 0, b"")
        line = np.empty(LINE_BYTES, np.uint8)
        with self.cache.lock:
            cached = self.cache.cards[card]
            cached.fetch_doorbell(offset // LINE_BYTES)
            self._load(cached, card, offset, line)
        return DoorbellLine(int(line[: WORD.itemsize].view(WORD)[0]), line[WORD.itemsize :].tobytes())

    @contextmanager
    def _operation(self, card: int, offset: int, nbytes: int) -> Iterator[CardCache]:
        check_range(self.cache.memory, card, offset, nbytes)
        with self.cache.lock:
            if self._adversary is not None:
                self._adversary.touched(card, *lines_of(offset, nbytes))
            self._disturb()
            yield self.cache.cards[card]
            self._disturb()

    def _store(self, cached: CardCache, card: int, offset: int, data: Bytes) -> None:
        """A cached store waits for this rank's own non-temporal stores to its lines."""
        self._land_nt(card, *lines_of(offset, data.size))
        cached.store(offset, data)

    def _load(self, cached: CardCache, card: int, offset: int, out: Bytes) -> None:
        cached.load(offset, out)
        end = offset + out.size
        own = [nt for nt in self._posted_nt if nt.card == card and nt.offset < end and offset < nt.end]
        if own:
            loaded = out.flatten()
            for nt in own:
                low, high = max(offset, nt.offset), min(end, nt.end)
                loaded[low - offset : high - offset] = nt.data[low - nt.offset : high - nt.offset]
            out[...] = loaded.reshape(out.shape)

    def _land_nt(self, card: int, first: int, last: int) -> int:
        """Land what this rank's non-temporal stores have in the window of lines; the rest stays posted."""
        start, end = first * LINE_BYTES, last * LINE_BYTES
        remaining: list[_Posted] = []
        landed = 0
        for nt in self._posted_nt:
            low, high = max(nt.offset, start), min(nt.end, end)
            if nt.card != card or low >= high:
                remaining.append(nt)
                continue
            before, here, after = np.split(nt.data, (low - nt.offset, high - nt.offset))
            self.cache.cards[card].land_nt(low, here)
            landed += len(range(*lines_of(low, here.size)))
            if before.size:
                remaining.append(_Posted(card, nt.offset, before))
            if after.size:
                remaining.append(_Posted(card, high, after))
        self._posted_nt = remaining
        return landed

    def _disturb(self) -> None:
        if self._adversary is None:
            return
        for move in self._adversary.moves():
            self._suffer(move)

    def disturb(self, move: CacheMove) -> int:
        """Make one move of nature between two operations, and return how many lines moved."""
        with self.cache.lock:
            return self._suffer(move)

    def _suffer(self, move: CacheMove) -> int:
        card, first, last = move.card, move.first, move.first + move.among.size
        cached = self.cache.cards[card]
        match move.action:
            case Action.EVICT:
                moved = cached.evict(first, last, move.among)
                self.stats.evictions += moved
            case Action.PREFETCH:
                moved = cached.fetch(first, last, move.among)
                self.stats.prefetches += moved
            case Action.LAND:
                moved = cached.land(first, last, move.among) + self._land_nt(card, first, last)
                self.stats.landings += moved
        return moved
