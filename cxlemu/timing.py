"""The cost model: what moving bytes takes on a topology, in integer nanoseconds.

A transfer between a rank and a memory uses, in the direction of its data:

    to the pool      copy engine -> host's link -> ... -> card's link -> card's writes -> card (both directions)
    from the pool    card (both directions) -> card's reads -> card's link -> ... -> host's link -> copy engine

Each is a resource: a rate, and one transfer at a time in the order of requests. A transfer begins at a resource when
it has begun at the one before and the resource is free, keeps it for bytes / rate, and is over when the slowest is. A
link carries whole flits, of which payload is a part, and is kept for `message_ns` more; so the links of InfiniBand,
NVLink and UALink are links like others. The copy engine is held until the transfer is over; all others only for their
own time, as queues before links and cards take in what comes. Bytes that are spread over several cards move at once:
what their ways share carries their sum.

Memory that a host or a rank owns is a card, too. Its owner takes no link to it; others take their own links and then
the owner's, against the direction in which the owner takes them. Each space has costs and engines of its own where its
file says so. On a coherent one flushes, fences and invalidates take no time, and no doorbell overtakes what its rank
wrote before, as on one RDMA connection or XLink; each access pays for coherence what the space says.

Latencies are added at the end: a read waits for the load latency (way, card, way back), a write lands after the way
there and back, which only FENCE waits for, and a doorbell is seen at the pool after the way there. Switches never
block. Who waits for a doorbell sees it a look (a load, and the cost of observing) after it came, or after he turned
to it if that is later. A stream's costs of its own (Costs) pass one after another; streams of one rank do not slow
each other but through its engines. Not modelled: headers (but for flits), refresh, caches of hosts, a phase of polling,
doorbells' bytes.

What COMPUTE costs says cxlemu/compute.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError
from cxlemu.plan.instructions import Records
from cxlemu.topology import Accelerator, Cards, Costs, Link, Route, Space, Switch, Topology

HOPS_MAX = 32  # MAX_HOPS in virtual/virtual.h
HOP_DTYPE = np.dtype([(name, "<i4") for name in ("first", "by_host", "by_rank", "by_card", "by_owner")])
ROUTE_DTYPE = np.dtype(
    [("to_pool", HOP_DTYPE, HOPS_MAX), ("from_pool", HOP_DTYPE, HOPS_MAX), ("hops", "<i8"), ("latency_ns", "<i8")]
)
CARD_DTYPE = np.dtype(
    [("latency_ns", "<i8"), ("costs", "<i4"), ("owner_host", "<i4"), ("owner_rank", "<i4"), ("pad", "<i4")]
)
COST_FIELDS = (
    *("call_ns", "copy_ns", "flush_line_ns", "invalidate_line_ns", "fence_ns"),
    *("doorbell_ring_ns", "doorbell_observe_ns", "doorbell_scan_ns", "local_copy_gbytes_per_s", "reduce_gbytes_per_s"),
)
ENGINES = ("to", "from", "both")
PACE_FIELDS = ("rate", "message_ns", "flit_bytes", "payload_bytes")
PACE_DTYPE = np.dtype([(name, "<i8") for name in PACE_FIELDS])
COSTS_DTYPE = np.dtype(
    [(name, "<i8") for name in (*COST_FIELDS, "coherent", "coherence_ns", *(f"first_{way}" for way in ENGINES))]
)


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
    cards: tuple[int, ...]  # as the topology numbers them; memories of ranks that there are not are left out
    resources: tuple[Resource, ...]
    first: dict[str, int]  # "read", "write", "total": of the first card
    costs: Records  # a row of COSTS_DTYPE: the general ones, then those of spaces that differ
    card_rows: Records  # of CARD_DTYPE
    routes: Records
    route_of: NDArray[np.int32]  # [host][card]; -1: no way

    @classmethod
    def of(cls, topology: Topology, ranks: int) -> CostModel:
        """Raises ArgumentError for routes of too many links, and for ranks that are none."""
        hosts = topology.place(ranks)
        placed = ranks if ranks <= topology.place_count else 0  # more than there are places own no memory
        cards = tuple(
            n
            for numbers, group in topology.card_groups()
            for n in numbers[: placed if group.owner == "ranks" else None]
        )
        resources: list[Resource] = []
        costs, of_card = _costs(topology, cards, ranks, resources)
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
        ways = _Ways(topology, cards, ranks, rows, resources)
        route_of = ways.numbers()
        return cls(topology, hosts, cards, tuple(resources), first, costs, rows, ways.table(), route_of)

    def cards_of(self, space: Space, members: Sequence[int] | None = None) -> tuple[int, ...]:
        """The model's cards, by index, of a space: all of a pool, of owned memory that of each member's own, in order.

        Raises ArgumentError where a member has none.
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
        """What every rank computes with: see cxlemu/compute.py."""
        name = self.topology.accelerator
        return None if name is None else Accelerator.load(name)

    def paces(self) -> Records:
        """A row of PACE_DTYPE for each resource."""
        rows = [(bytes_per_ms(its.gbytes_per_s), *its[3:]) for its in self.resources]
        return np.array(rows, PACE_DTYPE)


