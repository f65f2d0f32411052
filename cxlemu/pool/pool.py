"""What ranks and managers use of a pool, wherever its bytes live."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from cxlemu.errors import ArgumentError, PoolError
from cxlemu.memory.cache import HostCache
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.pool.superblock import PAGE_BYTES, SESSION_OFFSET, Superblock


class NewClocks(NamedTuple):
    """A segment of ``nbytes`` for a pace (see cxlemu/engines/pace.py), and what makes its zeros ready for the ranks."""

    nbytes: int
    make: Callable[[Bytes], None]


class NewPool(NamedTuple):
    """The pool that a world wants.

    Attributes:
        name: under which other processes find it; None for one that nobody else has.
        cards: how many.
        card_bytes: of each.
        interleave_bytes: the granule by which regions go round the cards.
        hosts: how many hosts the world's ranks are on.
        max_ranks: for how many ranks the session area has lines.
        numa_node: where the pages of its cards lie; None for anywhere.
        clocks: what a pace's ranks share; None without a pace.
    """

    name: str | None
    cards: int
    card_bytes: int
    interleave_bytes: int
    hosts: int
    max_ranks: int
    numa_node: int | None = None
    clocks: NewClocks | None = None


class Pool:
    """Cards as writable byte arrays that every attached process shares.

    ``cards[i]`` is a uint8 array of ``card_bytes``; its first ``data_offset`` bytes are the superblock and,
    on card 0 from ``session_offset``, the session area. A backend's pool says what differs there.
    """

    session_offset = SESSION_OFFSET
    align_bytes = PAGE_BYTES  # parts of a card are mapped in whole multiples of this
    spans_machines = False  # processes of other machines can attach it

    def __init__(self, name: str, superblock: Superblock, cards: list[Bytes]) -> None:
        self.name = name
        self.uuid: uuid.UUID = superblock.uuid
        self.cards = cards
        self.card_bytes = superblock.geometry.card_bytes
        self.interleave_bytes = superblock.geometry.interleave_bytes
        self.hosts = superblock.geometry.hosts
        self.max_ranks = superblock.geometry.max_ranks
        self.data_offset = superblock.geometry.data_offset

    # --- what a backend's pool may know better -------------------------------------------------------------------

    def line_memory(self, cards: Sequence[Bytes] | None = None) -> HostMemory:
        """A memory for lines that travel one by one, and that no emulated cache keeps.

        Stateless, so that threads may share it.

        Args:
            cards: uint8 arrays that show bytes of this pool; by default its cards.
        """
        return DirectMemory(self.cards if cards is None else cards)

    def part(self, card: int, at: int, nbytes: int) -> Bytes:
        """The ``nbytes`` bytes from ``at`` on of a card; mapped alone, where the pool can do that."""
        return self.cards[card][at : at + nbytes]

    @property
    def lock_path(self) -> Path:
        """The file by whose lock managers of the pool on this machine take turns."""
        raise ArgumentError(f"pool {self.name} has no file that managers could lock: its capacity cannot be lent")

    def host_cache(self, host: int) -> HostCache:
        """The cache that the processes of an emulated host share. Raises PoolError where it is gone, or never was."""
        raise PoolError(f"pool {self.name} has no caches of emulated hosts")

    def clocks(self) -> Bytes:
        """The bytes that a pace's ranks share. Raises PoolError for a pool that was made without."""
        raise PoolError(f"pool {self.name} was made without clocks for a pace")

    def unlink(self) -> None:
        """Remove the pool's names, where it has some and this process owns them; who is attached stays attached."""

    def remove_if_owner_died(self) -> None:
        """Remove what a dead owner left, and nothing that another pool has made under its name since."""

    # --- leaving -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Let go of the mappings; twice is fine. What another array still shows goes with that array."""
        self.cards.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
