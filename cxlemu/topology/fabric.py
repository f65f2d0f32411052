"""The fabric as a graph: which links and switches lie between a host and a card, or memory that a host or rank owns.

A route has as few links as possible and, among those, the least latency. Of several that are equal, ``routing`` takes

    first    the first way on at every switch, in the order of the links
    spread   as switches with equal-cost multi-path do: host h and card c take way number k mod m of the m equal ways on
             at the host, with k = h + c; at the switch behind it the same with k // m; and so on

Both are deterministic. Failed links and switches are no part of the graph: routes lead around them, or there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.topology.endpoints import members
from cxlemu.topology.fields import Link, Routing, Switch

Numbers = NDArray[np.int64]


class Route(NamedTuple):
    """A route from a host to a card: its links and switches in this order.

    The last link of a way to another host's memory is that host's.
    """

    links: tuple[Link, ...]
    switches: tuple[Switch, ...]
    owner: str = ""  # of the memory that it leads to: "hosts", "ranks", or "" where it has no owner
    group: int = 0  # of memories with owners: the first card, that of host or rank 0

    @property
    def key(self) -> tuple[object, ...]:
        """A value that equal routes of a topology share, and no others: the memories and the links' names."""
        return (self.owner, self.group, *(link.name for link in self.links))

    @property
    def latency_ns(self) -> int:
        """The latency of links and switches, one way, in ns."""
        return sum(link.latency_ns for link in self.links) + sum(s.port_latency_ns for s in self.switches)


class Side(NamedTuple):
    """The host that owns a card, itself or by its ranks, if one does, and which switches may lead to the card."""

    host: int | None = None
    owner: str = ""  # "hosts" or "ranks"
    over: frozenset[str] | None = None  # None: any
    group: int = 0  # the first card of its group


class Hop(NamedTuple):
    """A way on: over ``link`` to ``switch``, None where the goal is behind the link."""

    link: Link
    switch: str | None


class _Port(NamedTuple):
    numbers: range
    step: Hop  # its switch is None where there is no switch at the other end


class _Goal(NamedTuple):
    """Where a card is joined to the fabric, and how it may be reached: the same for many cards."""

    steps: tuple[Hop, ...]
    owner: str
    over: frozenset[str] | None
    group: int

    @property
    def key(self) -> tuple[object, ...]:
        return _names(self.steps), self.owner, self.over, self.group


class _Walk(NamedTuple):
    route: Route
    period: int  # numbers that are equal modulo this choose the same route


