"""A grant as a pool: this process maps the grant's bytes of every card, and the pool's table, and no other byte of it.

The table is mapped read-only, but for the pages of the grant's own slot.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from cxlemu.capacity.lease import Lease
from cxlemu.capacity.table import Table
from cxlemu.capacity.window import SESSION_OFFSET, data_offset
from cxlemu.errors import PoolError
from cxlemu.memory import HostCache, MemorySpec, host_segment_bytes
from cxlemu.memory.cache import damage_in
from cxlemu.memory.protocol import Bytes
from cxlemu.pool import segments
from cxlemu.pool.pool import Pool
from cxlemu.rounding import round_down, round_up


class TenantPool(Pool):
    """A grant as the pool of one tenant. Offsets count from the grant's first byte of each card.

    Attributes:
        lease: The grant, and the pool that it is part of.
        table: The pool's capacity table.
    """

    def __init__(self, whole: Pool, lease: Lease) -> None:
        """Use ``attach``."""
        grant, self.lease = lease.grant, lease
        table = Table.of(whole, whole.line_memory())
        self.name, self.uuid, self.hosts = whole.name, whole.uuid, 0
        self.card_bytes, self.interleave_bytes = grant.nbytes, whole.interleave_bytes
        self.max_ranks = table.ranks
        self.session_offset, self.data_offset = SESSION_OFFSET, data_offset(self.max_ranks)
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
        self._files: list[int] = []

    @property
    def lock_path(self) -> Path:
        """The lock file of the pool that the grant is part of."""
        return self._lock_path

    @classmethod
    def attach(cls, lease: Lease, memory: MemorySpec, deadline_s: float) -> TenantPool:
        """Map the grant's bytes of every card, and the pool's table.

        Args:
            lease: The grant, and the pool that it is part of.
            memory: The backend of the pool, with its devices.
            deadline_s: How long to wait until the pool is complete, in seconds.

        Raises:
            PoolError: The pool is not there any more, or is another one.
        """
        with memory.backend.attach_pool(memory, lease.pool, deadline_s=deadline_s) as whole:
            if len(whole.cards) != lease.cards or lease.grant.end > whole.card_bytes:
                raise PoolError(f"pool {lease.pool} is not the one of {lease.describe()}")
            return cls(whole, lease)

    def with_caches(self, hosts: int) -> Lease:
        """Make files for the caches of ``hosts`` emulated hosts, which live until this pool is closed.

        Returns:
            The lease, with the files' paths.
        """
        nbytes = host_segment_bytes(len(self.cards), self.card_bytes)
        for host in range(hosts):
            self._files.append(os.memfd_create(f"cxlemu-host{host}"))
            os.ftruncate(self._files[-1], nbytes)
        return replace(self.lease, caches=tuple(f"/proc/{os.getpid()}/fd/{fd}" for fd in self._files))

    def host_cache(self, host: int) -> HostCache:
        """Open the cache that the processes of ``host`` share. Raises PoolError where its owner is gone."""
        lease = self.lease
        nbytes = host_segment_bytes(len(self.cards), self.card_bytes)
        try:
            first, its = (_shared(Path(lease.caches[number]), nbytes) for number in (0, host))
        except OSError as error:
            raise PoolError(f"the cache of host {host} is gone: its world was stopped ({error.strerror})") from None
        path = Path(lease.caches[host])
        return HostCache.shared(self.cards, its, path, host=host, damage=damage_in(first))

    def close(self) -> None:
        """Let go of the mappings, and of the files that `with_caches` made."""
        super().close()
        while self._files:
            os.close(self._files.pop())


def _shared(path: Path, nbytes: int) -> Bytes:
    with path.open("r+b") as file:
        return segments.map_shared(file.fileno(), nbytes)
