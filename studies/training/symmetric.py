"""Collectives of more ranks than are worth simulating: what is alike is simulated once.

Where every rank has links of its own and switches never block, a further rank adds to each rank one more slice to send
and to receive, and nothing else. So the time of many ranks follows from that of two smaller numbers with slices of the
same size, along a line. How far that is off is measured where all ranks are simulated as well.
"""

from collections.abc import Sequence

from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from cxlemu.topology.clusters import apart, cluster_memory
from cxlemu.topology.failures import Failure
from studies.training.clusters import Clustered
from studies.training.fabrics import Modelled, TrainingFabric

POINTS = (8, 16)
SIMULATED_RANKS = 256  # in clusters over a pool: more are a line


class Symmetric:
    """A fabric that is simulated for up to ``points[1]`` ranks; a line through both points stands for more."""

    def __init__(self, inner: TrainingFabric, points: tuple[int, int] = POINTS) -> None:
        self.inner, self.points = inner, points

    @property
    def chosen(self) -> dict[str, str]:
        """By collective, the plan that its last simulated call took."""
        return self.inner.chosen

    @property
    def name(self) -> str:
        """The simulated fabric's name."""
        return self.inner.name

    def line(self, ranks: int) -> str:
        """Say what stands for a number of ranks; empty where all are simulated."""
        return f"a line through {self.points[0]} and {self.points[1]}" if ranks > self.points[1] else ""

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        """Return what one call takes, in ns: simulated, or on the line beyond the larger of the two points."""
        few, more = self.points
        if ranks <= more:
            return self.inner.time_ns(collective, size_bytes, ranks)
        few_ns, more_ns = (self.inner.time_ns(collective, size_bytes * n // ranks, n) for n in (few, more))
        return more_ns + (more_ns - few_ns) * (ranks - more) // (more - few)

    def error(self, collective: str, slice_bytes: int, ranks: int) -> float:
        """Return the line's relative error against a simulation of all ranks."""
        size_bytes = slice_bytes * ranks
        return self.time_ns(collective, size_bytes, ranks) / self.inner.time_ns(collective, size_bytes, ranks) - 1


def fabric_of(topology: Topology, ranks: int, failures: Sequence[Failure] = (), *, sharing: int = 1) -> TrainingFabric:
    """Choose how collectives on a topology are modelled.

    Where each rank has memory of its own and nothing fails, many ranks are a line; otherwise all are simulated. Where
    the topology states protocols, its rule chooses the plans. Otherwise they are the fastest ones on owned memory, and
    those of ``auto`` on a pool. Ranks in clusters on owned memory are not alike: where all of them can be simulated,
    the fastest plans may be on two levels. On a pool with too many ranks in clusters to simulate, plans are those on
    two levels, along a line.
    """
    space, places = topology.pool_space, topology.place_count
    clustered = not space.owned and cluster_memory(topology, places) is not None
    if (ranks * sharing if clustered else ranks) > places and (not space.owned or failures):
        wanted = f"{ranks} are to talk to each other over it"
        if sharing > 1 and clustered:
            wanted = f"{ranks * sharing} are to be there: {sharing} tensor ranks for each of {ranks} that talk over it"
        elif sharing > 1:
            wanted += f", with {sharing} tensor ranks at each of them: {ranks * sharing} in all"
        raise ArgumentError(f"{topology.name} has places for {places} ranks, but {wanted}")
    if ranks > SIMULATED_RANKS and not failures and clustered:
        return Clustered(topology, sharing)
    tuned = space.owned and space.protocols is None
    levels = tuned and sharing == 1 and ranks <= SIMULATED_RANKS and cluster_memory(apart(topology), ranks) is not None
    inner = Modelled(topology, tuned=tuned, failures=failures, two_levels=levels)
    return inner if levels or failures or not space.owned else Symmetric(inner)
