"""What a host sees of the pool: ideal coherent memory, or a cache that no other host keeps coherent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cxlemu.errors import ArgumentError
from cxlemu.memory.adversary import DEFAULT_RATES, Adversary, AdversaryRates
from cxlemu.memory.cache import HostCache, host_segment_bytes
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import LINE_BYTES, Bytes, HostMemory
from cxlemu.memory.shadow import ShadowMemory

__all__ = ["DEFAULT_RATES", "WORST_CASE", "AdversaryRates", "HostCache", "MemorySpec", "host_segment_bytes"]


@dataclass(frozen=True, slots=True)
class MemorySpec:
    """Which memory a world's ranks get. Picklable: every process opens its own from the same specification.

    ``seed`` None is the shadow cache's never-evict worst case; a number adds an adversary with ``rates``.
    """

    kind: Literal["shadow", "ideal"] = "shadow"
    seed: int | None = None
    rates: AdversaryRates = DEFAULT_RATES

    def __post_init__(self) -> None:
        if self.kind not in ("shadow", "ideal"):
            raise ArgumentError(f"memory kind must be 'shadow' or 'ideal', not {self.kind!r}")
        if self.seed is not None and (self.kind == "ideal" or self.seed < 0):
            raise ArgumentError(
                f"an adversary's seed must be a non-negative number for a shadow memory, "
                f"not {self.seed} for {self.kind!r}"
            )

    def open(self, cards: Sequence[Bytes], *, host_cache: HostCache | None, host: int, rank: int) -> HostMemory:
        """One rank's memory on the cache of its host, which ideal memory does not need.

        Ranks that are threads share the one object that HostCache.private made. Ranks that are processes make
        each its own with HostCache.shared, on their host's segment; its file can be the lock file, too.
        """
        if self.kind == "ideal":
            return DirectMemory(cards)
        if host_cache is None:
            raise ArgumentError("a shadow memory needs the cache of its host: give open() a host_cache")
        if self.seed is None:
            return ShadowMemory(host_cache)
        lines = cards[0].nbytes // LINE_BYTES
        return ShadowMemory(host_cache, Adversary(self.seed, self.rates, host=host, rank=rank, card_lines=lines))

    def describe(self) -> str:
        if self.kind == "ideal":
            return "ideal coherent"
        if self.seed is None:
            return "non-coherent, worst case (nothing leaves a cache by itself)"
        return f"non-coherent, adversary seed {self.seed} ({self.rates})"


WORST_CASE = MemorySpec()
"""No coherence and no adversary: nothing leaves a cache by itself, the worst case for staleness."""
