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

What COMPUTE costs says cxlemu/compute.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError
from cxlemu.plan.instructions import Records
from cxlemu.topology import Accelerator, Link, Route, Topology

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
        fabric = topology.fabric()
        route_of = np.empty((topology.host_count, len(cards)), np.int32)
        for host in range(topology.host_count):
            for at, card in enumerate(cards):
                route = fabric.route(host, card)
                assert route is not None  # checks.py sees to it
                route_of[host, at] = ways.number(route)
        latencies = np.array([topology.card(card).latency_ns for card in cards], np.int64)
        return cls(topology, hosts, cards, tuple(resources), first, ways.table(), route_of, latencies)

    @cached_property
    def accelerator(self) -> Accelerator | None:
        """What every rank computes with: see cxlemu/compute.py."""
        name = self.topology.accelerator
        return None if name is None else Accelerator.load(name)

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
    """Routes as hops. A link to ``hosts`` or ``cards`` is one for each of them, two resources: there and back."""

    def __init__(self, topology: Topology, cards: range, resources: list[Resource]) -> None:
        self._hosts, self._cards = topology.host_count, len(cards)
        self._hops: dict[str, tuple[int, int, int]] = {}  # a link's: first, by_host, by_card
        self._numbers: dict[Route, int] = {}
        for link in topology.links:
            self._hops[link.name] = self._add(link, cards, resources)

    def _add(self, link: Link, cards: range, resources: list[Resource]) -> tuple[int, int, int]:
        by_host, by_card = "hosts" in link.ends, "cards" in link.ends
        first = len(resources)
        for host in range(self._hosts if by_host else 1):
            for card in cards if by_card else [0]:
                words = [f"host{host}"] * by_host + [f"card{card}"] * by_card
                name = " ".join([link.name, *words])
                for way in ("to the pool", "from the pool"):
                    flit, payload = link.flit_bytes or 1, link.flit_payload_bytes or 1
                    resources.append(
                        Resource(f"{name} {way}", "link", link.gbytes_per_s, link.message_ns or 0, flit, payload)
                    )
        each = 2 * (self._cards if by_card else 1)
        return first, each if by_host else 0, 2 if by_card else 0

    def number(self, route: Route) -> int:
        if len(route.links) > HOPS_MAX:
            raise ArgumentError(
                f"a route of {len(route.links)} links is too long to be modelled: {HOPS_MAX} are the most"
            )
        return self._numbers.setdefault(route, len(self._numbers))

    def table(self) -> Records:
        table = np.zeros(len(self._numbers), ROUTE_DTYPE)
        for row, route in zip(table, self._numbers, strict=True):
            hops = [self._hops[link.name] for link in route.links]
            row["to_pool"][: len(hops)] = hops
            row["from_pool"][: len(hops)] = [(first + 1, host, card) for first, host, card in reversed(hops)]
            row["hops"], row["latency_ns"] = len(hops), route.latency_ns
        return table
