"""What a host sees of the pool, on each backend: coherent memory, an emulated cache, or a real card."""

from typing import TYPE_CHECKING

from cxlemu.lazy import imported_when_asked_for

if TYPE_CHECKING:
    from cxlemu.memory.backend import BACKENDS, WORST_CASE, Backend, MemorySpec
    from cxlemu.memory.cache import HostCache, host_segment_bytes
    from cxlemu.memory.rates import DEFAULT_RATES, AdversaryRates

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

__getattr__ = imported_when_asked_for(
    __name__,
    backend=["BACKENDS", "WORST_CASE", "Backend", "MemorySpec"],
    cache=["HostCache", "host_segment_bytes"],
    rates=["DEFAULT_RATES", "AdversaryRates"],
)
