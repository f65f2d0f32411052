"""A pool of emulated cards in POSIX shared memory: one segment per card, and one more for each emulated host.

The process that creates a pool owns it: the names go when that process leaves the ``with`` block, drops the pool or
exits. Only SIGKILL leaves names behind; ``cxlemu pool clean`` finds and removes those.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
import weakref
from contextlib import suppress
from pathlib import Path

from cxlemu import _native
from cxlemu.errors import ArgumentError, PoolError
from cxlemu.memory.cache import HostCache, damage_in, host_segment_bytes
from cxlemu.memory.protocol import Bytes
from cxlemu.pool import numa, room, segments
from cxlemu.pool.life import LifeLock
from cxlemu.pool.owner import Owner, OwnerState
from cxlemu.pool.pool import NewClocks, Pool
from cxlemu.pool.segments import SHM_DIR, MissingSegmentError, Segment
from cxlemu.pool.superblock import (
    MAGIC,
    PAGE_BYTES,
    SUPERBLOCK_BYTES,
    UNFINISHED,
    Geometry,
    Superblock,
    check_pool,
    parse,
)
from cxlemu.rounding import round_down, round_up
from cxlemu.units import format_bytes

__all__ = ["ShmPool", "attach_by_name", "no_such_pool", "open_card", "open_cards", "owner_state"]

_POLL_S = 0.002


class ShmPool(Pool):
    """Cards in shared memory, and a segment for the cache of each emulated host."""

    def __init__(self, name: str, superblock: Superblock, cards: list[Bytes]) -> None:
        """Use `create` or `attach`."""
        super().__init__(name, superblock, cards)
        self._host_segments: dict[int, Bytes] = {}
        self._owner_pid: int | None = None
        self._remove_names: weakref.finalize[..., ShmPool] | None = None  # the owner has one
        self._life: LifeLock | None = None  # so has the owner

    @classmethod
    def create(
        cls,
        name: str | None = None,
        *,
        cards: int,
        card_bytes: int,
        interleave_bytes: int,
        hosts: int,
        numa_node: int | None = None,
        max_ranks: int = 1024,
        clocks: NewClocks | None = None,
        beside_bytes: int = 0,
        sparse: bool = False,
    ) -> ShmPool:
        """Make a pool that this process owns.

        Every byte of the cards is taken now, unless they are sparse; other segments stay sparse. ``beside_bytes``:
        further memory for which there must be room.
        """
        name = f"{os.getpid()}-{os.geteuid()}-{secrets.token_hex(4)}" if name is None else name
        segments.check_pool_name(name)
        geometry = Geometry(cards, hosts, max_ranks, card_bytes, interleave_bytes)
        if flaw := geometry.flaw():
            raise ArgumentError(f"this pool cannot be made: {flaw}")
        if numa_node is not None:
            numa.check_node(numa_node)
        _refuse_taken(name, geometry)
        if not sparse:
            _check_room(geometry, 0 if clocks is None else clocks.nbytes, beside_bytes)

        made: list[Segment] = []
        lives: list[LifeLock] = []
        try:
            pool = cls(name, *_make_segments(name, geometry, numa_node, made, lives, clocks, sparse=sparse))
        except BaseException as error:
            _remove(made, os.getpid())
            if isinstance(error, OSError):
                raise PoolError(f"pool {name} cannot be made in {SHM_DIR}: {error.strerror}") from error
            raise
        pool._owner_pid, pool._life, pool.sparse = os.getpid(), lives[0], sparse
        pool._remove_names = weakref.finalize(pool, _remove, made, pool._owner_pid)
        return pool

    @classmethod
    def attach(cls, name: str, *, deadline_s: float = 5.0) -> ShmPool:
        """Map a pool that another process owns. Writes nothing."""
        segments.check_pool_name(name)
        _await_complete(name, deadline_s)
        superblock, cards = open_cards(name)
        if owner_state(name, superblock) == "dead":
            raise PoolError(
                f"pool {name} is stale: its owner, process {superblock.owner.pid}, is gone; "
                f"remove it with `cxlemu pool clean {name}`"
            )
        return cls(name, superblock, cards)

    @property
    def owner(self) -> bool:
        """Whether this very process created the pool; a forked child did not."""
        return self._owner_pid == os.getpid()

    def host_segment(self, host: int) -> Bytes:
        """Map the zeroed bytes that the processes of one emulated host share for its cache, on first use."""
        if not 0 <= host < self.hosts:
            raise ArgumentError(f"host {host} is not one of the {self.hosts} hosts of pool {self.name}")
        if not self.cards:
            raise PoolError(f"pool {self.name} is closed")
        if host not in self._host_segments:
            self._host_segments[host] = self._map_host(Segment(self.name, "host", host))
        return self._host_segments[host]

    def host_cache(self, host: int) -> HostCache:
        """Open the cache of ``host``; its segment is the lock file of the host's processes."""
        if self.cache_paths:
            return super().host_cache(host)
        segment = Segment(self.name, "host", host)
        try:
            damage = damage_in(self.host_segment(0))
            return HostCache.shared(self.cards, self.host_segment(host), segment.path, host=host, damage=damage)
        except FileNotFoundError:
            raise PoolError(f"{segment} is gone: pool {self.name} was removed while this rank attached") from None

    def part(self, card: int, offset: int, nbytes: int, *, writable: bool = True) -> Bytes:
        """Map bytes of a card's segment alone, as `Pool.part`. Raises PoolError as `segments.opened`."""
        with segments.opened(Segment(self.name, "card", card), writable=writable) as fd:
            return segments.map_shared(fd, nbytes, offset, writable=writable)

    def back(self, card: int, offset: int, nbytes: int) -> None:
        """Take memory of /dev/shm for bytes of a sparse card, as `Pool.back`."""
        if not self.sparse:
            return
        pages = self.cards[card][round_down(offset, PAGE_BYTES) : round_up(offset + nbytes, PAGE_BYTES)]
        missing = _native.missing_bytes(pages)
        if not missing:  # as where a room is taken again
            return
        if missing > (left := room.available_bytes()):
            raise PoolError(f"{missing} more bytes are needed; memory and {SHM_DIR} have {left} left")
        try:
            _native.back_pages(pages, True, True)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a kernel before 5.14 takes memory as it is touched
                raise PoolError(f"{SHM_DIR} has no {nbytes} more bytes: {error.strerror}") from error

    def unback(self, card: int, offset: int, nbytes: int) -> None:
        """Give memory of a sparse card back to /dev/shm, as `Pool.unback`."""
        begin, end = round_up(offset, PAGE_BYTES), round_down(offset + nbytes, PAGE_BYTES)
        if self.sparse and self.cards and begin < end:
            _native.back_pages(self.cards[card][begin:end], False, True)

    @property
    def lock_path(self) -> Path:
        return Segment(self.name, "card", 0).path

    def clocks(self) -> Bytes:
        """Map the bytes that a pace's ranks share. Raises MissingSegmentError for a pool that was made without."""
        with segments.opened(Segment(self.name, "clock", 0)) as fd:
            return segments.map_shared(fd, os.fstat(fd).st_size)

    def _map_host(self, segment: Segment) -> Bytes:
        with segments.opened(segment) as fd:
            nbytes = os.fstat(fd).st_size
            expected = host_segment_bytes(len(self.cards), self.card_bytes)
            if nbytes != expected:
                raise PoolError(f"{segment} has {nbytes} bytes, a host of this pool needs {expected}")
            return segments.map_shared(fd, nbytes)

    def close(self) -> None:
        """Let go of the mappings of cards and hosts; the pool's names stay."""
        super().close()
        self._host_segments.clear()

    def unlink(self) -> None:
        """Remove the names of all segments, if this process created the pool; attached processes stay attached."""
        if self.owner and self._remove_names is not None:
            self._remove_names()
            if self._life is not None:
                self._life.release()

    def remove_if_owner_died(self) -> None:
        """Remove the pool's names if its owner is dead and no other pool has them by now. One of the survivors does."""
        if self.owner:
            return
        # PoolError: something else has the name by now, as the job's next pool. BlockingIOError: a survivor removes it.
        with suppress(PoolError, BlockingIOError), segments.opened(Segment(self.name, "card", 0)) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            superblock = parse(os.pread(fd, SUPERBLOCK_BYTES, 0), f"pool {self.name}")
            named = os.fstat(fd).st_nlink > 0  # as long as it is, no process can make another pool of its name
            if named and superblock.uuid == self.uuid and superblock.owner.state_by(fd) == "dead":
                for segment in reversed(segments.find(self.name)):  # card 0 last, as its owner would
                    segments.remove(segment)

    def __exit__(self, *_: object) -> None:
        self.close()
        self.unlink()


