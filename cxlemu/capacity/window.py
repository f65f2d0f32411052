"""A grant as the pool of one tenant: the same bytes of every card, and nothing else of them.

0                 uses           a line for each rank that is in it, card 0 (see lines.py)
session_offset    session area   as at the beginning of any pool, card 0
data_offset       data arena     to the end, the same on every card
"""

from __future__ import annotations

from dataclasses import dataclass

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.pool.superblock import PAGE_BYTES, SESSION_LINES_PER_RANK
from cxlemu.rounding import round_up

RANKS_MIN, RANKS_MAX = 16, 1024
BYTES_PER_RANK = 64 << 10  # so many bytes of a card more are room for another rank to meet there


@dataclass(frozen=True, slots=True)
class Window:
    nbytes: int

    @property
    def max_ranks(self) -> int:
        return min(max(self.nbytes // BYTES_PER_RANK, RANKS_MIN), RANKS_MAX)

    @property
    def session_offset(self) -> int:
        return round_up(self.max_ranks * LINE_BYTES, PAGE_BYTES)

    @property
    def data_offset(self) -> int:
        lines = 1 + SESSION_LINES_PER_RANK * self.max_ranks
        return round_up(self.session_offset + lines * LINE_BYTES, PAGE_BYTES)