def _costs(
    topology: Topology, cards: Sequence[int], ranks: int, resources: list[Resource]
) -> tuple[Records, NDArray[np.int32]]:
    """Rows of costs, with the engines that they bring, and which of them is each card's."""
    kinds: list[tuple[Costs, bool, int, str]] = [(topology.costs, False, 0, "the pool")]
    of_card = np.zeros(len(cards), np.int32)
    for space in topology.spaces:
        if not space.on_cards or (space.costs is None and not space.coherent):
            continue
        its = np.isin(cards, topology.cards_of(space)) & (of_card == 0)
        of_card[its] = len(kinds)
        kinds.append((space.costs or topology.costs, space.coherent, space.coherence_ns or 0, space.name))
    rows, engines = [], {}
    for cost, coherent, coherence_ns, name in kinds:
        if id(cost) not in engines:  # who shares costs shares engines
            engines[id(cost)] = _engines(cost, ranks, name, resources)
        values = cost.model_dump()
        row = [bytes_per_ms(values[n]) if n.endswith("_per_s") else values[n] or 0 for n in COST_FIELDS]
        rows.append((*row, coherent, coherence_ns, *engines[id(cost)]))
    return np.array(rows, COSTS_DTYPE), of_card


def _engines(cost: Costs, ranks: int, name: str, resources: list[Resource]) -> tuple[int, int, int]:
    """Every rank's copy engines, and where each kind of them begins."""
    firsts = []
    for words, rate in (
        (f"to {name}", cost.to_pool_gbytes_per_s),
        (f"from {name}", cost.from_pool_gbytes_per_s),
        ("both ways" if name == "the pool" else f"{name} both ways", cost.both_gbytes_per_s),
    ):
        firsts.append(len(resources))
        resources += [Resource(f"rank{rank} {words}", "engine", rate) for rank in range(ranks)]
    return firsts[0], firsts[1], firsts[2]


