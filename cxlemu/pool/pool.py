"""What a rank uses of a pool, wherever its bytes live."""

from __future__ import annotations

import uuid
from types import TracebackType
from typing import Self

from cxlemu.memory.protocol import Bytes
from cxlemu.pool.superblock import SESSION_OFFSET, Superblock


class Pool:
    """Cards as writable byte arrays that every attached process shares.

    ``cards[i]`` is a uint8 array of ``card_bytes``; its first ``data_offset`` bytes are the superblock and,
    on card 0 from ``session_offset``, the session area.
    """

    session_offset = SESSION_OFFSET

    def __init__(self, name: str, superblock: Superblock, cards: list[Bytes]) -> None:
        self.name = name
        self.uuid: uuid.UUID = superblock.uuid
        self.cards = cards
        self.card_bytes = superblock.geometry.card_bytes
        self.interleave_bytes = superblock.geometry.interleave_bytes
        self.hosts = superblock.geometry.hosts
        self.max_ranks = superblock.geometry.max_ranks
        self.data_offset = superblock.geometry.data_offset

    def close(self) -> None:
        """Let go of the mappings; twice is fine. What another array still shows goes with that array."""
        self.cards.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
