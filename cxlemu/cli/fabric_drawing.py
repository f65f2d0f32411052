"""A generated fabric in characters: its top switches over the groups that they join, a box a group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from cxlemu.cli.drawing import Box, stacked
from cxlemu.topology import Link, Switch, Topology
from cxlemu.topology.endpoints import members, named
from cxlemu.topology.hierarchies import AnyHierarchy, Clos, Dragonfly, LeafSpine, Part, Torus
from cxlemu.topology.metrics import FabricMetrics, fabric_metrics, noun


class LinkKind(NamedTuple):
    """Equal links of a fabric. ``joins``: "host - leaf"."""

    links: int
    joins: str
    link: Link


class SwitchGroup(NamedTuple):
    """What is drawn together."""

    name: str
    switches: list[Switch]


def link_kinds(topology: Topology, fabric: AnyHierarchy) -> list[LinkKind]:
    """Those of hosts and cards first."""
    found: dict[tuple[str, float], LinkKind] = {}
    for link in own(topology.expanded.links, fabric):
        some = members(link.ends[0])
        joins = f"{some.kind} - {noun(fabric, link.ends[1])}" if some else _between(fabric, link)
        key = joins, link.gbytes_per_s
        count = found[key].links if key in found else 0
        found[key] = LinkKind(count + (len(some.numbers) if some else 1), joins, link)
    return list(found.values())


def _between(fabric: AnyHierarchy, link: Link) -> str:
    one, other = link.ends
    if isinstance(fabric, Dragonfly):
        inside = one.rpartition("r")[0] == other.rpartition("r")[0]
        return "routers of a group" if inside else "two groups"
    if isinstance(fabric, Torus):
        return "neighbours"
    return f"{noun(fabric, one)} - {noun(fabric, other)}"


def top_and_groups(topology: Topology, fabric: AnyHierarchy) -> tuple[list[Switch], list[SwitchGroup]]:
    """The switches that join everything below, if it is a tree, and below them what hangs together."""
    switches = own(topology.expanded.switches, fabric)
    if isinstance(fabric, LeafSpine | Clos):
        highest = switches[-1].level
        top = [its for its in switches if its.level == highest]
        count = fabric.leaves if isinstance(fabric, LeafSpine) else fabric.levels[-1].down
        groups: list[SwitchGroup] = []
        for at in range(count):
            names, inside = [], []
            for level in range(highest - 1, 0, -1):
                its = [switch for switch in switches if switch.level == level]
                block = its[at * len(its) // count : (at + 1) * len(its) // count]
                names.append(_names(block))
                inside += block
            groups.append(SwitchGroup(", ".join(names), inside))
        return top, groups
    if isinstance(fabric, Dragonfly):
        size = fabric.routers
        words = f"{size} router{'s' * (size > 1)}"
        parts = ((at, switches[at * size : (at + 1) * size]) for at in range(fabric.groups))
        return [], [SwitchGroup(f"g{at}: {words}", inside) for at, inside in parts]
    if isinstance(fabric, Torus):
        *flat, count = fabric.dimensions
        size, axis = len(switches) // count, "xyz"[len(flat)]
        words = f"{' x '.join(map(str, flat))} switches" if flat else "a switch"
        return [], [SwitchGroup(f"{axis}={at}: {words}", switches[at * size : (at + 1) * size]) for at in range(count)]
    return [], [SwitchGroup(short(its.name), [its]) for its in switches]


def fabric_drawing(topology: Topology, fabric: AnyHierarchy, width: int) -> list[str]:
    """Lines of at most ``width`` characters. Rows that do not fit leave out their middle."""
    top, groups = top_and_groups(topology, fabric)
    ports: dict[str, list[str]] = {}
    for link in own(topology.expanded.links, fabric):
        if members(link.ends[0]) is not None:
            ports.setdefault(link.ends[1], []).append(link.ends[0])
    row: list[Box] = [(*its.name.split(", "), *_ends(ports, its.switches)) for its in groups]
    lines = stacked([[(short(its.name),) for its in top], row] if top else [row], [[]], width)
    for kind in link_kinds(topology, fabric):
        figures = f"{kind.link.gbytes_per_s:g} GB/s each way, {kind.link.latency_ns} ns"
        lines.append(f"  {kind.links} x {kind.joins}: {figures}")
    return [*lines, *(f"  {line}" for line in _offered(fabric_metrics(topology, fabric)))]


def _offered(its: FabricMetrics) -> Iterator[str]:
    yield ", ".join(_plural(count, what) for what, count in its.switches.items())
    if its.switches_between_hosts_mean is not None and its.oversubscription is not None:
        where = "in each, " if its.kind == "xlink" and its.switches["domain"] > 1 else ""
        mean, most = its.switches_between_hosts_mean, its.switches_between_hosts_max
        yield f"{where}from host to host over {mean:.3g} switches in the mean, {most} at most"
        yield f"{where}bisection {its.bisection_gbytes_per_s:g} GB/s, oversubscribed {its.oversubscription:.3g} : 1"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else {'leaf': 'leaves', 'switch': 'switches'}.get(noun, noun + 's')}"


def own(parts: Iterable[Part], fabric: AnyHierarchy) -> list[Part]:
    """The switches or links of a fabric."""
    return [its for its in parts if its.name.startswith(f"{fabric.name}-")]


def _ends(ports: dict[str, list[str]], switches: Sequence[Switch]) -> Iterator[str]:
    """The hosts and the cards of some switches, which are numbered in a row."""
    for kind in ("host", "card"):
        its = [members(end) for switch in switches for end in ports.get(switch.name, [])]
        numbers = [number for some in its if some and some.kind == kind for number in some.numbers]
        if numbers:
            yield named(kind, range(numbers[0], numbers[-1] + 1))


def _names(switches: Sequence[Switch]) -> str:
    first, last = short(switches[0].name), short(switches[-1].name)
    return first if len(switches) == 1 else f"{first}-{re.findall(r'[0-9]+$', last)[0]}"


def short(switch: str) -> str:
    """Without its fabric."""
    return switch.partition("-")[2] or switch