def attach_by_name(name: str | None, deadline_s: float) -> ShmPool:
    if name is None:
        raise ArgumentError("a tenant runs in a pool in shared memory that is there already: give the pool's name")
    return ShmPool.attach(name, deadline_s=deadline_s)


def owner_state(name: str, superblock: Superblock) -> OwnerState:
    """Look whether a pool's owner still runs."""
    with segments.opened(Segment(name, "card", 0)) as fd:
        return superblock.owner.state_by(fd)


def open_cards(name: str) -> tuple[Superblock, list[Bytes]]:
    """Map every card of a complete pool, even one with a dead owner; return card 0's superblock too. Writes nothing."""
    if not segments.find(name):
        raise PoolError(no_such_pool(name))
    superblock, card = open_card(Segment(name, "card", 0))
    expected = [Segment(name, "card", index) for index in range(superblock.geometry.cards)]
    extra = [
        segment
        for segment in segments.find(name)
        if segment.kind == "card" and segment not in expected and segments.is_ours(segment)
    ]
    if extra:
        raise PoolError(f"{extra[0]} is one card too many: pool {name} has {superblock.geometry.cards}")
    opened = [(superblock, card), *(open_card(segment) for segment in expected[1:])]
    check_pool([block for block, _ in opened], [str(segment) for segment in expected])
    return superblock, [pages for _, pages in opened]


