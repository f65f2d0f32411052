"""A grant as a pool: this process maps the grant's bytes of every card, and the pool's table, and no other byte of it.

The table is mapped read-only, but for the pages of the grant's own slot. In the grant lie

    0              session area   as in any pool, but from the first byte on, card 0
    data_offset    data arena     to the end, the same on every card
"""

from __future__ import annotations

from pathlib import Path

from cxlemu.capacity.lease import Lease
from cxlemu.capacity.table import Table
from cxlemu.errors import PoolError
from cxlemu.memory import MemorySpec
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.pool.pool import Pool
from cxlemu.pool.superblock import PAGE_BYTES, SESSION_LINES_PER_RANK
from cxlemu.rounding import round_down, round_up


class TenantPool(Pool):
    """A grant as the pool of one tenant. Offsets count from the grant's first byte of each card."""

    def __init__(self, whole: Pool, lease: Lease) -> None:
        """Use ``attach``."""
        grant, self.lease = lease.grant, lease
        table = Table.of(whole, whole.line_memory())
        self.name, self.uuid, self.hosts = whole.name, whole.uuid, 0
        self.card_bytes, self.interleave_bytes = grant.nbytes, whole.interleave_bytes
        self.max_ranks = table.ranks
        session_bytes = (1 + SESSION_LINES_PER_RANK * self.max_ranks) * LINE_BYTES
        self.session_offset, self.data_offset = 0, round_up(session_bytes, PAGE_BYTES)
        self.cards = [whole.part(card, grant.at, grant.nbytes) for card in range(len(whole.cards))]
        begin, end = table.uses_of(lease.slot)
        begin, end = round_down(begin, whole.align_bytes), round_up(end, whole.align_bytes)
        self.table = table.for_tenant(
            lease.slot,
            whole.line_memory([whole.part(0, 0, table.end, writable=False)], writable=False),
            uses=whole.line_memory([whole.part(0, begin, end - begin)]),
            uses_at=begin,
        )
        self._lock_path = whole.lock_path

    @property
    def lock_path(self) -> Path:
        """The lock file of the pool that the grant is part of."""
        return self._lock_path

    @classmethod
    def attach(cls, lease: Lease, memory: MemorySpec, deadline_s: float) -> TenantPool:
        """Map the grant's bytes of every card, and the pool's table, once the pool is complete."""
        with memory.backend.attach_pool(memory, lease.pool, deadline_s=deadline_s) as whole:
            if len(whole.cards) != lease.cards or lease.grant.end > whole.card_bytes:
                raise PoolError(f"pool {lease.pool} is not the pool of {lease.describe()}")
            return cls(whole, lease)
