"""A topology as the tables of resources, costs, cards and routes that C takes."""

from __future__ import annotations

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
    """A topology as resources and ways between them, for ranks on its hosts.

    Attributes:
        topology: The topology.
        hosts: The host of each rank.
        cards: The number of each card in the topology; the memories of ranks that do not exist are left out.
        resources: Engines, cards and links.
        first: For "read", "write" and "total", the index of the first card's resource; the other cards follow.
        costs: Rows of COSTS_DTYPE: the general costs, then those of spaces that differ.
        card_rows: One row of CARD_DTYPE per card.
        routes: One row of ROUTE_DTYPE per route.
        route_of: The index of the route, int32 of shape (changes + 1, hosts, cards); -1 where there is no way.
        changes: What failures change; each one begins the next table of ``route_of``.
        computes_with: What ranks compute with instead of the topology's accelerator, if not None.
    """

    topology: Topology
    hosts: tuple[int, ...]
    cards: tuple[int, ...]
    resources: tuple[Resource, ...]
    first: dict[str, int]
    costs: Records
    card_rows: Records
    routes: Records
    route_of: NDArray[np.int32]
    changes: tuple[FabricChange, ...] = ()
    computes_with: Accelerator | None = None

    @classmethod
    def of(cls, topology: Topology, ranks: int, failures: Sequence[Failure] = ()) -> CostModel:
        """Build the model of a topology.

        Args:
            topology: Hosts, cards and the links between them.
            ranks: How many ranks there are; the topology places them on its hosts.
            failures: Links and switches that fail. Requests from then on take the routes that are left.

        Raises:
            ArgumentError: A route has too many links, or there is no such number of ranks.
        """
        hosts = topology.place(ranks)
        placed = ranks if ranks <= topology.place_count else 0  # more than there are places own no memory
        cards = tuple(
            n
            for numbers, group in topology.card_groups()
            for n in numbers[: placed if group.owner == "ranks" else None]
        )
        resources: list[Resource] = []
        costs, of_card = costs_of(topology, cards, ranks, resources)
        first = {}
        for which, words in (("read", "reads"), ("write", "writes"), ("total", "both ways")):
            first[which] = len(resources)
            for card in cards:
                rate = getattr(topology.card(card), f"{which}_gbytes_per_s")
                resources.append(Resource(f"{topology.card_name(card)} {words}", "card", rate))
        rows = np.zeros(len(cards), CARD_DTYPE)
        for row, card, kind in zip(rows, cards, of_card, strict=True):
            host, group = topology.owner_host(card), topology.card(card)
            row["latency_ns"], row["costs"] = group.latency_ns, kind
            row["owner_host"] = -1 if host is None else host
            row["owner_rank"] = -1
        for numbers, group in topology.card_groups():
            if group.owner == "ranks":
                its = slice(cards.index(numbers[0]), cards.index(numbers[0]) + placed) if placed else slice(0)
                rows["owner_rank"][its] = np.arange(placed)
        links = LinkTable(topology, cards, ranks, rows, resources)
        found, route_of, changes = routes_of(topology, cards, failures)
        table = links.table(found)
        return cls(topology, hosts, cards, tuple(resources), first, costs, rows, table, route_of, changes)

    def cards_of(self, space: Space, members: Sequence[int] | None = None) -> tuple[int, ...]:
        """Find the cards of a space.

        Args:
            space: The pool, or a space of memories that hosts or ranks own.
            members: For owned memory, the ranks whose memories are wanted, in order; None for all ranks.

        Returns:
            Indices into ``cards``: all of a pool; of owned memory, one per member.

        Raises:
            ArgumentError: A member has no memory in the space.
        """
        numbers = self.topology.cards_of(space)
        if not space.owned:
            return tuple(range(numbers[0], numbers[-1] + 1))
        by_rank = self.topology.card(numbers[0]).owner == "ranks"
        found = []
        for rank in range(len(self.hosts)) if members is None else members:
            card = numbers[0] + (rank if by_rank else self.hosts[rank])
            if card not in self._index or card > numbers[-1]:
                raise ArgumentError(
                    f"rank {rank} has no memory in space {space.name} of {self.topology.name}: take fewer ranks"
                )
            found.append(self._index[card])
        return tuple(found)

    @cached_property
    def _index(self) -> dict[int, int]:
        return {card: index for index, card in enumerate(self.cards)}

    @cached_property
    def accelerator(self) -> Accelerator | None:
        """What every rank computes with (see cxlemu/cost/compute.py); None where the topology names no accelerator."""
        if self.computes_with is not None:
            return self.computes_with
        name = self.topology.accelerator
        return None if name is None else Accelerator.load(name)

    def tables(self) -> dict[str, Any]:
        """Build the arguments of C's `cost_model_take` (native/cost/tables.h), by name."""
        return {
            "service_rates": self.service_rates(),
            "routes": self.routes,
            "route_of": self.route_of,
            "changes_ns": np.array([change.at_ns for change in self.changes], np.int64),
            "cards": self.card_rows,
            "host_of": np.array(self.hosts, np.int32),
            "costs": self.costs,
            **{f"first_{which}": first for which, first in self.first.items()},
            "multiprocessors": self.accelerator.multiprocessors if self.accelerator else 0,
        }

    def service_rates(self) -> Records:
        """Tell how fast each resource is: one row of SERVICE_RATE_DTYPE per resource."""
        rows = [(bytes_per_ms(its.gbytes_per_s), *its[3:]) for its in self.resources]
        return np.array(rows, SERVICE_RATE_DTYPE)
