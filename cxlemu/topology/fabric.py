"""The fabric as a graph: which links and switches lie between a host and a card.

A route has as few links as possible. Where several have equally few, ``routing`` chooses:

    first    the first way on at every switch, in the order of the links
    spread   as switches with equal-cost multi-path do: host h and card c take way number k mod m of the m equally short
             ways on at the host, with k = h + c; at the switch behind it the same with k // m; and so on

Both are deterministic. What failed is no part of the graph: routes lead around it, or there is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.topology.ends import members
from cxlemu.topology.fields import Link, Routing, Switch


class Route(NamedTuple):
    """From a host to a card, in this order."""

    links: tuple[Link, ...]
    switches: tuple[Switch, ...]

    @property
    def latency_ns(self) -> int:
        """One way."""
        return sum(link.latency_ns for link in self.links) + sum(s.port_latency_ns for s in self.switches)


class Step(NamedTuple):
    """A way on: over ``link`` to ``switch``, None where the card is behind the link."""

    link: Link
    switch: str | None


class _Port(NamedTuple):
    numbers: range
    step: Step  # its switch is None where hosts and cards are at both ends


class _Walk(NamedTuple):
    route: Route
    unique: bool  # whatever the choices, there is no other


class Fabric:
    """``lost`` names links and switches, and with ``LINK/host3`` or ``LINK/card3`` one of a link's ends."""

    def __init__(
        self,
        switches: Iterable[Switch],
        links: Iterable[Link],
        *,
        routing: Routing = "first",
        lost: Collection[str] = (),
    ) -> None:
        self._spread = routing == "spread"
        self._lost = lost
        self._switches = {switch.name: switch for switch in switches if switch.name not in lost}
        self._ways: dict[str, list[Step]] = {name: [] for name in self._switches}
        self._ports: dict[str, list[_Port]] = {"host": [], "card": []}
        for link in links:
            if link.name not in lost:
                self._add(link)
        self._targets: dict[tuple[str, ...], _Target] = {}

    def _add(self, link: Link) -> None:
        for here, there in (link.ends, link.ends[::-1]):
            some, others = members(here), members(there)
            if others is None and there not in self._switches:  # it failed
                continue
            step = Step(link, there if others is None else None)
            if some is not None:
                self._ports[some.kind].append(_Port(some.numbers, step))
            elif others is None and here in self._ways:
                self._ways[here].append(step)

    def route(self, host: int, card: int) -> Route | None:
        """The route from a host to a card, None where there is none. Only switches pass traffic on."""
        found = self._walk(self._steps("host", host), self._target(self._steps("card", card)), host + card)
        return None if found is None else found.route

    def cut_off(self, hosts: range, cards: range) -> Iterator[tuple[int, int]]:
        """All hosts and cards without a route between them."""
        targets = self._alike("card", cards)
        for from_hosts, source in self._alike("host", hosts):
            for to_cards, steps in targets:
                if self._walk(source, self._target(steps), 0) is None:
                    yield from product(from_hosts, to_cards)

    def table(self, hosts: range, cards: range) -> tuple[list[Route], NDArray[np.int32]]:
        """Every route that is taken, and which of them [host][card] takes, -1 where there is none.

        Hosts that are joined to the fabric alike are looked at together, and so are cards: a thousand hosts take no
        thousand searches.
        """
        numbers: dict[tuple[str, ...], int] = {}
        found: list[Route] = []

        def number(route: Route) -> int:
            key = tuple(link.name for link in route.links)
            if key not in numbers:
                numbers[key] = len(found)
                found.append(route)
            return numbers[key]

        taken = np.full((len(hosts), len(cards)), -1, np.int32)
        targets = self._alike("card", cards)
        for from_hosts, source in self._alike("host", hosts):
            for to_cards, steps in targets:
                target = self._target(steps)
                choices, its = np.unique(np.add.outer(from_hosts, to_cards), return_inverse=True)
                first = self._walk(source, target, int(choices[0]))
                if first is None:
                    continue
                if first.unique:
                    choices, its = choices[:1], np.zeros_like(its)
                walks = [self._walk(source, target, choice) for choice in choices.tolist()]
                rows = np.ix_(np.array(from_hosts) - hosts.start, np.array(to_cards) - cards.start)
                its = its.reshape(len(from_hosts), len(to_cards))
                taken[rows] = np.array([number(walk.route) for walk in walks if walk is not None], np.int32)[its]
        return found, taken

    def _alike(self, kind: str, numbers: range) -> list[tuple[list[int], tuple[Step, ...]]]:
        """Hosts or cards that are joined to the fabric by the same links, together, and those links."""
        found: dict[tuple[str, ...], tuple[list[int], tuple[Step, ...]]] = {}
        for number in numbers:
            steps = self._steps(kind, number)
            found.setdefault(_names(steps), ([], steps))[0].append(number)
        return list(found.values())

    def _steps(self, kind: str, number: int) -> tuple[Step, ...]:
        """From a host or a card into the fabric."""
        here = [step for numbers, step in self._ports[kind] if number in numbers]
        return tuple(step for step in here if f"{step.link.name}/{kind}{number}" not in self._lost)

    def _target(self, steps: tuple[Step, ...]) -> _Target:
        key = _names(steps)
        if key not in self._targets:
            self._targets[key] = _Target(steps, self._ways)
        return self._targets[key]

    def _walk(self, source: Iterable[Step], target: _Target, number: int) -> _Walk | None:
        """The way that ``number`` says."""
        options = target.nearest(source)
        if not options:
            return None
        links: list[Link] = []
        switches: list[Switch] = []
        unique = True
        while True:
            unique = unique and (len(options) == 1 or not self._spread)
            link, switch = options[number % len(options) if self._spread else 0]
            number //= len(options)
            links.append(link)
            if switch is None:
                return _Walk(Route(tuple(links), tuple(switches)), unique)
            switches.append(self._switches[switch])
            options = target.ways_on(switch)


class _Target:
    """The ways to cards that are joined to the fabric by these steps."""

    def __init__(self, steps: tuple[Step, ...], ways: Mapping[str, Sequence[Step]]) -> None:
        self._steps, self._ways = steps, ways
        self._links = set(_names(steps))
        self._left = {step.switch: 1 for step in steps if step.switch is not None}  # links from each switch
        self._on: dict[str, list[Step]] = {}
        waiting = deque(self._left)
        while waiting:
            here = waiting.popleft()
            for _, there in ways[here]:
                if there is not None and there not in self._left:
                    self._left[there] = self._left[here] + 1
                    waiting.append(there)

    def nearest(self, source: Iterable[Step]) -> list[Step]:
        """The steps from a host that begin a shortest route."""
        found = [
            (0 if step.switch is None else self._left[step.switch], step)
            for step in source
            if (step.link.name in self._links if step.switch is None else step.switch in self._left)
        ]
        least = min((left for left, _ in found), default=0)
        return [step for left, step in found if left == least]

    def ways_on(self, switch: str) -> list[Step]:
        """The steps from a switch on a shortest route."""
        if switch not in self._on:
            left = self._left[switch]
            if left == 1:
                self._on[switch] = [Step(link, None) for link, behind in self._steps if behind == switch]
            else:
                ways = self._ways[switch]
                self._on[switch] = [way for way in ways if way.switch and self._left.get(way.switch) == left - 1]
        return self._on[switch]


def _names(steps: Iterable[Step]) -> tuple[str, ...]:
    return tuple(step.link.name for step in steps)
