"""The fabric as a graph: which links and switches lie between a host and a card."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from cxlemu.topology.fields import Link, Switch


class Route(NamedTuple):
    """From a host to a card, in this order. The last links of a way to another host's memory are that host's."""

    links: tuple[Link, ...]
    switches: tuple[Switch, ...]

    @property
    def latency_ns(self) -> int:
        """One way."""
        return sum(link.latency_ns for link in self.links) + sum(s.port_latency_ns for s in self.switches)


class Side(NamedTuple):
    """A card's: the host that owns it, if one does, what links call this end, and which switches lead to it."""

    host: int | None
    ends: tuple[str, ...]
    over: tuple[str, ...] | None  # None: any


class Fabric:
    """Nodes are the links' ends as the file writes them: thousands of hosts behind ``hosts`` are one node."""

    def __init__(
        self,
        switches: Iterable[Switch],
        links: Iterable[Link],
        side: Callable[[int], Side],
    ) -> None:
        self._switches = {switch.name: switch for switch in switches}
        self._side = side
        self._links: dict[str, list[tuple[str, Link]]] = {}
        for link in links:
            one, other = link.ends
            self._links.setdefault(one, []).append((other, link))
            self._links.setdefault(other, []).append((one, link))
        self._routes: dict[tuple[Side, bool], dict[str, Route]] = {}

    def route(self, host: int, card: int) -> Route | None:
        """The route with the fewest links, None where there is none. Only switches pass traffic on.

        To memory of a rank, it is that of the other ranks: its owner takes no link.
        """
        side = self._side(card)
        if side.host == host and "ranks" not in side.ends:
            return Route((), ())
        inside = side.host in (None, host)  # and may take switches that a host has of its own
        if (side, inside) not in self._routes:
            self._routes[side, inside] = self._search(side, inside)
        routes = self._routes[side, inside]
        found = [routes[end] for end in (f"host{host}", "hosts", "ranks") if end in routes]
        return min(found, key=lambda route: (len(route.links), route.latency_ns), default=None)

    def _search(self, side: Side, inside: bool) -> dict[str, Route]:
        """Breadth first, from the card's side to every end that it reaches."""
        found: dict[str, Route] = {}
        waiting = deque((end, Route((), ())) for end in side.ends)
        while waiting:
            here, (links, switches) = waiting.popleft()
            if here in self._switches:
                if (self._switches[here].per_host and not inside) or (side.over and here not in side.over):
                    continue
                switches = (self._switches[here], *switches)
            elif links:  # a host or another card
                continue
            for there, link in self._links.get(here, []):
                elsewhere = inside or bool(links) or there in self._switches  # else it ends at the owner's own host
                if there not in found and elsewhere:
                    found[there] = Route((link, *links), switches)
                    waiting.append((there, found[there]))
        return found
