"""A host's cache of the pool with real bytes: lines, their states, and write-backs that are on their way.

Nothing leaves a line by itself, nothing arrives early: that is the worst case for staleness. What nature may do besides
(evict, prefetch, land) are methods here, which the memory calls for its adversary. This is the definition;
native/cache.c does the same on the same storage, and both may be used on one host's cache at the same time.

All steps on a window of lines are NumPy operations with a mask, and one memcpy where the mask is full. Bytes
are moved before the state that vouches for them, so a process killed in between leaves a cache that other
processes of its host can go on using.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError, PoolError
from cxlemu.memory.damage import DAMAGE_BYTES, Damage
from cxlemu.memory.lock import LOCK_BYTES, HostLock
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.memory.ranges import WORD, check_cards
from cxlemu.rounding import round_up
from cxlemu.units import format_bytes

# Bits of a line's state. FLUSHED: dropped at the latest at the fence of the rank that flushed it. FLUSHED without
# PRESENT (C makes it from a store and its flush in one): all that is left of the line is its pending write-back; a
# fetch makes it FLUSHED again.
PRESENT, DIRTY, FLUSHED = 1, 2, 4

Mask = NDArray[np.bool_]
_LINE = np.dtype(f"V{LINE_BYTES}")
_WORDS_PER_LINE = LINE_BYTES // WORD.itemsize
_PAGE_BYTES = 4096
_MAP_NORESERVE = 0x4000  # linux/mman.h; Python's mmap has no name for it


class LineView(NamedTuple):
    cached: bytes | None  # its 64 bytes in the cache; None where the line is absent
    dirty: bool  # whether the cached line is dirty
    posted: bytes | None  # the 64 bytes on their way to the pool; None where no write-back is pending


class CardCache:
    """One host's cached lines of one card. Windows are line numbers, ``first`` to below ``last``.

    The caller holds the host's lock. Where hardware is broken, loads of programs raise FaultErrors before they move
    anything, and what goes to the pool may be lost.
    """

    def __init__(
        self,
        pool: Bytes,
        data: Bytes,
        posted: Bytes,
        state: Bytes,
        pending: Mask,
        *,
        damage: Damage,
        host: int,
        card: int,
    ) -> None:
        """Take a card and its storage: bytes cached and posted; per line PRESENT, DIRTY, FLUSHED, and if one is
        pending."""
        self._damage, self._host, self._card = damage, host, card
        self._pool, self._data = pool, data
        self._pool_words, self._data_words = pool.view(WORD), data.view(WORD)
        self._pool_lines: NDArray[Any] = pool.view(_LINE)
        self._data_lines: NDArray[Any] = data.view(_LINE)
        self._posted_lines: NDArray[Any] = posted.view(_LINE)
        self._state = state
        self._pending = pending  # lines whose posted write-back has not reached the pool

    def look(self, line: int) -> LineView:
        """Show what the host holds of a line, and move nothing: for pictures and tests."""
        state = self._state[line]
        return LineView(
            cached=self._data_lines[line].tobytes() if state & PRESENT else None,
            dirty=bool(state & DIRTY),
            posted=self._posted_lines[line].tobytes() if self._pending[line] else None,
        )

    # -- steps of programs

    def holds(self, first: int, last: int, *, dirty: bool = False) -> bool:
        """Whether any line from ``first`` to below ``last`` is here or on its way to the pool; or, is dirty here."""
        state = self._state[first:last]
        return bool((state & DIRTY).any() if dirty else (state.any() or self._pending[first:last].any()))

    def store(self, offset: int, data: Bytes) -> None:
        """Store bytes to the cache, whose lines are dirty then.

        Lines that are overwritten whole need no fetch; a line at either end may be overwritten in part.
        """
        first, last = lines_of(offset, data.size)
        ends = [(first, min(first + 1, last))] if offset % LINE_BYTES else []
        ends += [(max(first, last - 1), last)] if (offset + data.size) % LINE_BYTES else []
        for end in ends:
            self.check_load(*end)
        for end in ends:
            self.fetch(*end)
        self._data[offset : offset + data.size].reshape(data.shape)[...] = data
        self._state[first:last] = PRESENT | DIRTY

    def load(self, offset: int, out: Bytes) -> None:
        """Load bytes from the cache, after fetching absent lines."""
        self.check_load(*lines_of(offset, out.size))
        self.fetch(*lines_of(offset, out.size))
        out[...] = self._data[offset : offset + out.size].reshape(out.shape)

    def flush(self, first: int, last: int, *, keep: bool) -> None:
        """Post the dirty lines of a window [first, last); without ``keep``, present lines leave with the next fence."""
        self._post(first, last)
        if not keep:
            state = self._state[first:last]
            state |= (state & PRESENT) * FLUSHED

    def complete(self, first: int, last: int) -> None:
        """Do what a fence does to a window that was flushed: land its write-backs and drop its flushed lines.

        A line that left since and came back (prefetch) is not the line that was flushed, and stays.
        """
        self.land(first, last)
        state = self._state[first:last]
        state *= state < FLUSHED

    def invalidate(self, first: int, last: int) -> None:
        """Drop a window's lines, after writing back dirty ones: x86 has no instruction that would only drop them."""
        self._post(first, last)
        self.land(first, last)
        self._state[first:last] = 0

    def push_doorbell(self, line: int) -> None:
        """Write the line back at once: payload first, so that a rank that sees the word finds its payload."""
        self.land(line, line + 1)
        if self._arriving(line, np.ones(1, np.bool_)).all():
            payload = slice(line * LINE_BYTES + WORD.itemsize, (line + 1) * LINE_BYTES)
            self._pool[payload] = self._data[payload]
            self._pool_words[line * _WORDS_PER_LINE] = self._data_words[line * _WORDS_PER_LINE]
        self._state[line] = PRESENT | FLUSHED

    def fetch_doorbell(self, line: int) -> None:
        """Invalidate a line and fetch it: word first, payload after it (the mirror image of ``push_doorbell``)."""
        self.invalidate(line, line + 1)
        self.check_load(line, line + 1)
        payload = slice(line * LINE_BYTES + WORD.itemsize, (line + 1) * LINE_BYTES)
        self._data_words[line * _WORDS_PER_LINE] = self._pool_words[line * _WORDS_PER_LINE]
        self._data[payload] = self._pool[payload]
        self._state[line] = PRESENT

    def land_nt(self, offset: int, data: Bytes) -> None:
        """Bring a non-temporal store to the pool, after what this host wrote to its lines before."""
        first, last = lines_of(offset, data.size)
        self.invalidate(first, last)
        whole = np.ones(last - first, np.bool_)
        if data.size:  # a line at either end that is overwritten in part stays poisoned
            whole[0] &= offset % LINE_BYTES == 0
            whole[-1] &= (offset + data.size) % LINE_BYTES == 0
        if self._reaches_pool():
            self._arriving(first, whole)
            self._pool[offset : offset + data.size] = data

    # -- steps of nature (fetch and land are also parts of the above); each returns how many lines it moved

    def fetch(self, first: int, last: int, among: Mask | None = None) -> int:
        """Bring absent lines in, clean, and return how many; nature fetches no line that would read as an error."""
        state = self._state[first:last]
        absent = (state & PRESENT) == 0
        if among is not None:
            absent &= among & self._fetchable(first, last)
        count = _move(self._data_lines, self._pool_lines, first, last, absent)
        if count:
            _move(self._data_lines, self._posted_lines, first, last, absent & self._pending[first:last])
            state |= absent  # PRESENT
        return count

    def land(self, first: int, last: int, among: Mask | None = None) -> int:
        """Let pending write-backs of the flagged lines (None: all) arrive in the pool; return how many left."""
        pending = self._pending[first:last]
        held = pending.copy() if among is None else pending & among
        count = self._put(self._posted_lines, first, last, held)
        if count:
            pending ^= held
        return count

    def evict(self, first: int, last: int, among: Mask) -> int:
        """Drop flagged lines, and return how many left; a dirty one stays while an older write-back is pending."""
        state = self._state[first:last]
        dirty = (state & DIRTY) != 0
        leaving = among & (state != 0) & ~(dirty & self._pending[first:last])
        self._put(self._data_lines, first, last, dirty & leaving)
        state *= ~leaving
        return int(np.count_nonzero(leaving))

    def vanish(self, rng: np.random.Generator) -> None:
        """Empty the cache as a crash does: each posted write-back lands or is lost, with equal odds from ``rng``."""
        posted, lands = np.flatnonzero(self._pending), np.zeros_like(self._pending)
        lands[posted] = rng.random(posted.size) < 0.5
        self.land(0, lands.size, lands)
        self._pending[:] = False
        self._state[:] = 0

    # -- broken hardware

    def check_load(self, first: int, last: int) -> None:
        """Check that a load of the lines ``first`` to below ``last`` succeeds."""
        if self._damage.armed:
            self._damage.check_load(self._host, self._card, first, self._from_pool(first, last))

    def _from_pool(self, first: int, last: int) -> Mask:
        """Mark the lines that a fetch would take from the pool."""
        absent: Mask = (self._state[first:last] & PRESENT) == 0
        return absent & ~self._pending[first:last]

    def _fetchable(self, first: int, last: int) -> Mask | np.bool_:
        """Mark the lines that nature may fetch: none that reads as an error."""
        if not self._damage.armed:
            return np.True_
        broken = self._from_pool(first, last)
        if self._reaches_pool():
            broken &= self._damage.poisoned(self._card, first, last)
        return ~broken

    def _reaches_pool(self) -> bool:
        return not self._damage.armed or self._damage.cut_off(self._host, self._card) is None

    def _arriving(self, first: int, lines: Mask) -> Mask:
        """Mark those of the lines, on their way to the pool whole, that get there."""
        if not self._reaches_pool():
            return np.zeros_like(lines)
        if self._damage.armed:
            self._damage.overwritten(self._card, first, lines)
        return lines

    def _put(self, source: NDArray[Any], first: int, last: int, mask: Mask) -> int:
        """Write the marked lines to the pool; returns how many were sent, wherever they end."""
        _move(self._pool_lines, source, first, last, self._arriving(first, mask))
        return int(np.count_nonzero(mask))

    def _post(self, first: int, last: int) -> None:
        """Post the dirty lines, their bytes fixed now. One per line can be pending: an older one lands."""
        state, pending = self._state[first:last], self._pending[first:last]
        dirty = (state & DIRTY) != 0
        if np.count_nonzero(dirty):
            self.land(first, last, dirty)
            _move(self._posted_lines, self._data_lines, first, last, dirty)
            pending |= dirty
            state &= PRESENT | FLUSHED


