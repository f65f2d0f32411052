"""How long a collective takes with two levels and without, by the figures of the cost model: for `auto` to choose by.

A coarse model, of the busiest rank: steps one after another; copies, each with what starting it, seeing its doorbell
and waiting for its first bytes takes; and bytes, at the rate of a rank's engine or link or, where all ranks together
have more than the cards carry, at theirs. Two levels follow each other in it, although chunks overlap. The virtual
engine has the whole model, and takes far longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from collectives.builder import ALL
from collectives.layouts import MIN_DOORBELLS_PER_RANK
from cxlemu.topology.clusters import cluster_memory, ranks_per_cluster

if TYPE_CHECKING:
    from cxlemu.topology import Costs, Topology

CHUNKED_MIN_BYTES = 16 << 10  # on one level: what is smaller is not cut into chunks
TWO_SHOT_MIN_BYTES = 64 << 10
MANY_BLOCKS = ("all_reduce", "all_to_all", "reduce_scatter")


class Load(NamedTuple):
    """The load of one level: steps, the busiest rank's copies and bytes, and all ranks' bytes, with bytes in blocks."""

    steps: float
    copies: float
    rank: float
    total: float


@dataclass(frozen=True, slots=True)
class Way:
    """Memory that ranks exchange through. ``total_gbytes_per_s`` is what it carries for all ranks together."""

    step_ns: float
    copy_ns: float
    rank_gbytes_per_s: float
    total_gbytes_per_s: float

    def time_ns(self, load: Load, nbytes: int, chunks: int) -> float:
        """How long a load takes, in blocks of ``nbytes``; each chunk of a block is a copy."""
        start_ns = chunks * load.copies * self.copy_ns
        bytes_ns = load.rank * nbytes / self.rank_gbytes_per_s
        return load.steps * self.step_ns + max(start_ns + bytes_ns, load.total * nbytes / self.total_gbytes_per_s)


@dataclass(frozen=True, slots=True)
class TwoLevelEstimate:
    """The ways of ranks in clusters of ``cluster`` ranks: inside a cluster, and through the pool."""

    cluster: int
    inside: Way
    pool: Way

    @classmethod
    def of(cls, topology: Topology, ranks: int) -> TwoLevelEstimate | None:
        """Estimate for a topology; None without clusters whose ranks have memories: two levels move more bytes."""
        memory = cluster_memory(topology, ranks)
        if memory is None:
            return None
        cluster, pool = ranks_per_cluster(topology, ranks), topology.pool_space
        cards, own, costs = topology.cards_of(pool), topology.cards_of(memory), pool.costs or topology.costs
        neighbours = _neighbours(topology, own)
        inside = _way(
            topology, memory.costs or topology.costs, neighbours, ranks * topology.carried_gbytes_per_s(own[:1])
        )
        return cls(cluster, inside, _way(topology, costs, cards[-1], topology.carried_gbytes_per_s(cards)))

    def times_ns(self, collective: str, nbytes: int, ranks: int) -> tuple[float, float]:
        """How long a collective takes with two levels, and without, where small blocks are not cut into chunks."""
        flat, across, inside = _loads(collective, ranks, self.cluster)
        if collective == "all_reduce" and nbytes < TWO_SHOT_MIN_BYTES:  # one shot
            flat = Load(1, ranks, ranks - 1, ranks * ranks)
        chunks = ALL.chunks if nbytes >= CHUNKED_MIN_BYTES else 1
        if collective in MANY_BLOCKS:  # which have to share a rank's doorbells
            chunks = max(1, min(chunks, max(MIN_DOORBELLS_PER_RANK, 2 * ranks) // (ranks + 1)))
        levels = (way.time_ns(load, nbytes, ALL.chunks) for way, load in ((self.pool, across), (self.inside, inside)))
        return sum(levels), self.pool.time_ns(flat, nbytes, chunks)


def _neighbours(topology: Topology, memories: tuple[int, ...]) -> int:
    """The first memory that host 0 reaches over links, if there is one."""
    return next((card for card in memories[1:] if topology.fabric().route(0, card) is not None), memories[0])


def _way(topology: Topology, costs: Costs, card: int, total_gbytes_per_s: float) -> Way:
    """The way from a rank of host 0 to a card, or to a neighbour's memory."""
    route = topology.fabric().route(0, card)
    assert route is not None  # the topology's checks see to it
    rates = []
    for link in route.links:
        if any(end.startswith("rank") for end in link.ends):
            rates.append(link.payload_gbytes_per_s)
        elif any(end.startswith("host") for end in link.ends):
            rates.append(link.payload_gbytes_per_s / topology.hosts.ranks_per_host)
    rates += [rate for rate in (costs.to_pool_gbytes_per_s, costs.from_pool_gbytes_per_s) if rate is not None]
    loads_ns = 2 * topology.load_latency_ns(0, card)  # of the doorbell, and of the copy's bytes
    step_ns = (costs.doorbell_ring_ns or 0) + costs.observed_ns + loads_ns
    return Way(
        step_ns,
        (costs.copy_ns or 0) + costs.observed_ns + loads_ns,
        min(rates, default=total_gbytes_per_s),
        total_gbytes_per_s,
    )


def _loads(collective: str, ranks: int, size: int) -> tuple[Load, Load, Load]:
    """The loads (without levels; with them: across, inside), as the algorithms' pages say."""
    n, g, c = ranks, size, ranks // size
    flat = Load(1, n, n - 1, 2 * n * (n - 1))
    match collective:
        case "all_gather":
            return flat._replace(total=n * n), Load(1, c - 1, c - 1, n * c), Load(1, g * c, g * c, n * g * c)
        case "broadcast":
            return Load(1, 1, 1, n), Load(1, 1, 1 / g, c), Load(2, g, g - 1, n)  # its neighbours read the root's link
        case "gather" | "scatter":
            one = flat._replace(total=2 * (n - 1))
            return one, Load(1, c - 1, c - 1, 2 * (n - g)), Load(1, g * c, g * c, 2 * g * c)
        case "all_reduce":
            return (
                Load(2, 2 * n, 2, 3 * n),
                Load(2, 2 * c, 2 * (c - 1) / c / g, 3 * c),
                Load(2, 2 * g, 2, 4 * n),
            )
        case "reduce":
            return flat._replace(total=2 * (n - 1)), Load(1, c - 1, (c - 1) / g, 2 * (c - 1)), Load(2, 2 * g, 2, 3 * n)
        case "reduce_scatter":
            return flat, Load(1, c - 1, c - 1, 2 * n * (c - 1)), Load(1, g * c, g * c, 2 * n * g * c)
        case _:  # all_to_all
            return flat, Load(1, n - g, n - g, 2 * n * (n - g)), Load(1, g * c, g * c, 2 * n * g * c)
