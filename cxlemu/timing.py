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
wrote before, as on one RDMA connection or XLink; each access but the owner's pays for coherence what the space says.

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
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError
from cxlemu.plan.instructions import Records
from cxlemu.topology import Accelerator, Costs, Link, Route, Space, Topology
from cxlemu.topology.ends import members
from cxlemu.topology.failures import Change, Failure

HOPS_MAX = 32  # MAX_HOPS in cost/cost.h
HOP_FIELDS = ("first", "by_host", "by_rank", "by_card", "by_owner")
HOP_DTYPE = np.dtype([(name, "<i4") for name in HOP_FIELDS])
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
ENGINES = ("to", "from", "both", "fold")
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
    route_of: NDArray[np.int32]  # [change][host][card]; -1: no way
    changes: tuple[Change, ...] = ()  # each begins the next table

    @classmethod
    def of(cls, topology: Topology, ranks: int, failures: Sequence[Failure] = ()) -> CostModel:
        """``failures``: what is asked of the fabric from their times on takes the routes that are left.

        Raises ArgumentError for routes of too many links, and for ranks that are none.
        """
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
        found, route_of, changes = _routes(topology, cards, failures)
        table = ways.table(found)
        return cls(topology, hosts, cards, tuple(resources), first, costs, rows, table, route_of, changes)

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

    def tables(self) -> dict[str, Any]:
        """What C takes of it: see cost/tables.h."""
        return {
            "paces": self.paces(),
            "routes": self.routes,
            "route_of": self.route_of,
            "changes_ns": np.array([change.at_ns for change in self.changes], np.int64),
            "cards": self.card_rows,
            "host_of": np.array(self.hosts, np.int32),
            "costs": self.costs,
            **{f"first_{which}": first for which, first in self.first.items()},
            "multiprocessors": self.accelerator.multiprocessors if self.accelerator else 0,
        }

    def paces(self) -> Records:
        """A row of PACE_DTYPE for each resource."""
        rows = [(bytes_per_ms(its.gbytes_per_s), *its[3:]) for its in self.resources]
        return np.array(rows, PACE_DTYPE)


def _routes(
    topology: Topology, cards: Sequence[int], failures: Sequence[Failure]
) -> tuple[list[Route], NDArray[np.int32], tuple[Change, ...]]:
    """All routes that are ever taken, which of them [change][host][card] takes, and what changed."""
    found: dict[tuple[str, ...], tuple[int, Route]] = {}
    tables: list[NDArray[np.int32]] = []
    changes: list[Change] = []
    times = sorted({failure.at_ns for failure in failures})
    for at_ns in [-1, *times]:
        lost = {failure.name for failure in failures if failure.at_ns <= at_ns}
        routes, taken = topology.fabric(lost).table(range(topology.host_count), cards)
        numbers = [found.setdefault(route.key, (len(found), route))[0] for route in routes]
        tables.append(np.array([*numbers, -1], np.int32)[taken])
        if at_ns >= 0:
            now = tuple(failure for failure in failures if failure.at_ns == at_ns)
            changes.append(_change(at_ns, now, tables[-2:], [route for _, route in found.values()], cards))
    return [route for _, route in found.values()], np.stack(tables), tuple(changes)


def _change(
    at_ns: int,
    failures: tuple[Failure, ...],
    tables: Sequence[NDArray[np.int32]],
    routes: Sequence[Route],
    cards: Sequence[int],
) -> Change:
    before, after = tables
    ended = np.argwhere((before >= 0) & (after < 0)).tolist()
    rerouted = np.argwhere((after >= 0) & (before != after))
    one = tuple(rerouted[0]) if len(rerouted) else None
    return Change(
        at_ns,
        failures,
        int((before >= 0).sum()),
        len(rerouted),
        tuple((host, cards[at]) for host, at in ended),
        None if one is None else routes[before[one]],
        None if one is None else routes[after[one]],
        (-1, -1) if one is None else (int(one[0]), cards[int(one[1])]),
    )


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


def _engines(cost: Costs, ranks: int, name: str, resources: list[Resource]) -> tuple[int, ...]:
    """Every rank's copy engines, and where each kind of them begins."""
    firsts = []
    for words, rate in (
        (f"to {name}", cost.to_pool_gbytes_per_s),
        (f"from {name}", cost.from_pool_gbytes_per_s),
        ("both ways" if name == "the pool" else f"{name} both ways", cost.both_gbytes_per_s),
    ):
        firsts.append(len(resources))
        resources += [Resource(f"rank{rank} {words}", "engine", rate) for rank in range(ranks)]
    if cost.fold_from_pool_gbytes_per_s is None:
        return (*firsts, firsts[1])
    firsts.append(len(resources))
    rate = cost.fold_from_pool_gbytes_per_s
    resources += [Resource(f"rank{rank} folding from {name}", "engine", rate) for rank in range(ranks)]
    return tuple(firsts)


