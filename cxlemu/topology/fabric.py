"""The fabric as a graph: which links and switches lie between a host and a card."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from cxlemu.topology.fields import Link, Switch


class Route(NamedTuple):
    """From a host to a card, in this order."""

    links: tuple[Link, ...]
    switches: tuple[Switch, ...]

    @property
    def latency_ns(self) -> int:
        """One way."""
        return sum(link.latency_ns for link in self.links) + sum(s.port_latency_ns for s in self.switches)


class Fabric:
    """Nodes are the links' ends as the file writes them: thousands of hosts behind ``hosts`` are one node."""

    def __init__(self, switches: Iterable[Switch], links: Iterable[Link]) -> None:
        self._switches = {switch.name: switch for switch in switches}
        self._links: dict[str, list[tuple[str, Link]]] = {}
        for link in links:
            one, other = link.ends
            self._links.setdefault(one, []).append((other, link))
            self._links.setdefault(other, []).append((one, link))
        self._routes: dict[int, dict[str, Route]] = {}

    def route(self, host: int, card: int) -> Route | None:
        """The route with the fewest links, None where there is none. Only switches pass traffic on."""
        if card not in self._routes:
            self._routes[card] = self._search(card)
        ends = (f"host{host}", "hosts")
        found = [self._routes[card][end] for end in ends if end in self._routes[card]]
        return min(found, key=lambda route: len(route.links), default=None)

    def _search(self, card: int) -> dict[str, Route]:
        """Breadth first, from the card to every end it reaches."""
        found = {f"card{card}": Route((), ()), "cards": Route((), ())}
        waiting = deque(found)
        while waiting:
            here = waiting.popleft()
            links, switches = found[here]
            if here in self._switches:
                switches = (self._switches[here], *switches)
            elif links:  # a host or another card
                continue
            for there, link in self._links.get(here, []):
                if there not in found:
                    found[there] = Route((link, *links), switches)
                    waiting.append(there)
        return found
