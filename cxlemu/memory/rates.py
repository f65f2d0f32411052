"""How often nature moves lines, as :mod:`cxlemu.memory.adversary` draws it."""

from dataclasses import dataclass, fields

from cxlemu.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class AdversaryRates:
    """Probability of each of nature's moves, before and again after each memory operation but a poll."""

    evict: float = 0.05  # probability of an eviction, from 0 (never) to 1
    prefetch: float = 0.1  # probability of a prefetch, from 0 to 1
    land: float = 0.05  # probability that posted writes arrive, from 0 to 1

    def __post_init__(self) -> None:
        for field in fields(self):
            rate = getattr(self, field.name)
            if not (isinstance(rate, int | float) and 0 <= rate <= 1):
                raise ArgumentError(f"adversary rate {field.name} must be from 0 to 1, not {rate!r}")

    def __str__(self) -> str:
        return ", ".join(f"{field.name} {getattr(self, field.name):g}" for field in fields(self))


DEFAULT_RATES = AdversaryRates()
