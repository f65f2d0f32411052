"""Clusters: ranks that have a faster way to each other than the pool.

They are the ranks of one host or, where an XLink joins hosts to domains, of one domain. Where ranks have memories that
their neighbours reach over an XLink, that is what they exchange through.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING

from cxlemu.errors import ArgumentError
from cxlemu.units import counted

if TYPE_CHECKING:
    from cxlemu.topology import Space, Topology


def cluster_sizes(ranks: int) -> list[int]:
    """List the sizes that clusters of a world may have: they divide ``ranks`` and leave two clusters of two or more."""
    return [size for size in range(2, ranks // 2 + 1) if ranks % size == 0]


def hosts_of(ranks: int, each: int) -> list[int]:
    """Return the host of each rank where every host has ``each``. Raises ArgumentError if they do not come out even."""
    if ranks % each:
        raise ArgumentError(f"--cluster: {counted(ranks, 'rank')} are not on hosts of {each} each")
    return [rank // each for rank in range(ranks)]


def ranks_per_cluster(topology: Topology, ranks: int, members: Sequence[int] | None = None) -> int:
    """Return how many ranks each cluster has; 1 where there are no clusters.

    Clusters are two or more, of consecutive ranks, two or more and equally many each.
    """
    clusters = clusters_of(topology, ranks)
    return size_of_clusters(clusters if members is None else (clusters[rank] for rank in members))


def clusters_of(topology: Topology, ranks: int) -> tuple[int, ...]:
    """Return the cluster of each rank, where `Topology.place` places them."""
    of_host = _cluster_of_host(topology)
    return tuple(of_host[host] for host in topology.place(ranks))


def size_of_clusters(clusters: Iterable[int]) -> int:
    """Return how many ranks each cluster has, as `ranks_per_cluster`, given the cluster of each rank in order."""
    runs = [(cluster, len(list(run))) for cluster, run in groupby(clusters)]
    sizes = {size for _, size in runs}
    return sizes.pop() if len(sizes) == 1 and len({cluster for cluster, _ in runs}) == len(runs) > 1 else 1


def cluster_memory(topology: Topology, ranks: int) -> Space | None:
    """Return the space of memories in which a cluster's ranks exchange, each in its own; None: in the pool."""
    alone = ranks > topology.place_count or ranks_per_cluster(topology, ranks) == 1
    return None if alone else shared_memories(topology)


def memories_behind_pool(topology: Topology, ranks: int) -> int:
    """Return how many cards follow those of the pool: a memory of `cluster_memory` for each rank, or none."""
    return ranks if cluster_memory(topology, ranks) is not None else 0


@lru_cache(16)
def apart(topology: Topology) -> Topology:
    """Return the machine on which ranks reach a peer's memory both over NICs and, in their cluster, over an XLink.

    A memory has one way from each host, that of its first space. Where collectives run on `peer_memory`, the space of
    an XLink therefore gets memories of its own, alike. Any other machine, and any without clusters, is as it was.
    """
    pool, memory = topology.pool_space, shared_memories(topology)
    if memory is None or not pool.owned or not set(topology.cards_of(pool)).intersection(topology.cards_of(memory)):
        return topology
    numbers, owned = topology.cards_of(memory), topology.card(topology.cards_of(memory)[0])
    if len(numbers) != {"hosts": topology.host_count, "ranks": topology.place_count}.get(owned.owner or ""):
        return topology
    homes = {space.name: topology.cards_of(space) for space in topology.spaces if space.owned}
    homes[memory.name] = tuple(range(topology.card_count, topology.card_count + len(numbers)))
    spaces = tuple(
        space.model_copy(update={"cards": homes[space.name]}) if space.owned else space for space in topology.spaces
    )
    machine = topology.model_copy(update={"cards": (*topology.cards, owned), "spaces": spaces})
    return machine if ranks_per_cluster(machine, topology.place_count) > 1 else topology


def shared_memories(topology: Topology) -> Space | None:
    """Return the space of memories that neighbours reach over an XLink, or None."""
    pool = topology.pool_space
    return next((space for space in topology.spaces if space.kind == "xlink" and space is not pool), None)


@lru_cache(16)
def _of_hosts(topology: Topology, space: Space) -> tuple[int, ...]:
    """Hosts whose memories one of them reaches over the XLink are a cluster, named by its first host."""
    fabric = topology.fabric()
    first: dict[int | None, int] = {}
    for card in topology.cards_of(space):
        first.setdefault(topology.owner_host(card), card)
    heads: list[int] = []
    of_host = []
    for host in range(topology.host_count):
        head = next((head for head in heads if fabric.route(host, first[head]) is not None), host)
        heads += [head] * (head == host)
        of_host.append(head)
    return tuple(of_host)


def _cluster_of_host(topology: Topology) -> Sequence[int]:
    space = shared_memories(topology)
    return range(topology.host_count) if space is None else _of_hosts(topology, space)
