"""A grant as the pool of one tenant: the same bytes of every card, and nothing else of them.

0              session area   as in any pool, but from the first byte on, card 0
data_offset    data arena     to the end, the same on every card
"""

from __future__ import annotations

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.pool.superblock import PAGE_BYTES, SESSION_LINES_PER_RANK
from cxlemu.rounding import round_up

SESSION_OFFSET = 0


def data_offset(max_ranks: int) -> int:
    """Return the first byte of a grant's data arena: a session area for ``max_ranks`` ranks, in whole pages."""
    return round_up((1 + SESSION_LINES_PER_RANK * max_ranks) * LINE_BYTES, PAGE_BYTES)
