"""Coherent shared memory: the baseline that shows what non-coherence costs."""

from collections.abc import Sequence

from cxlemu.memory.backend import EVERYTHING, Backend, MemorySpec
from cxlemu.memory.cache import HostCache
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.pool.pool import NewPool, Pool
from cxlemu.pool.shm import ShmPool, attach_by_name


class Shm(Backend):
    """Shared memory that this machine keeps coherent: all steps that keep caches right are elided."""

    summary = "coherent shared memory"
    where = "POSIX shared memory"
    guarantees = "coherence: a store is in the pool at once, a load is never stale"
    elides = EVERYTHING
    shares_processes = True
    instead = "the release of SIGNAL and the acquire of WAIT"

    def describe(self, spec: MemorySpec) -> str:
        return "coherent shared memory"

    def open(
        self, spec: MemorySpec, cards: Sequence[Bytes], *, host_cache: HostCache | None, host: int, rank: int
    ) -> HostMemory:
        """Return a memory that stores to the cards themselves; it needs no ``host_cache``, ``host`` or ``rank``."""
        return DirectMemory(cards)

    def create_pool(self, spec: MemorySpec, new: NewPool) -> Pool:
        """Create a pool in shared memory without segments for hosts' caches. Raises as `ShmPool.create`."""
        return ShmPool.create(**new._replace(hosts=0)._asdict())  # hosts need no segments: they have no caches

    def attach_pool(self, spec: MemorySpec, name: str | None, *, deadline_s: float) -> Pool:
        """Attach the pool called ``name`` once it is complete. Raises as `ShmPool.attach`; ArgumentError for None."""
        return attach_by_name(name, deadline_s)


BACKEND = Shm()