def open_card(segment: Segment) -> tuple[Superblock, Bytes]:
    """Map one card, and check its superblock against its size."""
    with segments.opened(segment) as fd:
        superblock = parse(os.pread(fd, SUPERBLOCK_BYTES, 0), str(segment))
        nbytes = os.fstat(fd).st_size
        if nbytes != superblock.geometry.card_bytes:
            expected = superblock.geometry.card_bytes
            raise PoolError(f"{segment} has {nbytes} bytes, its superblock says {expected}")
        return superblock, segments.map_shared(fd, nbytes)


def _refuse_taken(name: str, geometry: Geometry) -> None:
    """Refuse a name that is taken; files of another user matter only where this pool would have its own."""
    sizes = {"card": geometry.cards, "host": geometry.hosts, "clock": 1}
    for segment in segments.find(name):
        if segments.is_ours(segment):
            raise PoolError(f"{segment} exists already: {segments.taken(name)}")
        if segment.index < sizes[segment.kind]:
            raise PoolError(f"{segment} belongs to another user: choose another name than {name}")


def _check_room(geometry: Geometry, clocks_bytes: int, beside_bytes: int) -> None:
    """Sparse segments count in full: they fill as they are used, and then SIGBUS or SIGKILL is the only answer."""
    cards_bytes = geometry.cards * geometry.card_bytes
    hosts_bytes = geometry.hosts * host_segment_bytes(geometry.cards, geometry.card_bytes)
    if missing := room.shortage(cards_bytes + hosts_bytes + clocks_bytes, beside_bytes):
        raise PoolError(
            f"{missing} ({format_bytes(cards_bytes)} for its cards, {format_bytes(hosts_bytes + clocks_bytes)} for its "
            f"hosts' caches and clocks; outside /dev/shm {format_bytes(beside_bytes)} for its ranks): give it fewer or "
            f"smaller cards (card_bytes; -c laptop has two of 8 MiB), or more memory"
        )


def _make_segments(
    name: str,
    geometry: Geometry,
    numa_node: int | None,
    made: list[Segment],
    lives: list[LifeLock],
    clocks: NewClocks | None,
    *,
    sparse: bool,
) -> tuple[Superblock, list[Bytes]]:
    """All segments of a pool; each goes into ``made`` as soon as it exists, so that a failure can undo it.

    The lock by which others see that the owner lives goes into ``lives``, before any card says whose it is.
    """
    superblock = Superblock.new(geometry, Owner.current())
    cards = []
    for index in range(geometry.cards):
        segment = Segment(name, "card", index)
        with segments.create(segment, geometry.card_bytes) as fd:
            made.append(segment)
            if index == 0:
                lives.append(LifeLock(segment.path, 0))
            cards.append(segments.map_shared(fd, geometry.card_bytes))
            if numa_node is not None:
                numa.bind(cards[-1], numa_node)
            # The body tells `pool clean` which process made this, should we die before the magic completes it.
            os.pwrite(fd, superblock.for_card(index).pack()[len(MAGIC) :], len(MAGIC))
            taken = geometry.data_offset if sparse else geometry.card_bytes
            os.posix_fallocate(fd, 0, taken)  # a full /dev/shm: an error here, no SIGBUS later
    for host in range(geometry.hosts):
        segment = Segment(name, "host", host)
        with segments.create(segment, host_segment_bytes(geometry.cards, geometry.card_bytes)):
            made.append(segment)
    if clocks is not None:
        segment = Segment(name, "clock", 0)
        with segments.create(segment, clocks.nbytes) as fd:
            made.append(segment)
            clocks.make(segments.map_shared(fd, clocks.nbytes))
    for index in reversed(range(geometry.cards)):  # card 0 last: once it is complete, the pool is
        with segments.opened(Segment(name, "card", index)) as fd:
            os.pwrite(fd, MAGIC, 0)
    return superblock, cards


def _remove(made: list[Segment], owner_pid: int) -> None:
    """Remove segments backwards, card 0 last: as long as anything is left, a superblock names the owner."""
    if os.getpid() == owner_pid:  # a forked child inherits this finalizer, not the pool
        for segment in reversed(made):
            segments.remove(segment)


def _await_complete(name: str, deadline_s: float) -> None:
    """Wait until card 0 has its magic. ``open_cards`` reports anything else that is wrong with it."""
    end = time.monotonic() + deadline_s
    while True:
        over = time.monotonic() >= end  # before the last look: this process may be stopped at any moment
        try:
            with segments.opened(Segment(name, "card", 0)) as fd:
                if os.pread(fd, len(MAGIC), 0) not in (b"", UNFINISHED):
                    return
            problem = f"pool {name} is still incomplete: its owner is slow or died, see `cxlemu pool list`"
        except MissingSegmentError:
            problem = no_such_pool(name)
        if over:
            raise PoolError(f"{problem} (waited {deadline_s:g} s)")
        time.sleep(_POLL_S)


def no_such_pool(name: str) -> str:
    return f"there is no pool {name}; existing pools: {', '.join(segments.pool_names()) or 'none'}"
