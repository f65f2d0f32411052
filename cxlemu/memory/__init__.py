"""What a host sees of the pool, on each backend: coherent memory, an emulated cache, or a real card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args
from uuid import UUID

from cxlemu._native import lines_instructions
from cxlemu.errors import ArgumentError
from cxlemu.memory.adversary import DEFAULT_RATES, Adversary, AdversaryRates
from cxlemu.memory.backends import BACKENDS, Backend
from cxlemu.memory.cache import HostCache, host_segment_bytes
from cxlemu.memory.dax import DaxMemory
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes, HostMemory
from cxlemu.memory.shadow import ShadowMemory

__all__ = ["DEFAULT_RATES", "WORST_CASE", "AdversaryRates", "HostCache", "Kind", "MemorySpec", "host_segment_bytes"]

Kind = Literal["emulated", "shm", "dax"]  # the backends


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """Which memory a world's ranks get. Picklable: every process opens its own from the same specification.

    ``seed`` is for the emulated cache: None is its never-evict worst case; a number adds an adversary with ``rates``.
    ``devices`` are the paths of a dax pool's cards, in any order; with ``pool``, those of that UUID among them. Every
    machine has its own names for them, so they are not what ranks agree on, and not in the repr.
    """

    kind: Kind = "emulated"
    seed: int | None = None
    rates: AdversaryRates = DEFAULT_RATES
    devices: tuple[str, ...] = field(default=(), repr=False)
    pool: UUID | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ArgumentError(f"a backend is one of {', '.join(get_args(Kind))}, not {self.kind!r}")
        if self.seed is not None and (not self.backend.emulates_caches or self.seed < 0):
            raise ArgumentError(
                f"an adversary's seed must be a non-negative number for an emulated memory, "
                f"not {self.seed} for {self.kind!r}"
            )
        if not self.backend.on_devices and (self.devices or self.pool):
            raise ArgumentError(f"devices and their pool are for the backend 'dax', not for {self.kind!r}")

    @property
    def backend(self) -> Backend:
        return BACKENDS[self.kind]

    def open(self, cards: Sequence[Bytes], *, host_cache: HostCache | None, host: int, rank: int) -> HostMemory:
        """One rank's memory on the cache of its host, which only emulated memory has.

        Ranks that are threads share the one object that HostCache.private made. Ranks that are processes make
        each its own with HostCache.shared, on their host's segment; its file can be the lock file, too.
        """
        if not self.backend.emulates_caches:
            return DaxMemory(cards) if self.backend.on_devices else DirectMemory(cards)
        if host_cache is None:
            raise ArgumentError("an emulated memory needs the cache of its host: give open() a host_cache")
        if self.seed is None:
            return ShadowMemory(host_cache)
        lines = cards[0].nbytes // LINE_BYTES
        return ShadowMemory(host_cache, Adversary(self.seed, self.rates, host=host, rank=rank, card_lines=lines))

    def describe(self) -> str:
        if not self.backend.emulates_caches and not self.backend.on_devices:
            return "coherent shared memory"
        if self.backend.on_devices:
            return f"real cards, reached with {lines_instructions()}"
        if self.seed is None:
            return "non-coherent, worst case (nothing leaves a cache by itself)"
        return f"non-coherent, adversary seed {self.seed} ({self.rates})"


WORST_CASE = MemorySpec()
"""No coherence and no adversary: nothing leaves a cache by itself, the worst case for staleness."""
