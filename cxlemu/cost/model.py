"""A topology as the tables of resources, costs, cards and routes that C takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cxlemu.cost.costs import costs_of
from cxlemu.cost.link_table import LinkTable
from cxlemu.cost.resources import SERVICE_RATE_DTYPE, Resource, bytes_per_ms
from cxlemu.cost.routes import routes_of
from cxlemu.errors import ArgumentError
from cxlemu.plan.instructions import Records
from cxlemu.topology import Accelerator, Space, Topology
from cxlemu.topology.failures import FabricChange, Failure

CARD_DTYPE = np.dtype(
    [("latency_ns", "<i8"), ("costs", "<i4"), ("owner_host", "<i4"), ("owner_rank", "<i4"), ("pad", "<i4")]
)


@dataclass(frozen=True)
class CostModel:
    """A topology as resources and ways between them, for ranks on its hosts."""

    topology: Topology
    hosts: tuple[int, ...]  # the host of each rank
    # the number of each card in the topology; the memories of ranks that do not exist are left out
    cards: tuple[int, ...]
    resources: tuple[Resource, ...]  # engines, cards and links
    # for "read", "write" and "total", the index of the first card's resource; the other cards follow
    first: dict[str, int]
    costs: Records  # rows of COSTS_DTYPE: the general costs, then those of spaces that differ
    card_rows: Records  # one row of CARD_DTYPE per card
    routes: Records  # one row of ROUTE_DTYPE per route
    # the index of the route, int32 of shape (changes + 1, hosts, cards); -1 where there is none
    route_of: NDArray[np.int32]
    changes: tuple[FabricChange, ...] = ()  # what failures change; each one begins the next table of ``route_of``
    # what ranks compute with instead of the topology's accelerator, if not None
    computes_with: Accelerator | None = None

    @classmethod
    def of(cls, topology: Topology, ranks: int, failures: Sequence[Failure] = ()) -> CostModel:
        hosts = topology.place(ranks)
        placed = ranks if ranks <= topology.place_count else 0  # more than there are places own no memory
        cards = tuple(
            n
            for numbers, group in topology.card_groups()
            for n in numbers[: placed if group.owner == "ranks" else None]
        )
        resources: list[Resource] = []
        costs, of_card = costs_of(topology, cards, ranks, resources)
        first, groups = {}, [topology.card(card) for card in cards]
        names = [topology.card_name(card) for card in cards]
        for which, words in (("read", "reads"), ("write", "writes"), ("total", "both ways")):
            first[which] = len(resources)
            for name, group in zip(names, groups, strict=True):
                resources.append(Resource(f"{name} {words}", "card", getattr(group, f"{which}_gbytes_per_s")))
        rows = np.zeros(len(cards), CARD_DTYPE)
        for row, card, group, kind in zip(rows, cards, groups, of_card, strict=True):
            host = topology.owner_host(card)
            row["latency_ns"], row["costs"] = group.latency_ns, kind
            row["owner_host"] = -1 if host is None else host
            row["owner_rank"] = -1
        for numbers, group in topology.card_groups():
            if group.owner == "ranks":
                places = slice(cards.index(numbers[0]), cards.index(numbers[0]) + placed) if placed else slice(0)
                rows["owner_rank"][places] = np.arange(placed)
        links = LinkTable(topology, cards, ranks, rows, resources)
        known, route_of, changes = routes_of(topology, cards, failures)
        table = links.table(known)
        return cls(topology, hosts, cards, tuple(resources), first, costs, rows, table, route_of, changes)

    def cards_of(self, space: Space, members: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return the indices into ``cards`` of a pool's cards, or of owned memories (``members`` None: all ranks')."""
        numbers = self.topology.cards_of(space)
        if not space.owned:
            return tuple(range(numbers[0], numbers[-1] + 1))
        by_rank = self.topology.card(numbers[0]).owner == "ranks"
        indices = []
        for rank in range(len(self.hosts)) if members is None else members:
            card = numbers[0] + (rank if by_rank else self.hosts[rank])
            if card not in self._index or card > numbers[-1]:
                raise ArgumentError(
                    f"rank {rank} has no memory in space {space.name} of {self.topology.name}: take fewer ranks"
                )
            indices.append(self._index[card])
        return tuple(indices)

    @cached_property
    def _index(self) -> dict[int, int]:
        return {card: index for index, card in enumerate(self.cards)}

    @cached_property
    def accelerator(self) -> Accelerator | None:
        """Accelerator of every rank (see cxlemu/cost/compute.py); None where the topology names no accelerator."""
        if self.computes_with is not None:
            return self.computes_with
        name = self.topology.accelerator
        return None if name is None else Accelerator.load(name)

    @cached_property
    def link_gbytes_per_s(self) -> float:
        """The payload that the slowest link on the first rank's way to the last memory carries, in GB/s."""
        route = self.topology.fabric().route(self.hosts[0], self.cards[-1])
        return min((link.payload_gbytes_per_s for link in route.links), default=math.inf) if route else math.inf

    def tables(self) -> dict[str, Any]:
        """Build the arguments of C's `cost_model_take` (native/cost/tables.h), by name."""
        return {
            "service_rates": self.service_rates,
            "routes": self.routes,
            "route_of": self.route_of,
            "changes_ns": np.array([change.at_ns for change in self.changes], np.int64),
            "cards": self.card_rows,
            "host_of": np.array(self.hosts, np.int32),
            "costs": self.costs,
            **{f"first_{which}": first for which, first in self.first.items()},
            "multiprocessors": self.accelerator.multiprocessors if self.accelerator else 0,
        }

    @cached_property
    def service_rates(self) -> Records:
        """Tell how fast each resource is: one row of SERVICE_RATE_DTYPE per resource."""
        rows = [(bytes_per_ms(resource.gbytes_per_s), *resource[3:]) for resource in self.resources]
        return np.array(rows, SERVICE_RATE_DTYPE)