class HostCache:
    """The cache of one emulated host, shared by its ranks; hold ``lock`` around every use of ``cards``.

    Each process of a host has its own HostCache on the same ``storage`` (see ``host_segment_bytes``): cached
    data of all cards, then posted data, then states, then pending flags, then, at a whole line, the lock.
    """

    def __init__(
        self,
        cards: Sequence[Bytes],
        storage: Bytes,
        lock_path: Path | None,
        *,
        host: int = 0,
        damage: Damage | None = None,
    ) -> None:
        """Lay a host's cache over its storage; `private` and `shared` find that storage. The storage is zeros at first;
        ``lock_path`` None: only this process uses the cache."""
        count, card_bytes = len(cards), check_cards(cards)
        needed = host_segment_bytes(count, card_bytes)
        if storage.nbytes < needed:
            raise ArgumentError(
                f"the cache of a host with {count} cards of {card_bytes} bytes needs {needed} bytes, "
                f"but its segment has {storage.nbytes}"
            )
        data, posted = storage[: 2 * count * card_bytes].reshape(2, count, card_bytes)
        lines = card_bytes // LINE_BYTES
        flags = storage[2 * count * card_bytes :][: 2 * count * lines].reshape(2, count, lines)
        self.storage = storage
        self.lock = HostLock(storage[_lock_offset(count, card_bytes) :][:LOCK_BYTES], lock_path)
        self.memory = tuple(cards)
        self.host = host
        self.damage = damage or Damage.none()
        self.cards = tuple(
            CardCache(*parts, damage=self.damage, host=host, card=card)
            for card, parts in enumerate(zip(cards, data, posted, flags[0], flags[1].view(np.bool_), strict=True))
        )

    @classmethod
    def private(cls, cards: Sequence[Bytes], *, host: int = 0, damage: Damage | None = None) -> HostCache:
        """Make a cache in this process only; the kernel backs it with memory as lines are touched.

        Its pages are small: of a large one the first line that is touched would take 2 MiB of zeros, in each array.
        """
        needed = host_segment_bytes(len(cards), check_cards(cards))
        try:
            pages = mmap.mmap(-1, needed, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except OSError as error:  # a kernel that lends no memory twice (vm.overcommit_memory=2)
            raise PoolError(
                f"there is no address space for a cache of {format_bytes(needed)}, though little of it is used "
                f"({error.strerror}): take smaller heaps (heap_bytes) or cards"
            ) from error
        return cls(cards, np.frombuffer(pages, np.uint8), None, host=host, damage=damage)

    @classmethod
    def shared(
        cls, cards: Sequence[Bytes], segment: Bytes, lock_path: Path, *, host: int = 0, damage: Damage | None = None
    ) -> HostCache:
        """Make or join the cache that the processes of one host share."""
        return cls(cards, segment, lock_path, host=host, damage=damage)

    def crash(self, rng: np.random.Generator) -> None:
        """Let the host die: its cache vanishes, each posted write-back lands or not. Discard its memories."""
        with self.lock:
            for card in self.cards:
                card.vanish(rng)

    def close(self) -> None:
        """Let go of the storage: a segment is unmapped once the memories on this cache are gone as well."""
        self.cards, self.memory, self.storage = (), (), self.storage[:0]


def host_segment_bytes(cards: int, card_bytes: int) -> int:
    """Compute the bytes, in whole pages, of a segment for one host's cache, with room for the pool's damage."""
    return round_up(_lock_offset(cards, card_bytes) + LOCK_BYTES + DAMAGE_BYTES, _PAGE_BYTES)


def damage_in(segment: Bytes) -> Damage:
    """Give the pool's damage, which lies at the end of the segment of host 0."""
    return Damage(segment[-DAMAGE_BYTES:])


def _lock_offset(cards: int, card_bytes: int) -> int:
    return round_up(cards * (2 * card_bytes + 2 * (card_bytes // LINE_BYTES)), LINE_BYTES)


def lines_of(offset: int, nbytes: int) -> tuple[int, int]:
    """Return the first line of a range of bytes and the line after its last; equal for an empty range."""
    first = offset // LINE_BYTES
    return first, -(-(offset + nbytes) // LINE_BYTES) if nbytes else first


def _move(into: NDArray[Any], source: NDArray[Any], first: int, last: int, mask: Mask) -> int:
    """Copy the lines of the window that ``mask`` marks; returns how many."""
    count = int(np.count_nonzero(mask))
    if count == last - first:
        into[first:last] = source[first:last]
    elif count:
        np.copyto(into[first:last], source[first:last], where=mask)
    return count
