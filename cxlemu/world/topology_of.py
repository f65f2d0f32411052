"""The machine that a world runs on: a topology, whose cards are the devices where these are real."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from cxlemu.capacity.lease import Lease
from cxlemu.choices import DEFAULT_TOPOLOGY
from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec, host_segment_bytes
from cxlemu.pool.room import RANK_BYTES, shortage

if TYPE_CHECKING:
    from cxlemu.topology import Topology

SMALLER_TOPOLOGY = "laptop"


def machine(
    topology: Topology | str | None, memory: MemorySpec, lease: Lease | None = None, *, may_be_smaller: bool = False
) -> Topology:
    """Return the topology that a world runs on, loaded if need be.

    On real cards their number, size and interleaving are the pool's, and for a tenant those of its grant.
    """
    from cxlemu.topology import Topology  # not for ranks, whose launcher has loaded theirs

    loaded = topology if isinstance(topology, Topology) else Topology.load(topology or DEFAULT_TOPOLOGY)
    chosen = topology is not None
    if lease is not None:
        cards = (lease.cards, lease.grant.nbytes, lease.interleave_bytes)
        return _with_cards(loaded, *cards, name=f"pool {lease.pool}", chosen=chosen)
    found = memory.backend.found_cards(memory)
    if found is None:
        return loaded if chosen or not may_be_smaller else _that_fits(loaded, memory)
    return _with_cards(loaded, found.cards, found.card_bytes, found.interleave_bytes, name=found.name, chosen=chosen)


def _that_fits(default: Topology, memory: MemorySpec) -> Topology:
    """Return the default topology, or a smaller one where memory is short of it."""
    cards, card_bytes = default.pool_card_count, default.card_bytes
    caches = default.host_count * host_segment_bytes(cards, card_bytes) if memory.backend.emulates_caches else 0
    missing = shortage(cards * card_bytes, caches + RANK_BYTES * default.host_count)
    if missing is None:
        return default
    from cxlemu.topology import Topology

    warnings.warn(f"{missing}: {SMALLER_TOPOLOGY} instead of {default.name}, the default", stacklevel=3)
    return Topology.load(SMALLER_TOPOLOGY)


def with_card_bytes(topology: Topology, card_bytes: int) -> Topology:
    """Return a topology whose emulated cards have ``card_bytes`` each. Raises ArgumentError where they cannot."""
    from pydantic import ValidationError

    emulation = topology.emulation.model_copy(update={"card_bytes": card_bytes})
    try:
        return type(topology).model_validate(topology.model_copy(update={"emulation": emulation}))
    except ValidationError as error:
        raise ArgumentError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None


def _with_cards(
    topology: Topology, count: int, card_bytes: int, interleave_bytes: int, *, name: str, chosen: bool
) -> Topology:
    if chosen and topology.card_count != count:
        raise ArgumentError(
            f"{topology.name} has {topology.card_count} cards, but {name} has {count}: "
            "leave the config out, or give one with as many"
        )
    space = topology.pool_space.model_copy(update={"interleave_bytes": interleave_bytes})
    changes = {
        "emulation": topology.emulation.model_copy(update={"card_bytes": card_bytes}),
        "spaces": tuple(space if other is topology.pool_space else other for other in topology.spaces),
    }
    if not chosen:
        cards = topology.cards[0].model_copy(update={"count": count, "capacity_bytes": card_bytes})
        changes |= {"name": "devices", "description": name, "cards": (cards,)}
    return topology.model_copy(update=changes)