class _Ways:
    """Links as resources, two each: there and back. Routes as hops.

    A link to some hosts, ranks or cards is one for each of them. A switch that every host has of its own has a link of
    its own, too, to whatever it joins.
    """

    def __init__(
        self, topology: Topology, cards: Sequence[int], ranks: int, card_rows: Records, resources: list[Resource]
    ) -> None:
        self._resources = resources
        pooled = sum(topology.owner_host(card) is None for card in cards)
        self._counts = {"host": topology.host_count, "rank": ranks, "card": pooled}
        self._first_of_ranks = next((at for at, row in enumerate(card_rows) if row["owner_rank"] == 0), 0)
        self._level = {switch.name: switch.level for switch in topology.expanded.switches}
        self._own = {switch.name for switch in topology.expanded.switches if switch.per_host}
        self._hops = {link.name: self._add(link) for link in topology.expanded.links}

    def _add(self, link: Link) -> tuple[int, int, int, int]:
        """The link's first resource, as if its hosts, ranks and cards began at 0, and how many lie between those of two
        hosts, two ranks and two cards.
        """
        hosts, ranks, cards = (self._numbers(link, kind) for kind in ("host", "rank", "card"))
        if hosts is None and ranks is None and not self._own.isdisjoint(link.ends):
            hosts = range(self._counts["host"])
        first, pace = len(self._resources), (link.gbytes_per_s, link.message_ns or 0)
        flit, payload = link.flit_bytes or 1, link.flit_payload_bytes or 1
        for host, rank, card in product(hosts or [None], ranks or [None], cards or [None]):
            words = [f"{kind}{at}" for kind, at in (("host", host), ("rank", rank), ("card", card)) if at is not None]
            for way in ("to the pool", "from the pool"):
                self._resources.append(Resource(" ".join([link.name, *words, way]), "link", *pace, flit, payload))
        each = 2 * len(cards or [0])
        by_host, by_rank, by_card = each * bool(hosts), each * bool(ranks), 2 * bool(cards)
        return first - by_host * (hosts or [0])[0] - by_card * (cards or [0])[0], by_host, by_rank, by_card

    def _numbers(self, link: Link, kind: str) -> range | None:
        """Which hosts, ranks or cards the link has an end at; None where that is none, or one that needs no word."""
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
        hops: dict[tuple[int, ...], int] = {(0,) * len(HOP_FIELDS): 0}  # the first one fills up what is shorter
        both: dict[tuple[str, str, bool], tuple[int, int]] = {}
        there, back = np.zeros((2, len(routes), HOPS_MAX), np.int64)
        for number, route in enumerate(routes):
            ways, came_from = [], ""
            for at, link in enumerate(route.links):
                owners = bool(route.owner) and at == len(route.links) - 1
                key = link.name, came_from, owners
                if key not in both:
                    to, fro = (hops.setdefault(hop, len(hops)) for hop in self._hop(link, came_from, owners))
                    both[key] = to, fro
                ways.append(both[key])
                came_from = route.switches[at].name if at < len(route.switches) else ""
            there[number, : len(ways)] = [way for way, _ in ways]
            back[number, : len(ways)] = [way for _, way in reversed(ways)]
        table, rows = np.zeros(len(routes), ROUTE_DTYPE), np.array(list(hops), HOP_DTYPE)
        table["to_pool"], table["from_pool"] = rows[there], rows[back]
        table["hops"] = [len(route.links) for route in routes]
        table["latency_ns"] = [route.latency_ns for route in routes]
        return table

    def _hop(self, link: Link, came_from: str, owners: bool) -> list[tuple[int, ...]]:
        """A link on the way to a memory, and on the way back. ``owners``: it is that of the memory's owner."""
        first, by_host, by_rank, by_card = self._hops[link.name]
        if owners:
            where = (0, 0, by_rank, by_host)
            first -= by_rank * self._first_of_ranks
        else:
            where = (by_host, by_rank, by_card, 0)
        towards = self._is_towards(link, came_from)
        return [(first + (not towards), *where), (first + towards, *where)]

    def _is_towards(self, link: Link, came_from: str) -> bool:
        """Whether a link is taken in the direction that is called "to the pool": away from hosts and ranks, to cards,
        and from lower switches to higher ones.
        """
        start, end = link.ends
        if not came_from:
            return True
        if start in self._level and end in self._level:
            return came_from == (start if self._level[start] <= self._level[end] else end)
        some = members(start) or members(end)
        return some is not None and some.kind == "card"
