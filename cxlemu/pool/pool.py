"""The pool as ranks and managers use it, wherever its bytes live."""

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from cxlemu.errors import ArgumentError, PoolError
from cxlemu.memory.cache import HostCache
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.pool.cache_files import CacheFiles, open_cache
from cxlemu.pool.superblock import PAGE_BYTES, SESSION_OFFSET, Superblock
from cxlemu.units import counted, format_bytes
from cxlemu.unshared import Unshared


class NewClocks(NamedTuple):
    """A segment for a pace (see cxlemu/engines/pace.py)."""

    nbytes: int
    make: Callable[[Bytes], None]  # called with the segment's zeros, which it makes ready for the ranks


class NewPool(NamedTuple):
    name: str | None  # name under which other processes find the pool; None for one that no other pool has
    cards: int
    card_bytes: int
    interleave_bytes: int  # the granule by which regions go round the cards
    hosts: int  # number of hosts that the world's ranks are on
    max_ranks: int  # number of ranks for which the session area has lines
    numa_node: int | None = None  # where the pages of the cards lie; None for anywhere
    clocks: NewClocks | None = None  # what a pace's ranks share; None without a pace
    beside_bytes: int = 0  # memory that the world's ranks need beside the pool
    sparse: bool = False  # cards get memory as parts of them are taken (`Pool.back`), where the backend can do that


class Pool(Unshared):
    """Cards as writable byte arrays that every attached process shares.

    ``cards[i]`` is a uint8 array of ``card_bytes``; its first ``data_offset`` bytes are the superblock and, on card 0
    from ``session_offset``, the session area. A backend's pool overrides what differs there.
    """

    session_offset = SESSION_OFFSET
    align_bytes = PAGE_BYTES  # parts of a card are mapped in whole multiples of this
    spans_machines = False  # processes of other machines can attach it
    sparse = False  # memory comes as parts of cards are taken, and goes with them; all processes set it alike
    cache_paths: tuple[str, ...] = ()  # files of the caches of emulated hosts, where a launch made some
    _cache_files: CacheFiles | None = None

    def __init__(self, name: str, superblock: Superblock, cards: list[Bytes]) -> None:
        """Show cards as a pool; each is a writable uint8 array of ``card_bytes``, and `close` empties the list."""
        self.name = name
        self.uuid: uuid.UUID = superblock.uuid
        self.cards = cards
        self.card_bytes = superblock.geometry.card_bytes
        self.interleave_bytes = superblock.geometry.interleave_bytes
        self.hosts = superblock.geometry.hosts
        self.max_ranks = superblock.geometry.max_ranks
        self.data_offset = superblock.geometry.data_offset

    def __repr__(self) -> str:
        cards = f"{counted(len(self.cards), 'card')} of {format_bytes(self.card_bytes)}" if self.cards else "closed"
        return f"<{type(self).__name__} {self.name}: {cards}>"

    # --- what a backend's pool may know better -------------------------------------------------------------------

    def line_memory(self, cards: Sequence[Bytes] | None = None, *, writable: bool = True) -> HostMemory:
        """Return a memory for lines that travel one by one, and that no emulated cache keeps.

        It is stateless, so that threads may share it.
        """
        return DirectMemory(self.cards if cards is None else cards, writable=writable)

    def part(self, card: int, offset: int, nbytes: int, *, writable: bool = True) -> Bytes:
        """Return some bytes of a card; where the pool can, they are mapped alone, and read-only unless ``writable``."""
        part = self.cards[card][offset : offset + nbytes]
        part.flags.writeable = writable
        return part

    def back(self, card: int, offset: int, nbytes: int) -> None:
        """Take memory for bytes of a card, where the pool is sparse. What is there already stays."""

    def unback(self, card: int, offset: int, nbytes: int) -> None:
        """Give back the memory of whole pages, not in use, of a card of a sparse pool: they are zeros then."""

    @property
    def lock_path(self) -> Path:
        """The file by whose lock managers of the pool on this machine take turns."""
        raise ArgumentError(f"pool {self.name} has no file that managers could lock: its capacity cannot be lent")

    def host_cache(self, host: int) -> HostCache:
        """Open the cache that the processes of an emulated host share."""
        if not self.cache_paths:
            raise PoolError(f"pool {self.name} has no caches of emulated hosts")
        return open_cache(self.cards, self.cache_paths, host)

    def with_caches(self, hosts: int) -> tuple[str, ...]:
        """Make files for the caches of ``hosts`` emulated hosts, which live until this pool is closed."""
        self._cache_files = CacheFiles(hosts, len(self.cards), self.card_bytes)
        self.cache_paths = self._cache_files.paths
        return self.cache_paths

    def clocks(self) -> Bytes:
        """Map the bytes that a pace's ranks share. Raises PoolError for a pool that was made without."""
        raise PoolError(f"pool {self.name} was made without clocks for a pace")

    def unlink(self) -> None:
        """Remove the pool's names, if it has some and this process owns them; attached processes stay attached."""

    def remove_if_owner_died(self) -> None:
        """Remove what a dead owner left, and nothing that another pool has made under its name since."""

    # --- leaving -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the mappings; twice is fine. Bytes that another array still shows go with that array."""
        self.cards.clear()
        if self._cache_files is not None:
            self._cache_files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
