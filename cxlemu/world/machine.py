"""Which machine a world runs on: a topology, whose cards are the devices where these are real."""

from __future__ import annotations

from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.pool.dax import DaxPool
from cxlemu.topology import Topology

DEFAULT_TOPOLOGY = "six-cards"


def machine(topology: Topology | str | None, memory: MemorySpec) -> Topology:
    """The topology itself, loaded if need be; None is six-cards.

    On real cards their number, size and interleaving are the pool's, and None has as many cards as the pool. Raises
    ArgumentError for a topology with another number of cards, and what DaxPool.attach raises.
    """
    loaded = topology if isinstance(topology, Topology) else Topology.load(topology or DEFAULT_TOPOLOGY)
    if memory.kind != "dax":
        return loaded
    with DaxPool.attach(memory.devices, memory.pool) as pool:
        return _with_cards_of(pool, loaded, chosen=topology is not None)


def _with_cards_of(pool: DaxPool, topology: Topology, *, chosen: bool) -> Topology:
    count = len(pool.cards)
    if chosen and topology.card_count != count:
        raise ArgumentError(
            f"{topology.name} has {topology.card_count} cards, but pool {pool.uuid} has {count}: "
            "leave the config out, or give one with as many"
        )
    space = topology.pool_space.model_copy(update={"interleave_bytes": pool.interleave_bytes})
    changes = {
        "emulation": topology.emulation.model_copy(update={"card_bytes": pool.card_bytes}),
        "spaces": tuple(space if other is topology.pool_space else other for other in topology.spaces),
    }
    if not chosen:
        cards = topology.cards[0].model_copy(update={"count": count, "capacity_bytes": pool.card_bytes})
        changes |= {"name": "devices", "description": f"pool {pool.uuid}", "cards": (cards,)}
    return topology.model_copy(update=changes)
