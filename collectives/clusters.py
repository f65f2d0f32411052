"""Clusters: ranks that have a faster way to each other than the pool, because they are on one host."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


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
