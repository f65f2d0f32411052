"""Collectives on two levels among more clusters than are worth simulating: a few are simulated, and the line goes on.

Where clusters are alike and the pool grows with them, a further cluster adds to each rank the same: one more block to
read from the pool at its own position, and one from each of its neighbours inside. So the time of many clusters follows
from that of two smaller numbers of them, with slices of the same size, on a machine that is cut down to these: their
hosts, their share of the cards, and of what switches have between them. Plans are those on two levels, chunks pipelined
across both as ever. How far the line is off is measured where all clusters are simulated as well.
"""

from functools import cache

from cxlemu.errors import ArgumentError
from cxlemu.topology import Link, Topology
from cxlemu.topology.endpoints import members
from cxlemu.units import counted
from studies.training.fabrics import Modelled

POINTS = (2, 4)  # clusters
VARIANT = "hierarchical"
ON_A_LINE = ("all_gather", "reduce_scatter")  # where a rank's slice stays the same as ranks become more


class Clustered:
    """A fabric of clusters over a pool, on which collectives run on two levels."""

    def __init__(self, topology: Topology, sharing: int = 1, points: tuple[int, int] = POINTS) -> None:
        self.topology, self.sharing, self.points = topology, sharing, points
        self.chosen: dict[str, str] = {}
        self._of = cache(lambda clusters: Modelled(cut_down(topology, clusters, sharing), variant=VARIANT))
        self._whole = Modelled(topology)
        self._of(points[0])

    @property
    def name(self) -> str:
        """The whole machine's name."""
        return self.topology.name

    @property
    def group(self) -> int:
        """How many ranks of a cluster talk to those of others."""
        return self.topology.hosts.ranks_per_host // self.sharing

    def line(self, ranks: int) -> str:
        """Say what stands for a number of ranks; empty where all are simulated."""
        few, more = (clusters * self.group for clusters in self.points)
        if ranks <= more:
            return ""
        return f"a line through {few} and {more} ranks in {self.points[0]} and {self.points[1]} clusters"

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        """Return what one call takes, in ns: simulated, or on the line beyond the larger of the two points.

        Collectives other than all-gather and reduce-scatter, and ranks that do not fill two or more clusters, are
        simulated on the whole machine.
        """
        clusters, rest = divmod(ranks, self.group)
        few, more = self.points
        if rest or clusters < 2 or collective not in ON_A_LINE:
            return self._whole.time_ns(collective, size_bytes, ranks)
        if clusters <= more:
            return self.simulated_ns(collective, size_bytes, clusters)
        few_ns, more_ns = (self.simulated_ns(collective, size_bytes * n // clusters, n) for n in self.points)
        return more_ns + (more_ns - few_ns) * (clusters - more) // (more - few)

    def simulated_ns(self, collective: str, size_bytes: int, clusters: int) -> int:
        """Simulate all ranks of a number of clusters; return a call's time in ns."""
        fabric = self._of(clusters)
        ns = fabric.time_ns(collective, size_bytes, clusters * self.group)
        self.chosen |= fabric.chosen
        return ns

    def error(self, collective: str, slice_bytes: int, clusters: int) -> float:
        """Return the line's relative error against a simulation of all clusters."""
        ranks = clusters * self.group
        full_ns = self.simulated_ns(collective, slice_bytes * ranks, clusters)
        return self.time_ns(collective, slice_bytes * ranks, ranks) / full_ns - 1


def cut_down(topology: Topology, clusters: int, sharing: int = 1) -> Topology:
    """Cut a machine down to a few of its hosts and their share of all that hosts have in common."""
    hosts = topology.hosts
    if topology.fabrics or hosts.ranks_per_host % sharing or hosts.ranks_per_host // sharing < 2:
        raise ArgumentError(f"{topology.name} is not made of hosts that are clusters, each of {sharing} groups or more")
    cards = []
    for group in topology.cards:
        count, rest = divmod(group.count * clusters, hosts.count * sharing) if group.owner is None else (1, 0)
        if rest or not count:
            groups = f", each of {counted(sharing, 'group')} of ranks" * (sharing > 1)
            raise ArgumentError(
                f"{topology.name}: {group.count} cards do not divide among {hosts.count} clusters{groups}"
            )
        cards.append(group.model_copy(update={"count": count}))
    return topology.model_copy(
        update={
            "hosts": hosts.model_copy(update={"count": clusters, "ranks_per_host": hosts.ranks_per_host // sharing}),
            "cards": tuple(cards),
            "links": tuple(_cut_down(link, clusters / hosts.count, sharing) for link in topology.links),
        }
    )


def _cut_down(link: Link, part: float, sharing: int) -> Link:
    kinds = {end.kind for end in map(members, link.ends) if end is not None}
    share = 1 / sharing if kinds == {"host"} else 1.0 if kinds else part / sharing
    return link.model_copy(update={"gbytes_per_s": link.gbytes_per_s * share})