class Fabric:
    """The switches and links of a machine as a graph that finds routes; the module says which of several is taken."""

    def __init__(
        self,
        switches: Iterable[Switch],
        links: Iterable[Link],
        side: Callable[[int], Side],
        *,
        routing: Routing = "first",
        lost: Collection[str] = (),
    ) -> None:
        self._spread = routing == "spread"
        self._side, self._lost = side, lost
        self._switches = {switch.name: switch for switch in switches if switch.name not in lost}
        self._ways: dict[str, list[Hop]] = {name: [] for name in self._switches}
        self._ports: dict[str, list[_Port]] = {"host": [], "rank": [], "card": []}
        for link in links:
            if link.name not in lost:
                self._add(link)
        self._targets: dict[tuple[object, ...], _Target] = {}
        self._last: tuple[object, tuple[list[Route], NDArray[np.int32]]] | None = None

    def _add(self, link: Link) -> None:
        for here, there in (link.ends, link.ends[::-1]):
            some, others = members(here), members(there)
            if others is None and there not in self._switches:  # it failed
                continue
            step = Hop(link, there if others is None else None)
            if some is not None:
                self._ports[some.kind].append(_Port(some.numbers, step))
            elif others is None and here in self._ways:
                self._ways[here].append(step)

    def route(self, host: int, card: int) -> Route | None:
        """Return the route from a host to a card, None where there is none. Only switches pass traffic on.

        To memory of a rank, it is the route of the other ranks: the owner takes no link.
        """
        side = self._side(card)
        if side.host == host and side.owner == "hosts":
            return Route((), (), side.owner, side.group)
        target = self._target(self._goal(card), inside=side.host in (None, host))
        walk = self._walk(self._steps(("host", "rank"), host), target, host + card, self._spread)
        return None if walk is None else walk.route

    def table(self, hosts: range, cards: Sequence[int]) -> tuple[list[Route], NDArray[np.int32]]:
        """Find the routes of all hosts to all cards, and each pair's index (int32, hosts x cards; -1: no route).

        Hosts that are joined to the fabric alike are looked at together, and so are cards: a thousand hosts take no
        thousand searches. The last answer is kept; nobody may change it.
        """
        asked = hosts, tuple(cards)
        if self._last is None or self._last[0] != asked:
            self._last = asked, self._table(hosts, cards, self._spread)
            self._last[1][1].flags.writeable = False
        return self._last[1]

    def cut_off(self, hosts: range, cards: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield all pairs of a host and a card without a route between them."""
        targets = [self._target(goal, inside=not goal.owner) for _, _, goal in self._goals(cards)]
        # The usual case, told from where routes begin: those of all pairs take most of the time of reading a large one.
        if all(target.best(source) for _, source in self._alike(hosts) for target in targets):
            return
        for host, card in np.argwhere(self._table(hosts, cards, False)[1] < 0).tolist():
            yield hosts[host], cards[card]

    def _table(self, hosts: range, cards: Sequence[int], spread: bool) -> tuple[list[Route], NDArray[np.int32]]:
        found: dict[tuple[object, ...], tuple[int, Route]] = {}

        def number(route: Route) -> int:
            return found.setdefault(route.key, (len(found), route))[0]

        def picked(source: Sequence[Hop], target: _Target, choices: Numbers) -> NDArray[np.int32]:
            block = np.full(choices.shape, -1, np.int32)
            left = np.ones(choices.shape, bool)
            while left.any():
                choice = int(choices.flat[left.argmax()])
                walk = self._walk(source, target, choice, spread)
                if walk is None:
                    break
                same = left if walk.period == 1 else left & (choices % walk.period == choice % walk.period)
                block[same] = number(walk.route)
                left &= ~same
            return block

        taken = np.full((len(hosts), len(cards)), -1, np.int32)
        goals = self._goals(cards)
        for from_hosts, source in self._alike(hosts):
            for to_cards, owners, goal in goals:
                choices = np.add.outer(from_hosts, np.array(cards)[to_cards])
                block = picked(source, self._target(goal, inside=not goal.owner), choices)
                own = np.equal.outer(from_hosts, owners)
                if own.any():
                    if goal.owner == "hosts":
                        block[own] = number(Route((), (), goal.owner, goal.group))
                    else:
                        block = np.where(own, picked(source, self._target(goal, inside=True), choices), block)
                taken[np.ix_(from_hosts - hosts.start, to_cards)] = block
        return [route for _, route in found.values()], taken

    # --- hosts and cards that are joined to the fabric alike -------------------------------------------------------

    def _alike(self, hosts: range) -> list[tuple[Numbers, tuple[Hop, ...]]]:
        alike: dict[tuple[str, ...], tuple[list[int], tuple[Hop, ...]]] = {}
        for host in hosts:
            steps = self._steps(("host", "rank"), host)
            alike.setdefault(_names(steps), ([], steps))[0].append(host)
        return [(np.array(members), steps) for members, steps in alike.values()]

    def _goals(self, cards: Sequence[int]) -> list[tuple[Numbers, Numbers, _Goal]]:
        """Group cards that are reached alike: their positions, their owners' hosts (-1: no owner), and their goal."""
        goals: dict[tuple[object, ...], tuple[list[int], list[int], _Goal]] = {}
        for index, card in enumerate(cards):
            goal, host = self._goal(card), self._side(card).host
            positions, owners, _ = goals.setdefault(goal.key, ([], [], goal))
            positions.append(index)
            owners.append(-1 if host is None else host)
        return [(np.array(positions), np.array(owners), goal) for positions, owners, goal in goals.values()]

    def _goal(self, card: int) -> _Goal:
        host, owner, over, group = self._side(card)
        if host is None:
            return _Goal(self._steps(("card",), card), "", None, 0)
        return _Goal(self._steps(("host", "rank") if owner == "ranks" else ("host",), host), owner, over, group)

    def _steps(self, kinds: Sequence[str], number: int) -> tuple[Hop, ...]:
        """The steps from a host or a card into the fabric."""
        return tuple(
            step
            for kind in kinds
            for numbers, step in self._ports[kind]
            if number in numbers and f"{step.link.name}/{kinds[0]}{number}" not in self._lost
        )

    # --- ways ------------------------------------------------------------------------------------------------------

    def _target(self, goal: _Goal, *, inside: bool) -> _Target:
        """``inside``: the host may take switches that hosts have of their own; other hosts must come over a switch."""
        key = (goal.key, inside)
        if key not in self._targets:
            allowed = {
                name
                for name, switch in self._switches.items()
                if (inside or not switch.per_host) and (goal.over is None or name in goal.over)
            }
            steps = tuple(step for step in goal.steps if (step.switch is None and inside) or step.switch in allowed)
            switches = {name: self._switches[name] for name in allowed}
            self._targets[key] = _Target(steps, goal, self._ways, switches)
        return self._targets[key]

    def _walk(self, source: Iterable[Hop], target: _Target, number: int, spread: bool) -> _Walk | None:
        """Follow the route that ``number`` chooses."""
        options = target.best(source)
        if not options:
            return None
        links: list[Link] = []
        switches: list[Switch] = []
        period = 1
        while True:
            ways = len(options) if spread else 1
            link, switch = options[number // period % ways]
            period *= ways
            links.append(link)
            if switch is None:
                return _Walk(Route(tuple(links), tuple(switches), target.goal.owner, target.goal.group), period)
            switches.append(self._switches[switch])
            options = target.ways_on(switch)


class _Target:
    """The ways to cards that are joined to the fabric by these steps, over these switches."""

    def __init__(
        self, steps: tuple[Hop, ...], goal: _Goal, ways: Mapping[str, Sequence[Hop]], switches: Mapping[str, Switch]
    ) -> None:
        self.goal = goal
        self._steps, self._ways, self._switches = steps, ways, switches
        self._links = set(_names(steps))
        self._left: dict[str, tuple[int, int]] = {}  # from each switch: links, and their latency with that of switches
        self._on: dict[str, list[Hop]] = {}
        waiting = [(1, link.latency_ns, switch) for link, switch in steps if switch is not None]
        waiting.sort()
        while waiting:
            links, latency_ns, here = heappop(waiting)
            if here in self._left:
                continue
            self._left[here] = links, latency_ns
            for link, there in ways[here]:
                if there in switches and there not in self._left:
                    behind_ns = latency_ns + switches[here].port_latency_ns + link.latency_ns
                    heappush(waiting, (links + 1, behind_ns, str(there)))

    def best(self, source: Iterable[Hop]) -> list[Hop]:
        """Return those of a host's or a switch's steps that begin a route as good as any."""
        costs = [(self._cost(step), step) for step in source]
        least = min((cost for cost, _ in costs if cost is not None), default=None)
        return [step for cost, step in costs if cost is not None and cost == least]

    def _cost(self, step: Hop) -> tuple[int, int] | None:
        if step.switch is None:
            return (1, step.link.latency_ns) if step.link.name in self._links else None
        if step.switch not in self._left:
            return None
        links, latency_ns = self._left[step.switch]
        return links + 1, latency_ns + self._switches[step.switch].port_latency_ns + step.link.latency_ns

    def ways_on(self, switch: str) -> list[Hop]:
        """Return the steps from a switch on a route as good as any."""
        if switch not in self._on:
            last = [Hop(link, None) for link, behind in self._steps if behind == switch]
            self._on[switch] = self.best([*last, *self._ways[switch]])
        return self._on[switch]


def _names(steps: Iterable[Hop]) -> tuple[str, ...]:
    return tuple(step.link.name for step in steps)
