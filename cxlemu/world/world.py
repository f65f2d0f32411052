"""A world: what all its ranks agree on before there is a pool, how its pool is made, and how others come to it."""

from __future__ import annotations

import hashlib
import json
import pickle
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from cxlemu.capacity.lease import Lease
from cxlemu.capacity.table import header_of
from cxlemu.capacity.tenant_pool import TenantPool
from cxlemu.errors import AccessError, ArgumentError, MismatchError
from cxlemu.memory import HostCache, MemorySpec, host_segment_bytes
from cxlemu.numbers import seconds, whole, wholes
from cxlemu.pool.ledger import ledger_bytes
from cxlemu.pool.pool import NewClocks, NewPool, Pool
from cxlemu.pool.room import RANK_BYTES
from cxlemu.pool.session_area import FINGERPRINT_BYTES
from cxlemu.rounding import round_up
from cxlemu.units import format_bytes
from cxlemu.version import __version__
from cxlemu.world.heaps import ALIGN_BYTES, card_bytes_with_heaps, check_heap_bytes, heap_bytes_in, usual_heap_bytes
from cxlemu.world.outline import Outline

if TYPE_CHECKING:
    from cxlemu.engines.pace import Clocks, Pace, Pacer
    from cxlemu.topology import Topology


@dataclass(frozen=True)
class World:
    """What all ranks agree on, before there is a pool.

    Raises ArgumentError for values that do not fit each other.
    """

    ranks: int  # number of ranks, at least 1
    topology: Topology  # the machine that the world runs on
    memory: MemorySpec  # the backend and its options
    deadline_s: float  # bound on every single wait, in seconds
    launch: str  # "threads", "processes" or the name of the launcher
    pace: Pace | None = None  # makes ranks take modelled time; None: they take this machine's
    lease: Lease | None = None  # the grant of a tenant's world; its pool is a part of one that is there already
    placement: tuple[int, ...] | None = None  # the host of each rank; None: as the topology places them
    # the pool's cards get memory as communicators take room there, where the backend can do that. They are then as
    # large as the heaps want them, whatever the topology says
    sparse: bool = False
    # each rank's part of the heap of the world's communicator; None: what its room leaves
    heap_bytes: int | None = None
    # files that the processes of each emulated host share for its cache; where there are none, the pool has them
    caches: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        numbers: dict[str, Any] = {"ranks": whole(self.ranks, "ranks", 1)}
        numbers["deadline_s"] = seconds(self.deadline_s, "deadline_s", above_0=True)
        if self.heap_bytes is not None:
            numbers["heap_bytes"] = whole(self.heap_bytes, "heap_bytes")
        if self.placement is not None:
            numbers["placement"] = wholes(self.placement, "hosts")
        for name, number in numbers.items():
            object.__setattr__(self, name, number)
        if self.pace is not None and self.memory.backend.on_devices:
            raise ArgumentError("a pace is for emulated pools: real cards have their own time")
        if self.pace is not None and self.lease is not None:
            raise ArgumentError("a pace is for a whole pool: tenants share no clocks")
        if self.placement is not None and len(self.placement) != self.ranks:
            raise ArgumentError(f"{self.ranks} ranks are not placed by the hosts {self.placement}")

    def __getstate__(self) -> dict[str, Any]:
        """Return the world as another process gets it: with its outline, and its topology folded up."""
        state = {"hosts": self.hosts, "outline": self.outline, "_folded_topology": self._folded_topology}
        return {name: value for name, value in (self.__dict__ | state).items() if name != "topology"}

    @cached_property
    def _folded_topology(self) -> bytes:
        return pickle.dumps(self.topology)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Unfold the topology, which few ranks do: its model takes long to import."""
            if name != "topology" or "_folded_topology" not in self.__dict__:
                raise AttributeError(f"a world has no attribute {name!r}")
            return self.__dict__.setdefault(name, pickle.loads(self._folded_topology))

    @cached_property
    def outline(self) -> Outline:
        return Outline.of(self.topology, self.ranks)

    @cached_property
    def hosts(self) -> tuple[int, ...]:
        return self.placement or self.topology.place(self.ranks)

    @cached_property
    def clocks(self) -> Clocks:
        """What the ranks of a world with a pace share: when engines, links and cards are free."""
        from cxlemu.engines.pace import Clocks  # with the cost model, which other worlds need not import

        return Clocks.of(self.topology, self.ranks)

    @property
    def card_bytes(self) -> int:
        """The size of each card of an emulated pool."""
        nbytes = self.topology.card_bytes
        if not self.sparse or self.heap_bytes is None:
            return nbytes
        return card_bytes_with_heaps(nbytes, self.outline.pool_card_count, self.ranks, self.heap_bytes)

    def with_heaps(self, heap_bytes: int | None = None) -> World:
        """Return this world with heaps of model size, or the pool's on real cards, for a tenant or with a pace."""
        heap_bytes = None if heap_bytes is None else whole(heap_bytes, "heap_bytes")
        grows = self.lease is None and self.pace is None and not self.memory.backend.on_devices
        if not grows or heap_bytes == 0:
            return replace(self, heap_bytes=heap_bytes)
        hosts = max(self.hosts) + 1 if self.memory.backend.emulates_caches else 0
        if heap_bytes is None:
            cards, most = self.outline.pool_card_count, self.topology.smallest_card_bytes
            heap_bytes = usual_heap_bytes(self.topology.card_bytes, cards, self.ranks, hosts, most)
        else:
            check_heap_bytes(heap_bytes, self.ranks, hosts)
            heap_bytes = round_up(heap_bytes, ALIGN_BYTES)
        return self if heap_bytes is None else replace(self, sparse=True, heap_bytes=heap_bytes)

    def join_pool(self, name: str) -> tuple[Pool, World]:
        """Attach the pool that another process made, and take the size of the heaps from it."""
        pool = self.attach_pool(name)
        try:
            made_bytes = heap_bytes_in(
                pool.card_bytes, self.topology.card_bytes, self.outline.pool_card_count, self.ranks
            )
            if self.heap_bytes is not None and round_up(self.heap_bytes, ALIGN_BYTES) != (made_bytes or 0):
                made = "none" if made_bytes is None else format_bytes(made_bytes)
                raise MismatchError(
                    f"this rank asks for heaps of {format_bytes(self.heap_bytes)}, rank 0 made {made}: all ranks ask "
                    f"for the same heap_bytes"
                )
        except BaseException:
            pool.close()
            raise
        if made_bytes is None:
            return pool, self
        pool.sparse = True
        return pool, replace(self, sparse=True, heap_bytes=made_bytes)

    def create_pool(self, name: str | None) -> Pool:
        """Create a fresh pool that this process owns (None: a unique name); on devices or for a tenant, attach it."""
        if self.lease is not None:
            return TenantPool.attach(self.lease, self.memory, self.deadline_s)
        cards = self.outline.pool_card_count + self.outline.memories
        launched = self.launch in ("threads", "processes")  # then caches are theirs, and not in the pool
        new = NewPool(
            name,
            cards=cards,
            card_bytes=self.card_bytes,
            interleave_bytes=self.topology.interleave_bytes,
            hosts=0 if launched else max(self.hosts) + 1,
            beside_bytes=self._beside_bytes(cards, its_caches=launched),
            numa_node=self.topology.pool_numa_node,
            max_ranks=self.ranks,
            clocks=None if self.pace is None else self._new_clocks(self.pace),
            sparse=self.sparse,
        )
        pool = _not_lent(self.memory.backend.create_pool(self.memory, new))
        ledgers = ledger_bytes(self.ranks, pool.card_bytes)
        pool.back(0, pool.card_bytes - ledgers, ledgers)
        return pool

    def _beside_bytes(self, cards: int, *, its_caches: bool) -> int:
        """What the ranks take beside the pool: processes, and the caches of emulated hosts once they are full."""
        nbytes = self.ranks * RANK_BYTES if self.launch == "processes" else 0
        if its_caches and self.memory.backend.emulates_caches:
            nbytes += (max(self.hosts) + 1) * host_segment_bytes(cards, self.topology.card_bytes)
        return nbytes

    def _new_clocks(self, pace: Pace) -> NewClocks:
        from cxlemu.engines.pace import suitable_time_scale

        scale = pace.time_scale or suitable_time_scale(self.topology, self.ranks, self.memory.kind).value
        return NewClocks(self.clocks.nbytes, partial(self.clocks.make, time_scale=scale))

    def pacer(self, pool: Pool, rank: int) -> Pacer | None:
        """Return what makes one rank's instructions take their time; None in a world without a pace."""
        return None if self.pace is None else self.clocks.pacer(pool.clocks(), rank)

    def attach_pool(self, name: str) -> Pool:
        """Attach the pool that another process of this world made, by its name in /dev/shm or its UUID on devices."""
        if self.lease is not None:
            pool: Pool = TenantPool.attach(self.lease, self.memory, self.deadline_s)
        else:
            pool = self.memory.backend.attach_pool(self.memory, name, deadline_s=self.deadline_s)
        pool.cache_paths, pool.sparse = self.caches, self.sparse
        return pool

    def sharing(self, pool: Pool) -> World:
        """Return this world as its other processes get it: they find the caches of its emulated hosts."""
        if not self.memory.backend.emulates_caches or self.launch != "processes":
            return self
        return replace(self, caches=pool.with_caches(max(self.hosts) + 1))

    def shared_host_cache(self, pool: Pool, rank: int) -> AbstractContextManager[HostCache | None]:
        """Open the cache that the processes of the rank's host share; None where caches are not emulated."""
        return self.memory.backend.shared_cache(pool, self.hosts[rank])

    def fingerprint(self, pool: Pool) -> bytes:
        """Digest what all ranks of a world must agree on, for `Session.open`.

        That is the version, the topology and the placement of ranks, the memory, whether there is a pace, the pool and
        the number of the grant.
        """
        agreed = json.dumps(
            [
                __version__,
                self.ranks,
                self.outline.digest,
                self.hosts,
                repr(self.memory),
                self.pace is not None,
                pool.uuid.hex,
                None if self.lease is None else self.lease.grant.number,
            ]
        )
        return hashlib.blake2b(agreed.encode(), digest_size=FINGERPRINT_BYTES).digest()


def _not_lent(pool: Pool) -> Pool:
    """Return ``pool``, unless its capacity is lent to tenants: that is an AccessError.

    A run without a tenant would overwrite what the tenants hold.
    """
    if header_of(pool, pool.line_memory()) is not None:
        pool.close()
        lent = f"the capacity of pool {pool.uuid} is lent to tenants"
        raise AccessError(f"{lent}: name this world's tenant, or take another pool")
    return pool
