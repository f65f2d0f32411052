"""What a host sees of the pool, on each backend: coherent memory, an emulated cache, or a real card."""

from __future__ import annotations

from cxlemu.memory.adversary import DEFAULT_RATES, AdversaryRates
from cxlemu.memory.backend import BACKENDS, Backend, MemorySpec
from cxlemu.memory.cache import HostCache, host_segment_bytes

__all__ = [
    "BACKENDS",
    "DEFAULT_RATES",
    "WORST_CASE",
    "AdversaryRates",
    "Backend",
    "HostCache",
    "MemorySpec",
    "host_segment_bytes",
]

WORST_CASE = MemorySpec()
"""No coherence and no adversary: nothing leaves a cache by itself, the worst case for staleness."""
