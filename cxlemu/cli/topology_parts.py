"""The parts of a topology that are drawn, in text or as a picture: its own switches and links, and each fabric."""

from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from cxlemu.topology import Link, Switch, Topology
from cxlemu.topology.endpoints import members, named
from cxlemu.topology.hierarchies import AnyHierarchy, Dragonfly, Torus
from cxlemu.topology.metrics import noun


class LinkKind(NamedTuple):
    links: int  # how many there are
    joins: str  # what they join: "host - leaf"
    link: Link


class EqualEnds(NamedTuple):
    """Consecutive hosts, ranks or cards that are linked to the same switches."""

    kind: str
    numbers: range
    switches: tuple[str, ...]

    @property
    def name(self) -> str:
        """All of them in a word, such as ``host0-17``."""
        return named(self.kind, self.numbers)


class TopologyPart(NamedTuple):
    fabric: AnyHierarchy | None  # None for the switches and links that the file has by itself
    switches: list[Switch]
    links: list[Link]
    kinds: list[LinkKind]
    groups: list[EqualEnds]

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
        """Return the switches of each level, the hosts' first; all in one row where links would pass over a level."""
        by_level: dict[int, list[Switch]] = {}
        for switch in self.switches:
            by_level.setdefault(switch.level, []).append(switch)
        levels = [switches for _, switches in sorted(by_level.items())]
        passing = self.fabric is None and any(high - low > 1 for low, high in map(sorted, self._rows_of(levels)))
        return [list(chain(*levels))] if passing else levels

    def ends_of(self, switch: Switch) -> list[EqualEnds]:
        """Return the hosts and cards that are linked to a switch."""
        return [group for group in self.groups if switch.name in group.switches]

    def labels(self) -> dict[int, list[str]]:
        """Return the figures of links by the row that they leave: 0 for hosts, then a row for each level."""
        levels = self.levels()
        joins = len(levels) < len({switch.level for switch in self.switches})  # then a row does not tell which switch
        labels: dict[int, list[str]] = {}
        for link, rows in zip(self.links, self._rows_of(levels), strict=True):
            ends = f"{' - '.join(link.ends)}, " * joins
            labels.setdefault(min(rows), []).append(f"{link.name}: {ends}{figures(link)}")
        return labels

    def _rows_of(self, levels: Sequence[Sequence[Switch]]) -> Iterator[list[int]]:
        """Yield the rows of each link's two ends: 0 for hosts, then a row for each level, and the last for cards."""
        row_of = {switch.name: row for row, level in enumerate(levels, 1) for switch in level}
        for link in self.links:
            yield [row_of.get(end, len(levels) + 1 if end.startswith("card") else 0) for end in link.ends]


def parts(topology: Topology) -> Iterator[TopologyPart]:
    """Yield the file's own switches and links, if it has any, and each fabric."""
    if topology.links:
        switches, links = list(topology.switches), list(topology.links)
        kinds = [LinkKind(1, " - ".join(link.ends), link) for link in links]
        yield TopologyPart(None, switches, links, kinds, _groups(topology, switches, links))
    for fabric in topology.fabrics:
        prefix = f"{fabric.name}-"
        switches = [switch for switch in topology.expanded.switches if switch.name.startswith(prefix)]
        links = [link for link in topology.expanded.links if link.name.startswith(prefix)]
        yield TopologyPart(fabric, switches, links, _kinds(fabric, links), _groups(topology, switches, links))


def figures(link: Link) -> str:
    return f"{link.gbytes_per_s:g} GB/s each way, {link.latency_ns} ns"


def short(switch: str) -> str:
    return switch.partition("-")[2] or switch


def _groups(topology: Topology, switches: Sequence[Switch], links: Sequence[Link]) -> list[EqualEnds]:
    counts = {"host": topology.host_count, "rank": topology.place_count}
    counts["card"] = sum(len(numbers) for numbers, group in topology.card_groups() if group.owner is None)
    names = {switch.name for switch in switches}
    joined: dict[str, list[tuple[range, str]]] = {}
    for one, other in (link.ends for link in links):
        end, switch = (one, other) if other in names else (other, one)
        if (some := members(end)) is not None:
            joined.setdefault(some.kind, []).append((some.among(counts[some.kind]), switch))
    groups = []
    for kind, pairs in joined.items():
        cuts = sorted({cut for numbers, _ in pairs for cut in (numbers.start, numbers.stop)})
        for begin, end_ in pairwise(cuts):
            if ends_of := tuple(switch for numbers, switch in pairs if begin in numbers):
                groups.append(EqualEnds(kind, range(begin, end_), ends_of))
    return groups


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
