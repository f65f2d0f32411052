"""The outline of a topology: what every rank asks of it.

A rank's process has it without the topology itself, whose model takes longer to import than all that the rank runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from cxlemu.topology.clusters import clusters_of, memories_behind_pool, shared_memories, size_of_clusters

if TYPE_CHECKING:
    from cxlemu.topology import Topology


@dataclass(frozen=True)
class Outline:
    """What every rank of a world asks of its topology."""

    pool_card_count: int
    memories: int  # how many cards follow those of the pool: one for each rank's memory, or none
    shares_memories: bool  # whether there is an XLink over which ranks reach each other's memories
    clusters: tuple[int, ...]  # the cluster of each rank
    digest: str  # digests all that the topology says

    @classmethod
    def of(cls, topology: Topology, ranks: int) -> Self:
        text = json.dumps(topology.model_dump(mode="json"))
        return cls(
            topology.pool_card_count,
            memories_behind_pool(topology, ranks),
            shared_memories(topology) is not None,
            clusters_of(topology, ranks),
            hashlib.blake2b(text.encode()).hexdigest(),
        )

    def ranks_per_cluster(self, members: Sequence[int]) -> int:
        """Return how many ranks each cluster of a communicator has; 1 where there are no clusters."""
        return size_of_clusters(self.clusters[rank] for rank in members)
