"""Clusters: ranks that have a faster way to each other than the pool, because they are on one host.

Where each rank has memory of its own that its neighbours reach over an XLink, that is what they exchange through.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from cxlemu.topology import Space, Topology


def ranks_per_cluster(hosts: Sequence[int]) -> int:
    """How many ranks each cluster has, of ranks on these ``hosts``; 1 where there are no clusters.

    Clusters are two or more, of consecutive ranks, two or more and equally many each.
    """
    runs = [(host, len(list(ranks))) for host, ranks in groupby(hosts)]
    sizes = {size for _, size in runs}
    return sizes.pop() if len(sizes) == 1 and len({host for host, _ in runs}) == len(runs) > 1 else 1


def cluster_sizes(ranks: int) -> list[int]:
    """Every number of ranks that a cluster of so many can have."""
    return [size for size in range(2, ranks // 2 + 1) if ranks % size == 0]


def cluster_memory(topology: Topology, ranks: int) -> Space | None:
    """The space of memories, one a rank, in which ranks of a cluster exchange; None: they do so in the pool."""
    if ranks > topology.place_count or ranks_per_cluster(topology.place(ranks)) == 1:
        return None
    pool = topology.pool_space
    return next(
        (
            space
            for space in topology.spaces
            if space.kind == "xlink"
            and space is not pool
            and topology.card(topology.cards_of(space)[0]).owner == "ranks"
        ),
        None,
    )


def memories_behind_pool(topology: Topology, ranks: int) -> int:
    """How many ranks have such a memory where the cards of this machine can follow those of the pool: all, or none."""
    space = cluster_memory(topology, ranks)
    return ranks if space is not None and topology.cards_of(space)[0] == topology.pool_card_count else 0
