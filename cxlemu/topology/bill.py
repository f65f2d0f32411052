"""Add up what a fabric's parts cost and draw. Hosts and accelerators are no part of it."""

from cxlemu.errors import ArgumentError
from cxlemu.topology.fields import Item
from cxlemu.topology.model import Topology

# The kinds of items that each sum adds up, from the least to all.
SUMS: dict[str, frozenset[str]] = {
    "switches": frozenset({"switch"}),
    "without cards": frozenset({"switch", "adapter", "cable"}),
    "all": frozenset({"switch", "adapter", "cable", "card"}),
}


def bill_of(topology: Topology) -> tuple[Item, ...]:
    """Return the items of a topology's bill. Raises ArgumentError for a topology without one."""
    if topology.bill is None:
        raise ArgumentError(f"{topology.name} has no bill: give its parts with price_usd and power_watts under bill")
    return topology.bill


def price_usd(bill: tuple[Item, ...], what: str = "all") -> float:
    """Add up the US dollars of the items that ``what``, a key of ``SUMS``, counts."""
    return sum(item.count * item.price_usd for item in bill if item.kind in SUMS[what])


def power_watts(bill: tuple[Item, ...], what: str = "all") -> float:
    """Add up the watts of the items that ``what``, a key of ``SUMS``, counts."""
    return sum(item.count * item.power_watts for item in bill if item.kind in SUMS[what])
