"""Notes on a modelled answer: what a reader who only sees the figures would take for granted."""

from collections.abc import Iterator

from cxlemu.topology import Topology
from cxlemu.topology.clusters import apart, clusters_of, ranks_per_cluster, shared_memories
from cxlemu.topology.fields import Costs


def free_notes(topology: Topology) -> Iterator[str]:
    """Say that a file leaves out what ranks spend beside links and cards, so that it is nothing."""
    if topology.costs == Costs() and topology.pool_space.protocols is None:
        yield f"{topology.name} has no costs: copies, flushes and software take no time"


def placement_notes(topology: Topology, ranks: int) -> Iterator[str]:
    """Say that few ranks are all in one cluster of several, and what they talk over there."""
    places = topology.place_count
    if not 1 < ranks < places:
        return
    machine = apart(topology)
    if len(set(clusters_of(machine, ranks))) > 1 or ranks_per_cluster(machine, places) == 1:
        return
    where = "on one host" if len(set(topology.place(ranks))) == 1 else "in one XLink domain"
    beside = shared_memories(topology) is not None
    way = f", yet they talk over {topology.pool_space.name}, not over the XLink" if beside else ""
    yield f"{topology.name}: {ranks} of {places} places, all {where}{way}"


def flat_notes(topology: Topology, ranks: int, sharing: int = 1) -> Iterator[str]:
    """Say that plans on one level, over NICs, leave an XLink between some of the ranks unused.

    Of ``ranks``, every ``sharing``-th one takes part.
    """
    cluster = ranks_per_cluster(apart(topology), min(ranks, topology.place_count)) // sharing
    if topology.pool_space.owned and shared_memories(topology) is not None and cluster > 1:
        yield (
            f"{topology.name}: {cluster} ranks share an XLink, but its plans use one NIC's way each and no XLink "
            f"between them: NCCL would be faster"
        )
