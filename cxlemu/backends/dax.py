"""Real CXL devices through device-DAX, or files that stand in for them: coherent within a host only."""

from __future__ import annotations

from collections.abc import Sequence
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
    summary = "real CXL devices"
    where = "device-DAX, or files that stand in for cards"
    guarantees = "coherence within a host only"
    on_devices = True

    def describe(self, spec: MemorySpec) -> str:
        return f"real cards, reached with {lines_instructions()}"

    def describe_cards(self, spec: MemorySpec) -> str:
        with DaxPool.attach(spec.devices, spec.pool) as pool:
            return pool.describe()

    def open(
        self, spec: MemorySpec, cards: Sequence[Bytes], *, host_cache: HostCache | None, host: int, rank: int
    ) -> HostMemory:
        return DaxMemory(cards)

    def create_pool(self, spec: MemorySpec, new: NewPool) -> Pool:
        if new.name is not None:
            raise ArgumentError(f"a pool on devices has a UUID, it takes no name such as {new.name!r}")
        return DaxPool.attach(spec.devices, spec.pool)

    def attach_pool(self, spec: MemorySpec, name: str | None, *, deadline_s: float) -> Pool:
        try:
            uuid = spec.pool if name is None else UUID(name)
        except ValueError:
            raise ArgumentError(f"a pool on devices has a UUID, it takes no name such as {name!r}") from None
        return DaxPool.attach(spec.devices, uuid)

    def found_cards(self, spec: MemorySpec) -> FoundCards:
        with DaxPool.attach(spec.devices, spec.pool) as pool:
            return FoundCards(len(pool.cards), pool.card_bytes, pool.interleave_bytes, f"pool {pool.uuid}")


BACKEND = Dax()
