"""Collectives in two levels: of a group's ranks some share a cluster, and what crosses clusters crosses once.

All-gather: every rank gathers between clusters with those at its own place in theirs, then all of a cluster gather that
inside it; reduce-scatter is the same backwards. The levels follow each other; in chunks they could overlap.
"""

from __future__ import annotations

from studies.training.fabrics import TrainingFabric


class TwoLevels:
    """``sharing``: how many ranks of a group are in one cluster."""

    def __init__(self, inside: TrainingFabric, between: TrainingFabric, sharing: int) -> None:
        self.inside, self.between, self.sharing = inside, between, sharing

    @property
    def name(self) -> str:
        return self.between.name

    @property
    def chosen(self) -> dict[str, str]:
        return self.between.chosen

    def line(self, ranks: int) -> str:
        return self.between.line(ranks)

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        if collective not in ("all_gather", "reduce_scatter") or self.sharing < 2 or ranks % self.sharing:
            return self.between.time_ns(collective, size_bytes, ranks)
        across_ns = self.between.time_ns(collective, size_bytes // self.sharing, ranks // self.sharing)
        return across_ns + self.inside.time_ns(collective, size_bytes, self.sharing)
