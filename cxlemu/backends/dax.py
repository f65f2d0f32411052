"""Real CXL devices through device-DAX, or files that stand in for them: coherent within a host only."""

from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from cxlemu._native import lines_instructions
from cxlemu.errors import ArgumentError
from cxlemu.memory.backend import Backend, FoundCards, MemorySpec
from cxlemu.memory.cache import HostCache
from cxlemu.memory.dax import DaxMemory
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.pool.dax import DaxPool
from cxlemu.pool.pool import NewPool, Pool


class Dax(Backend):
    """Real CXL devices: ranks map them, and flush, fence and invalidate with this machine's cache-line instructions."""

    summary = "real CXL devices"
    where = "device-DAX, or files that stand in for cards"
    guarantees = "coherence within a host only"
    on_devices = True

    def describe(self, spec: MemorySpec) -> str:
        """Say whether the cards are real, and name the cache-line instructions with which ranks reach them."""
        are_files = bool(spec.devices) and all(Path(device).is_file() for device in spec.devices)
        return f"{'files in place of devices' if are_files else 'real cards'}, reached with {lines_instructions()}"

    def describe_cards(self, spec: MemorySpec) -> str:
        """Describe the cards of the pool on ``spec.devices``, and how each is mapped. Raises as `DaxPool.attach`."""
        with DaxPool.attach(spec.devices, spec.pool) as pool:
            return pool.describe()

    def open(
        self, spec: MemorySpec, cards: Sequence[Bytes], *, host_cache: HostCache | None, host: int, rank: int
    ) -> HostMemory:
        """Return a memory that stores to the cards themselves; it needs no ``host_cache``, ``host`` or ``rank``."""
        return DaxMemory(cards)

    def create_pool(self, spec: MemorySpec, new: NewPool) -> Pool:
        """Attach the pool on ``spec.devices``, which is there before a run and stays after it.

        All of ``new`` but its name, which is refused, is ignored: the cards are what they are.
        """
        if new.name is not None:
            raise ArgumentError(f"a pool on devices has a UUID and takes no name such as {new.name!r}")
        return DaxPool.attach(spec.devices, spec.pool)

    def attach_pool(self, spec: MemorySpec, name: str | None, *, deadline_s: float) -> Pool:
        """Attach the pool on ``spec.devices`` at once: that with this UUID, or that ``spec`` names, or the only one."""
        try:
            uuid = spec.pool if name is None else UUID(name)
        except ValueError:
            raise ArgumentError(f"a pool on devices has a UUID and takes no name such as {name!r}") from None
        return DaxPool.attach(spec.devices, uuid)

    def found_cards(self, spec: MemorySpec) -> FoundCards:
        """Return number, size and interleaving of the pool's cards on ``spec.devices``. Raises as `DaxPool.attach`."""
        with DaxPool.attach(spec.devices, spec.pool) as pool:
            return FoundCards(len(pool.cards), pool.card_bytes, pool.interleave_bytes, f"pool {pool.uuid}")


BACKEND = Dax()
