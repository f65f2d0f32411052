"""Links as resources, and routes as hops from one to the next."""

from collections.abc import Sequence
from itertools import product

import numpy as np

from cxlemu.cost.resources import Resource
from cxlemu.errors import ArgumentError
from cxlemu.plan.instructions import Records
from cxlemu.topology import Link, Route, Topology
from cxlemu.topology.endpoints import members

HOPS_MAX = 32  # MAX_HOPS in cost/cost.h
HOP_FIELDS = ("first", "by_host", "by_rank", "by_card", "by_owner")
HOP_DTYPE = np.dtype([(name, "<i4") for name in HOP_FIELDS])
ROUTE_DTYPE = np.dtype(
    [("to_pool", HOP_DTYPE, HOPS_MAX), ("from_pool", HOP_DTYPE, HOPS_MAX), ("hops", "<i8"), ("latency_ns", "<i8")]
)


class LinkTable:
    """A topology's links as resources, one for each direction, and its routes as hops from one to the next.

    A link to several hosts, ranks or cards stands for one link to each of them. A switch of which every host has its
    own has, on each host, its own link to whatever it joins.
    """

    def __init__(
        self, topology: Topology, cards: Sequence[int], ranks: int, card_rows: Records, resources: list[Resource]
    ) -> None:
        """Append the topology's links to the resources."""
        self._resources = resources
        pooled = sum(topology.owner_host(card) is None for card in cards)
        self._counts = {"host": topology.host_count, "rank": ranks, "card": pooled}
        self._of_rank_0 = {cards[index]: index for index, row in enumerate(card_rows) if row["owner_rank"] == 0}
        pool = any(space.kind == "cxl_pool" for space in topology.spaces)
        self._ways = ("to the pool", "from the pool") if pool else ("out", "in")
        self._level = {switch.name: switch.level for switch in topology.expanded.switches}
        self._own = {switch.name for switch in topology.expanded.switches if switch.per_host}
        self._hops = {link.name: self._add(link) for link in topology.expanded.links}

    def _add(self, link: Link) -> tuple[int, int, int, int]:
        """Append a link's resources; return the first one's index, and its steps per host, rank and card."""
        hosts, ranks, cards = (self._numbers(link, kind) for kind in ("host", "rank", "card"))
        if hosts is None and ranks is None and not self._own.isdisjoint(link.ends):
            hosts = range(self._counts["host"])
        first, rate = len(self._resources), (link.gbytes_per_s, link.message_ns or 0)
        flit, payload = link.flit_bytes or 1, link.flit_payload_bytes or 1
        for host, rank, card in product(hosts or [None], ranks or [None], cards or [None]):
            words = [
                f"{kind}{index}"
                for kind, index in (("host", host), ("rank", rank), ("card", card))
                if index is not None
            ]
            for way, asks in zip(self._ways, (0, link.request_bytes or 0), strict=True):
                name = " ".join([link.name, *words, way])
                self._resources.append(Resource(name, "link", *rate, flit, payload, link.buffer_bytes or 0, asks))
        each = 2 * len(cards or [0])
        by_host, by_rank, by_card = each * bool(hosts), each * bool(ranks), 2 * bool(cards)
        return first - by_host * (hosts or [0])[0] - by_card * (cards or [0])[0], by_host, by_rank, by_card

    def _numbers(self, link: Link, kind: str) -> range | None:
        """List the hosts, ranks or cards at which the link ends; None if it has none, or one that its name implies."""
        for end in link.ends:
            some = members(end)
            if some is not None and some.kind == kind and (some.all_of_them or len(some.numbers) > 1):
                return some.among(self._counts[kind])
        return None

    def table(self, routes: Sequence[Route]) -> Records:
        """Turn routes into the table that C takes, one row of ROUTE_DTYPE per route."""
        longest = max((len(route.links) for route in routes), default=0)
        if longest > HOPS_MAX:
            raise ArgumentError(f"a route of {longest} links exceeds the limit of {HOPS_MAX}")
        hops: dict[tuple[int, ...], int] = {(0,) * len(HOP_FIELDS): 0}  # the first one fills up what is shorter
        both: dict[tuple[str, str, int | None], tuple[int, int]] = {}
        there, back = np.zeros((2, len(routes), HOPS_MAX), np.int64)
        for number, route in enumerate(routes):
            ways, came_from = [], ""
            for index, link in enumerate(route.links):
                group = route.group if route.owner and index == len(route.links) - 1 else None
                key = link.name, came_from, group
                if key not in both:
                    to, fro = (hops.setdefault(hop, len(hops)) for hop in self._hop(link, came_from, group))
                    both[key] = to, fro
                ways.append(both[key])
                came_from = route.switches[index].name if index < len(route.switches) else ""
            there[number, : len(ways)] = [way for way, _ in ways]
            back[number, : len(ways)] = [way for _, way in reversed(ways)]
        table, rows = np.zeros(len(routes), ROUTE_DTYPE), np.array(list(hops), HOP_DTYPE)
        table["to_pool"], table["from_pool"] = rows[there], rows[back]
        table["hops"] = [len(route.links) for route in routes]
        table["latency_ns"] = [route.latency_ns for route in routes]
        return table

    def _hop(self, link: Link, came_from: str, group: int | None) -> list[tuple[int, ...]]:
        """Make the hops of a link on the way to a memory and back. ``group``: of memories whose owner's link it is."""
        first, by_host, by_rank, by_card = self._hops[link.name]
        if group is not None:
            where = (0, 0, by_rank, by_host)
            first -= by_rank * self._of_rank_0.get(group, 0)
        else:
            where = (by_host, by_rank, by_card, 0)
        towards = self._is_towards(link, came_from)
        return [(first + (not towards), *where), (first + towards, *where)]

    def _is_towards(self, link: Link, came_from: str) -> bool:
        """Whether a link is taken in the direction "to the pool".

        That is away from hosts and ranks, to cards, and from lower switches to higher ones.
        """
        start, end = link.ends
        if not came_from:
            return True
        if start in self._level and end in self._level:
            return came_from == (start if self._level[start] <= self._level[end] else end)
        some = members(start) or members(end)
        return some is not None and some.kind == "card"
