"""Collectives of more ranks than are worth simulating: what is alike is simulated once.

Where every rank has links of its own and switches never block, a further rank adds to each rank one more slice to send
and to receive, and nothing else. So the time of many ranks follows from that of two smaller numbers with slices of the
same size, along a line. How far that is off is measured where all ranks are simulated, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from cxlemu.topology.clusters import cluster_memory
from cxlemu.topology.failures import Failure
from studies.training.clusters import Clustered
from studies.training.fabrics import Modelled, TrainingFabric

POINTS = (8, 16)
SIMULATED_RANKS = 256  # of clusters over a pool: more are a line


class Symmetric:
    """``inner`` simulates up to ``POINTS[1]`` ranks; beyond, its line goes on."""

    def __init__(self, inner: TrainingFabric, points: tuple[int, int] = POINTS) -> None:
        self.inner, self.points = inner, points

    @property
    def chosen(self) -> dict[str, str]:
        return self.inner.chosen

    @property
    def name(self) -> str:
        return self.inner.name

    def line(self, ranks: int) -> str:
        """What stands for so many ranks; nothing where all are simulated."""
        return f"a line through {self.points[0]} and {self.points[1]}" if ranks > self.points[1] else ""

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        few, more = self.points
        if ranks <= more:
            return self.inner.time_ns(collective, size_bytes, ranks)
        few_ns, more_ns = (self.inner.time_ns(collective, size_bytes * n // ranks, n) for n in (few, more))
        return more_ns + (more_ns - few_ns) * (ranks - more) // (more - few)

    def error(self, collective: str, slice_bytes: int, ranks: int) -> float:
        """Of the line, beside a simulation of all ranks: 0.01 is a hundredth too long."""
        size_bytes = slice_bytes * ranks
        return self.time_ns(collective, size_bytes, ranks) / self.inner.time_ns(collective, size_bytes, ranks) - 1


def fabric_of(topology: Topology, ranks: int, failures: Sequence[Failure] = (), *, sharing: int = 1) -> TrainingFabric:
    """For collectives of up to so many ranks: a line where each has memory of its own and nothing fails, else all.

    Where the topology says what protocols are spoken, plans are those that its rule takes, else the fastest on owned
    memory, and on a pool those of ``auto``; those on two levels, along a line, of so many ranks in clusters that all of
    them are too many to simulate. ``sharing``: so many groups of ranks do the same at once, which counts there.
    Raises ArgumentError for more ranks on a pool than it has places for.
    """
    space, places = topology.pool_space, topology.place_count
    if ranks > places and (not space.owned or failures):
        raise ArgumentError(
            f"{topology.name} has places for {places} ranks, but {ranks} are to talk to each other over it"
        )
    if ranks > SIMULATED_RANKS and not failures and not space.owned and cluster_memory(topology, places) is not None:
        return Clustered(topology, sharing)
    inner = Modelled(topology, tuned=space.owned and space.protocols is None, failures=failures)
    return Symmetric(inner) if space.owned and not failures else inner
