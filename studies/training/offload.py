"""Where a topology lets the optimizer's state be kept: the hosts' own memory, or the pool."""

from cxlemu.errors import ArgumentError
from cxlemu.suggest import unknown
from cxlemu.topology import LocalMemory, Topology
from studies.choices import OFFLOAD_PLACES
from studies.training.machine import Offload

NOT_SAID = 10.0**6  # a rate that is never in the way


def offload_to(place: str, topology: Topology, ranks: int) -> Offload:
    """Describe a place for the optimizer's state.

    ``host``: the hosts' processors update, through the copy engines, as in ZeRO-Offload. ``pool``: state passes the
    accelerator, and every rank has its share of the cards.
    """
    costs = topology.costs
    to, from_ = (rate or NOT_SAID for rate in (costs.to_pool_gbytes_per_s, costs.from_pool_gbytes_per_s))
    if place == "host":
        memory, sharing = (
            topology.hosts.memory,
            max(topology.place(ranks).count(host) for host in topology.place(ranks)),
        )
        update = passing_gbytes_per_s(memory) / sharing
        return Offload("host", to, from_, at_memory=True, update_gbytes_per_s=update)
    if place == "pool":
        cards = [topology.card(card) for card in topology.cards_of(topology.pool_space)]
        share = sum(card.total_gbytes_per_s for card in cards) / ranks / 2  # reads and writes at once
        return Offload("pool", min(to, share), min(from_, share), at_memory=False)
    raise ArgumentError(unknown("place for the optimizer's state", place, OFFLOAD_PLACES))


def passing_gbytes_per_s(memory: LocalMemory) -> float:
    """Return the rate at which memory is read and written, both counted."""
    return 2 / (1 / memory.read_gbytes_per_s + 1 / memory.write_gbytes_per_s)
