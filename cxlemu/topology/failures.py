"""Links and switches that fail at a moment of modelled time, and how that changes routes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from cxlemu.errors import ArgumentError, name_numbers
from cxlemu.topology.document import shown
from cxlemu.topology.endpoints import members
from cxlemu.topology.fabric import Route
from cxlemu.topology.fields import closest
from cxlemu.topology.parts import Parts

LATEST_NS = 10**15
_WRITTEN = re.compile(r"(link|switch):([^@/]{1,63})(/(?:host|card)[0-9]{1,6})?@([0-9.e+-]{1,20})(?:us)?")


class Failure(NamedTuple):
    """A link or a switch that fails at a moment.

    ``name`` is a switch, a link, or one end of a link that has many: ``cxl-leaf0-hosts/host3``.
    """

    kind: str  # "link" or "switch"
    name: str
    at_ns: int

    @classmethod
    def parse(cls, text: str, topology: Parts) -> Failure:
        """Read a failure as the command line writes it."""
        match = _WRITTEN.fullmatch(text)
        if match is None:
            raise ArgumentError(
                f"a failure is link:NAME@TIME_us, link:NAME/host3@TIME_us or switch:NAME@TIME_us, not {shown(text)}"
            )
        kind, name, end, time = match.groups()
        try:
            at_us = float(time)
        except ValueError:
            at_us = -1.0
        if not 0 <= at_us * 1e3 <= LATEST_NS or not math.isfinite(at_us):
            raise ArgumentError(f"{shown(text)} has no time: give microseconds, such as @120 or @0.5")
        switches, links = topology.expanded
        names = [part.name for part in (switches if kind == "switch" else links)]
        if name not in names or (end and kind == "switch"):
            raise ArgumentError(f"{topology.name} has no {kind} {name}{end or ''}; {closest(name, names)}")
        if end:
            ends = [members(end) for link in links if link.name == name for end in link.ends]
            one = members(end[1:])
            if not any(end and one and end.kind == one.kind and one.numbers.start in end.numbers for end in ends):
                raise ArgumentError(f"link {name} of {topology.name} does not end at {end[1:]}")
        return cls(kind, name + (end or ""), round(at_us * 1e3))

    def __str__(self) -> str:
        return f"{self.kind} {self.name} at {self.at_ns / 1e3:.15g} us"


class FabricChange(NamedTuple):
    """How failures at one moment change the routes between hosts and memories, after the failures before it."""

    at_ns: int
    failures: tuple[Failure, ...]
    ways: int  # routes of all hosts to all memories, before it
    rerouted: int
    ended: tuple[tuple[int, int], ...]  # host and card: no way leads there any more
    before: Route | None  # the route of one pair that is rerouted, if any
    after: Route | None
    example: tuple[int, int]  # host and card of that pair; (-1, -1) without one

    def describe(self) -> list[str]:
        """Describe the change for people, in a few lines."""
        what = ", ".join(map(str, self.failures))
        lines = [f"{what}: {self.rerouted} of {self.ways} routes change, {len(self.ended)} end"]
        if self.before is not None and self.after is not None:
            host, card = self.example
            lines.append(f"  host{host} - card{card}: {_stops(self.before)} becomes {_stops(self.after)}")
        if self.ended:
            lines.append(f"  cut off: {cut_off(self.ended)}")
        return lines


def cut_off(pairs: Sequence[tuple[int, int]]) -> str:
    """Name pairs of hosts and cards: ``hosts 0 to 3 from cards 4, 5``.

    Hosts that have lost the same cards are named together.
    """
    lost: dict[int, set[int]] = {}
    for host, card in pairs:
        lost.setdefault(host, set()).add(card)
    hosts: dict[frozenset[int], set[int]] = {}
    for host, cards in lost.items():
        hosts.setdefault(frozenset(cards), set()).add(host)
    return "; ".join(f"{name_numbers('host', its)} from {name_numbers('card', cards)}" for cards, its in hosts.items())


def _stops(route: Route) -> str:
    latency = f"{len(route.links)} links, {route.latency_ns} ns"
    return f"{' '.join(switch.name for switch in route.switches) or 'no switch'} ({latency})"
