"""Shared memory behind a cache of each emulated host: another host sees a store after a flush and a new fetch."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, closing

from cxlemu.errors import ArgumentError
from cxlemu.memory.adversary import Adversary
from cxlemu.memory.backend import Backend, MemorySpec
from cxlemu.memory.cache import HostCache
from cxlemu.memory.damage import Damage
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes, HostMemory
from cxlemu.memory.shadow import ShadowMemory
from cxlemu.pool.pool import NewPool, Pool
from cxlemu.pool.shm import ShmPool, attach_by_name


class Emulated(Backend):
    """Shared memory behind emulated caches, which an adversary may disturb.

    Without an adversary no line leaves a cache by itself.
    """

    summary = "shared memory behind caches that nothing keeps coherent"
    where = "POSIX shared memory, behind a cache of each emulated host"
    guarantees = "nothing: another host's stores are visible once they were flushed and the line is fetched again"
    emulates_caches = True
    maps_cards = False  # NumPy cannot store through an emulated cache
    passes = 4  # the cache copies twice what a rank writes, and copies what a rank reads

    def describe(self, spec: MemorySpec) -> str:
        """Name the adversary's seed and rates, or the worst case without one."""
        if spec.seed is None:
            return "non-coherent, worst case (nothing leaves a cache by itself)"
        return f"non-coherent, adversary seed {spec.seed} ({spec.rates})"

    def open(
        self, spec: MemorySpec, cards: Sequence[Bytes], *, host_cache: HostCache | None, host: int, rank: int
    ) -> HostMemory:
        """Return one rank's memory on the cache of its host, with an adversary from ``spec.seed``, host and rank."""
        if host_cache is None:
            raise ArgumentError("an emulated memory needs the cache of its host: give open() a host_cache")
        if spec.seed is None:
            return ShadowMemory(host_cache)
        lines = cards[0].nbytes // LINE_BYTES
        return ShadowMemory(host_cache, Adversary(spec.seed, spec.rates, host=host, rank=rank, card_lines=lines))

    def native_memory(self, memory: HostMemory) -> NativeShadowMemory:
        """Return the cache in C behind ``memory``. Raises ArgumentError unless it is native or a ShadowMemory."""
        if isinstance(memory, NativeShadowMemory):
            return memory
        if isinstance(memory, ShadowMemory):
            return memory.native
        raise ArgumentError(f"the native engine reaches an emulated cache through a ShadowMemory, not {memory!r}")

    def create_pool(self, spec: MemorySpec, new: NewPool) -> Pool:
        """Create a pool in shared memory, with a segment for each host's cache. Raises as `ShmPool.create`."""
        return ShmPool.create(**new._asdict())

    def attach_pool(self, spec: MemorySpec, name: str | None, *, deadline_s: float) -> Pool:
        """Attach the pool called ``name`` once it is complete. Raises as `ShmPool.attach`; ArgumentError for None."""
        return attach_by_name(name, deadline_s)

    def private_caches(self, pool: Pool, hosts: set[int]) -> dict[int, HostCache | None]:
        """Return a cache of each host in this process's memory; they share one record of hardware damage."""
        damage = Damage.none()
        return {host: HostCache.private(pool.cards, host=host, damage=damage) for host in hosts}

    def shared_cache(self, pool: Pool, host: int) -> AbstractContextManager[HostCache | None]:
        """Open the cache in the segment of ``host``; close it at the end. Raises PoolError if the pool was removed."""
        return closing(pool.host_cache(host))


BACKEND = Emulated()
