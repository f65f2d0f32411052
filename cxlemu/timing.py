"""The cost model: what moving bytes takes on a topology, in integer nanoseconds.

A transfer between a rank and the pool uses, in the direction of its data:

    to the pool      copy engine -> host's link -> ... -> card's link -> card's writes -> card (both directions)
    from the pool    card (both directions) -> card's reads -> card's link -> ... -> host's link -> copy engine

Each is a resource: a rate, and one transfer at a time in the order of requests. A transfer begins at a resource when
it has begun at the one before and the resource is free, keeps it for bytes / rate, and is over when the slowest is. A
link carries whole flits, of which payload is a part, and is kept for `message_ns` more; so the links of InfiniBand,
NVLink and UALink are links like others. The copy engine is held until the transfer is over; all others only for their
own time, as queues before links and cards take in what comes. Bytes that are spread over several cards move at once:
what their ways share carries their sum.

Latencies are added at the end: a read waits for the load latency (way, card, way back), a write lands after the way
there and back, which only FENCE waits for, and a doorbell is seen at the pool after the way there. Switches never
block. Who waits for a doorbell sees it a look (a load, and the cost of observing) after it came, or after he turned
to it if that is later. A stream's costs of its own (Costs) pass one after another; streams of one rank do not slow
each other but through its engines. Not modelled: headers (but for flits), refresh, caches of hosts, a phase of polling,
doorbells' bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError
from cxlemu.plan.instructions import Records
from cxlemu.topology import Link, Route, Topology
from cxlemu.topology.ends import members

HOPS_MAX = 32  # MAX_HOPS in virtual/virtual.h
HOP_DTYPE = np.dtype([("first", "<i4"), ("by_host", "<i4"), ("by_card", "<i4")])
ROUTE_DTYPE = np.dtype(
    [("to_pool", HOP_DTYPE, HOPS_MAX), ("from_pool", HOP_DTYPE, HOPS_MAX), ("hops", "<i8"), ("latency_ns", "<i8")]
)
COST_FIELDS = (
    *("call_ns", "copy_ns", "flush_line_ns", "invalidate_line_ns", "fence_ns"),
    *("doorbell_ring_ns", "doorbell_observe_ns", "doorbell_scan_ns", "local_copy_gbytes_per_s", "reduce_gbytes_per_s"),
)
PACE_FIELDS = ("rate", "message_ns", "flit_bytes", "payload_bytes")
PACE_DTYPE = np.dtype([(name, "<i8") for name in PACE_FIELDS])
COSTS_DTYPE = np.dtype([(name, "<i8") for name in COST_FIELDS])


class Resource(NamedTuple):
    """``kind`` is "engine", "link" or "card". Without a rate it is never in the way."""

    name: str
    kind: str
    gbytes_per_s: float | None
    message_ns: int = 0
    flit_bytes: int = 1
    payload_bytes: int = 1

    def kept_ns(self, nbytes: int) -> int:
        """How long a transfer of so many bytes keeps it."""
        if self.gbytes_per_s is None:
            return 0
        flits = -(-nbytes // self.payload_bytes)
        return self.message_ns + duration_ns(flits * self.flit_bytes, self.gbytes_per_s)


def bytes_per_ms(gbytes_per_s: float | None) -> int:
    """The integer that the model computes with; 0: takes no time."""
    return 0 if gbytes_per_s is None else max(round(gbytes_per_s * 10**6), 1)


def duration_ns(nbytes: int, gbytes_per_s: float | None) -> int:
    """How long a resource is kept: rounded up to whole nanoseconds."""
    rate = bytes_per_ms(gbytes_per_s)
    return -(-nbytes * 10**6 // rate) if rate else 0


@dataclass(frozen=True)
class CostModel:
    """A topology as resources and ways between them, for ranks on its hosts."""

    topology: Topology
    hosts: tuple[int, ...]  # of each rank
    cards: range  # the pool's, as the topology numbers them
    resources: tuple[Resource, ...]
    first: dict[str, int]  # "to", "from", "both": of rank 0; "read", "write", "total": of the pool's card 0
    routes: Records
    route_of: NDArray[np.int32]  # [host][card of the pool]
    card_latency_ns: NDArray[np.int64]

    @classmethod
    def of(cls, topology: Topology, ranks: int) -> CostModel:
        """Raises ArgumentError for routes of too many links, and for ranks that are none."""
        hosts = topology.place(ranks)
        pool = topology.cards_of(topology.pool_space)
        cards = range(pool[0], pool[-1] + 1)
        cost = topology.costs
        resources: list[Resource] = []
        first = {}
        for which, rate in (
            ("to", cost.to_pool_gbytes_per_s),
            ("from", cost.from_pool_gbytes_per_s),
            ("both", cost.both_gbytes_per_s),
        ):
            first[which] = len(resources)
            words = {"to": "to the pool", "from": "from the pool", "both": "both ways"}[which]
            resources += [Resource(f"rank{rank} {words}", "engine", rate) for rank in range(ranks)]
        for which in ("read", "write", "total"):
            first[which] = len(resources)
            for card in cards:
                rate = getattr(topology.card(card), f"{which}_gbytes_per_s")
                words = {"read": "reads", "write": "writes", "total": "both ways"}[which]
                resources.append(Resource(f"card{card} {words}", "card", rate))
        ways = _Ways(topology, cards, resources)
        found, route_of = topology.fabric().table(range(topology.host_count), cards)
        routes = ways.table(found)
        latencies = np.array([topology.card(card).latency_ns for card in cards], np.int64)
        return cls(topology, hosts, cards, tuple(resources), first, routes, route_of, latencies)

    def costs(self) -> Records:
        """One row of COSTS_DTYPE: what is absent costs nothing."""
        values = self.topology.costs.model_dump()
        row = [bytes_per_ms(values[n]) if n.endswith("_per_s") else values[n] or 0 for n in COST_FIELDS]
        return np.array([tuple(row)], COSTS_DTYPE)

    def paces(self) -> Records:
        """A row of PACE_DTYPE for each resource."""
        rows = [(bytes_per_ms(its.gbytes_per_s), *its[3:]) for its in self.resources]
        return np.array(rows, PACE_DTYPE)


class _Ways:
    """Links as resources, two each: there and back; one to some hosts or cards is as many links. Routes as hops."""

    def __init__(self, topology: Topology, cards: range, resources: list[Resource]) -> None:
        self._cards, self._resources = cards, resources
        self._counts = {"host": topology.host_count, "card": topology.card_count}
        self._hops = {link.name: self._add(link) for link in topology.expanded.links}

    def _add(self, link: Link) -> tuple[int, int, int]:
        """The link's hop: the resource of a host and a card is first + by_host * host + by_card * card of the pool."""
        hosts, cards = self._numbers(link, "host"), self._numbers(link, "card")
        if cards:
            pool = self._cards
            cards = range(max(cards.start, pool.start), min(cards.stop, pool.stop))
        first = len(self._resources)
        for host in hosts or [None]:
            for card in cards if cards is not None else [None]:
                words = [f"{kind}{at}" for kind, at in (("host", host), ("card", card)) if at is not None]
                name = " ".join([link.name, *words])
                flit, payload = link.flit_bytes or 1, link.flit_payload_bytes or 1
                for way in ("to the pool", "from the pool"):
                    pace = link.gbytes_per_s, link.message_ns or 0, flit, payload
                    self._resources.append(Resource(f"{name} {way}", "link", *pace))
        by_host, by_card = 2 * len(cards or [0]), 2
        first -= by_host * hosts.start if hosts else 0
        first -= by_card * (cards.start - self._cards.start) if cards else 0
        return first, by_host if hosts else 0, by_card if cards else 0

    def _numbers(self, link: Link, kind: str) -> range | None:
        """Which hosts or cards the link has an end at; None where it needs no word for it, being one or none."""
        for end in link.ends:
            some = members(end)
            if some is not None and some.kind == kind and (some.all_of_them or len(some.numbers) > 1):
                return some.among(self._counts[kind])
        return None

    def table(self, routes: Sequence[Route]) -> Records:
        """Raises ArgumentError for a route of too many links."""
        longest = max((len(route.links) for route in routes), default=0)
        if longest > HOPS_MAX:
            raise ArgumentError(f"a route of {longest} links is too long to be modelled: {HOPS_MAX} are the most")
        numbers = {name: number for number, name in enumerate(self._hops)}
        hops = np.array([*self._hops.values(), (0, 0, 0)], HOP_DTYPE)  # the last one fills up what is shorter
        there = [[numbers[link.name] for link in route.links] for route in routes]
        back = hops.copy()
        back["first"][:-1] += 1
        table = np.zeros(len(routes), ROUTE_DTYPE)
        table["to_pool"] = hops[[way + [-1] * (HOPS_MAX - len(way)) for way in there]]
        table["from_pool"] = back[[way[::-1] + [-1] * (HOPS_MAX - len(way)) for way in there]]
        table["hops"] = [len(way) for way in there]
        table["latency_ns"] = [route.latency_ns for route in routes]
        return table