class _Ways:
    """Routes as hops. A link to ``hosts``, ``ranks`` or ``cards`` is one for each, two resources: there and back.

    A switch that every host has of its own has a link of its own, too, to whatever it joins.
    """

    def __init__(
        self, topology: Topology, cards: Sequence[int], ranks: int, card_rows: Records, resources: list[Resource]
    ) -> None:
        self._topology, self._cards, self._ranks, self._rows = topology, cards, ranks, card_rows
        self._pooled = [card for card in cards if topology.owner_host(card) is None]
        self._hops: dict[str, tuple[int, int, int, int]] = {}  # a link's: first, by_host, by_rank, by_card
        self._numbers: dict[tuple[Route, str], int] = {}
        for link in topology.links:
            self._hops[link.name] = self._add(link, resources)

    def _add(self, link: Link, resources: list[Resource]) -> tuple[int, int, int, int]:
        own = {switch.name for switch in self._topology.switches if switch.per_host}
        by_rank, by_card = "ranks" in link.ends, "cards" in link.ends
        by_host = not by_rank and ("hosts" in link.ends or not own.isdisjoint(link.ends))
        first = len(resources)
        for host in range(self._topology.host_count if by_host else 1):
            for rank in range(self._ranks if by_rank else 1):
                for card in self._pooled if by_card else [0]:
                    words = [f"host{host}"] * by_host + [f"rank{rank}"] * by_rank + [f"card{card}"] * by_card
                    name = " ".join([link.name, *words])
                    for way in ("to the pool", "from the pool"):
                        flit, payload = link.flit_bytes or 1, link.flit_payload_bytes or 1
                        resources.append(
                            Resource(f"{name} {way}", "link", link.gbytes_per_s, link.message_ns or 0, flit, payload)
                        )
        each = 2 * (len(self._pooled) if by_card else 1)
        return first, each * by_host, each * by_rank, 2 * by_card

    def numbers(self) -> NDArray[np.int32]:
        """[host][card]: which route."""
        fabric, owners = self._topology.fabric(), self._rows["owner_host"]
        table = np.full((self._topology.host_count, len(self._cards)), -1, np.int32)
        alike = self._topology.alike_hosts()
        for hosts in alike:
            for at, card in enumerate(self._pooled):
                table[hosts, at] = self._number(fabric.route(hosts[0], card), "")
        for numbers, group in self._topology.card_groups():
            if group.owner is None or numbers[0] not in self._cards:
                continue
            its = np.isin(self._cards, numbers)
            for hosts in alike:
                for others in alike:
                    there = next((host for host in others if host != hosts[0]), None)
                    if there is not None:
                        route = fabric.route(hosts[0], self._of(numbers, group, there))
                        columns = np.flatnonzero(its & np.isin(owners, others))
                        table[np.ix_(np.array(hosts), columns)] = self._number(route, group.owner)
                own = self._number(fabric.route(hosts[0], self._of(numbers, group, hosts[0])), group.owner)
                columns = np.flatnonzero(its & np.isin(owners, hosts))
                table[owners[columns], columns] = own
        return table

    def _of(self, numbers: range, group: Cards, host: int) -> int:
        return numbers[host if group.owner == "hosts" else host * self._topology.hosts.ranks_per_host]

    def _number(self, route: Route | None, owner: str) -> int:
        if route is None:
            return -1
        if len(route.links) > HOPS_MAX:
            raise ArgumentError(
                f"a route of {len(route.links)} links is too long to be modelled: {HOPS_MAX} are the most"
            )
        return self._numbers.setdefault((route, owner), len(self._numbers))

    def table(self) -> Records:
        table = np.zeros(len(self._numbers), ROUTE_DTYPE)
        for row, (route, owner) in zip(table, self._numbers, strict=True):
            to_pool, from_pool = self._there_and_back(route, owner)
            row["to_pool"][: len(to_pool)], row["from_pool"][: len(to_pool)] = to_pool, from_pool
            row["hops"], row["latency_ns"] = len(to_pool), route.latency_ns
        return table

    def _there_and_back(self, route: Route, owner: str) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Hops to the memory and from it. The last link to owned memory is its owner's."""
        there: list[tuple[int, ...]] = []
        back: list[tuple[int, ...]] = []
        for at, link in enumerate(route.links):
            first, by_host, by_rank, by_card = self._hops[link.name]
            if owner and at == len(route.links) - 1 and not {"hosts", "ranks"}.isdisjoint(link.ends):
                where = (first - by_rank * self._first_of_ranks, 0, 0, by_rank, by_host)
            else:
                where = (first, by_host, by_rank, by_card, 0)
            towards = self._is_towards(link, route.switches[at - 1] if at else None)
            there.append((where[0] + (not towards), *where[1:]))
            back.insert(0, (where[0] + towards, *where[1:]))
        return there, back

    @property
    def _first_of_ranks(self) -> int:
        return next((at for at, row in enumerate(self._rows) if row["owner_rank"] == 0), 0)

    def _is_towards(self, link: Link, comes_from: Switch | None) -> bool:
        """Whether a link is taken in the direction that is called "to the pool": away from hosts and ranks, to cards,
        and from lower switches to higher ones.
        """
        if comes_from is None:
            return True
        level = {switch.name: switch.level for switch in self._topology.switches}
        start, end = link.ends
        if start not in level or end not in level:
            return comes_from.name == (start if end.startswith("card") else end if start.startswith("card") else "")
        return comes_from.name == (start if level[start] <= level[end] else end)
