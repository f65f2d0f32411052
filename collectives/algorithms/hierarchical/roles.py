"""Which rank is where on two levels: rank ``cluster * size + position`` has that position in that cluster."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectives.algorithms.hierarchical.regions import Writers
from collectives.builder import Builder, Ints


@dataclass
class Roles(Builder):
    @property
    def size(self) -> int:
        return self.call.cluster

    @property
    def clusters(self) -> int:
        return self.ranks // self.size

    @property
    def home(self) -> int:
        return self.rank // self.size

    @property
    def position(self) -> int:
        return self.rank % self.size

    @property
    def away(self) -> list[int]:
        return [(self.home + step) % self.clusters for step in range(1, self.clusters)]

    @property
    def at_roots(self) -> bool:
        return self.home == self.root // self.size

    @property
    def column_root(self) -> int:
        return self.at(self.root // self.size, self.position)

    def at(self, cluster: int, position: int) -> int:
        return cluster * self.size + position

    def all(self, blocks: int) -> Writers:
        return Writers(self.everyone, blocks)

    @property
    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.ranks))

    @property
    def at_home(self) -> tuple[int, ...]:
        """The ranks of the root's cluster."""
        first = self.root // self.size * self.size
        return self.everyone[first : first + self.size]

    @property
    def elsewhere(self) -> tuple[int, ...]:
        first = self.root // self.size * self.size
        return self.everyone[:first] + self.everyone[first + self.size :]

    def targets(self, clusters: Sequence[int], peers: Ints) -> tuple[Ints, Ints, Ints]:
        """Combine clusters with neighbours, ranks of this rank's cluster: for each cluster, each of the neighbours.

        Returns three arrays: the rank in that cluster with the neighbour's position, the neighbour, and the cluster.
        """
        each, where = np.tile(peers, len(clusters)), np.repeat(np.array(clusters, np.int64), len(peers))
        return where * self.size + each % self.size, each, where
