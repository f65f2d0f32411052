"""Collectives on two levels: some ranks of a group share a cluster, and what crosses clusters crosses once.

All-gather: every rank gathers between clusters with those at its own place in theirs, then all of a cluster gather that
inside it; reduce-scatter is the same backwards. The levels follow each other; in chunks they could overlap.
"""

from studies.training.fabrics import TrainingFabric


class TwoLevels:
    """A fabric between clusters, on which collectives send between clusters only what has to cross."""

    def __init__(self, inside: TrainingFabric, between: TrainingFabric, sharing: int) -> None:
        self.inside, self.between, self.sharing = inside, between, sharing

    @property
    def name(self) -> str:
        """The name of the fabric between clusters."""
        return self.between.name

    @property
    def chosen(self) -> dict[str, str]:
        """By collective, the plan that its last call took between clusters."""
        return self.between.chosen

    def line(self, ranks: int) -> str:
        """Say what stands for a number of ranks on the fabric between clusters; empty where all are simulated."""
        return self.between.line(ranks)

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        """Return what one call takes, in ns.

        All-gather and reduce-scatter take two levels; other collectives run between clusters alone.
        """
        if collective not in ("all_gather", "reduce_scatter") or self.sharing < 2 or ranks % self.sharing:
            return self.between.time_ns(collective, size_bytes, ranks)
        across_ns = self.between.time_ns(collective, size_bytes // self.sharing, ranks // self.sharing)
        return across_ns + self.inside.time_ns(collective, size_bytes, self.sharing)
