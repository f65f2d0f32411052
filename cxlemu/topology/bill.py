"""What a fabric's parts cost and draw, added up. Hosts and accelerators are no part of it."""

from __future__ import annotations

from cxlemu.errors import ArgumentError
from cxlemu.topology.fields import Item
from cxlemu.topology.model import Topology

# What is added up, from the least to all.
SUMS: dict[str, frozenset[str]] = {
    "switches": frozenset({"switch"}),
    "without cards": frozenset({"switch", "adapter", "cable"}),
    "all": frozenset({"switch", "adapter", "cable", "card"}),
}


def bill_of(topology: Topology) -> tuple[Item, ...]:
    """Raises ArgumentError for a topology that says no prices."""
    if topology.bill is None:
        raise ArgumentError(f"{topology.name} has no bill: give its parts with price_usd and power_watts under bill")
    return topology.bill


def price_usd(bill: tuple[Item, ...], what: str = "all") -> float:
    """Of those of SUMS."""
    return sum(item.count * item.price_usd for item in bill if item.kind in SUMS[what])


def power_watts(bill: tuple[Item, ...], what: str = "all") -> float:
    return sum(item.count * item.power_watts for item in bill if item.kind in SUMS[what])
