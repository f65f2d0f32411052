"""The parts of a topology that are drawn, in text or as a picture: its own switches and links, and each fabric."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cxlemu.topology import Link, Switch, Topology
from cxlemu.topology.endpoints import members, named
from cxlemu.topology.hierarchies import AnyHierarchy, Dragonfly, Torus
from cxlemu.topology.metrics import noun


class LinkKind(NamedTuple):
    links: int  # how many there are
    joins: str  # what they join: "host - leaf"
    link: Link


class TopologyPart(NamedTuple):
    fabric: AnyHierarchy | None  # None for the switches and links that the file has by itself
    switches: list[Switch]
    links: list[Link]
    kinds: list[LinkKind]
    ends: dict[str, list[str]]  # by a switch's name, the hosts and cards that are linked to it, as ``host0-17``

    @property
    def title(self) -> str:
        """The fabric's name and kind; empty without a fabric."""
        return f"{self.fabric.name}: {self.fabric.kind.replace('_', '/')}" if self.fabric else ""

    def captions(self) -> Iterator[str]:
        """Yield a line for each kind of links."""
        for kind in self.kinds:
            which = f"{kind.links} x {kind.joins}:" if self.fabric else f"{kind.link.name}: {kind.joins},"
            yield f"{which} {figures(kind.link)}"

    def levels(self) -> list[list[Switch]]:
        """Return the switches of each level; those that hosts are linked to come first."""
        by_level: dict[int, list[Switch]] = {}
        for switch in self.switches:
            by_level.setdefault(switch.level, []).append(switch)
        return [switches for _, switches in sorted(by_level.items())]


def parts(topology: Topology) -> Iterator[TopologyPart]:
    """Yield the file's own switches and links, if it has any, and each fabric."""
    if topology.links:
        switches, links = list(topology.switches), list(topology.links)
        kinds = [LinkKind(1, " - ".join(link.ends), link) for link in links]
        yield TopologyPart(None, switches, links, kinds, _ends(topology, switches, links))
    for fabric in topology.fabrics:
        prefix = f"{fabric.name}-"
        switches = [switch for switch in topology.expanded.switches if switch.name.startswith(prefix)]
        links = [link for link in topology.expanded.links if link.name.startswith(prefix)]
        yield TopologyPart(fabric, switches, links, _kinds(fabric, links), _ends(topology, switches, links))


def figures(link: Link) -> str:
    return f"{link.gbytes_per_s:g} GB/s each way, {link.latency_ns} ns"


def short(switch: str) -> str:
    return switch.partition("-")[2] or switch


def _ends(topology: Topology, switches: Sequence[Switch], links: Sequence[Link]) -> dict[str, list[str]]:
    names = {switch.name for switch in switches}
    ends: dict[str, list[str]] = {}
    for one, other in (link.ends for link in links):
        if one in names and other in names:
            continue
        end, upper = (one, other) if other in names else (other, one)
        some = members(end)
        if some is not None and some.kind != "rank":
            end = named(some.kind, some.among(topology.host_count if some.kind == "host" else topology.card_count))
        ends.setdefault(upper, []).append(end)
    return ends


def _kinds(fabric: AnyHierarchy, links: Sequence[Link]) -> list[LinkKind]:
    """Count equal links; those of hosts and cards come first."""
    link_kinds: dict[tuple[str, float], LinkKind] = {}
    for link in links:
        some = members(link.ends[0])
        joins = f"{some.kind} - {noun(fabric, link.ends[1])}" if some else _between(fabric, link)
        key = joins, link.gbytes_per_s
        count = link_kinds[key].links if key in link_kinds else 0
        link_kinds[key] = LinkKind(count + (len(some.numbers) if some else 1), joins, link)
    return list(link_kinds.values())


def _between(fabric: AnyHierarchy, link: Link) -> str:
    one, other = link.ends
    if isinstance(fabric, Dragonfly):
        inside = one.rpartition("r")[0] == other.rpartition("r")[0]
        return "routers of a group" if inside else "two groups"
    if isinstance(fabric, Torus):
        return "neighbours"
    return f"{noun(fabric, one)} - {noun(fabric, other)}"
