"""Fabrics of many switches in a few lines: what is written for each kind, and the switches and links that it means.

    leaf_spine   every leaf joined to every spine
    clos         the same with any number of levels (an extended generalized fat tree: Öhring et al., IPPS 1995)
    torus        switches in one to three dimensions, each joined to its neighbours, all the way round
    dragonfly    groups of routers, all joined inside a group, and every group to every other (Kim et al., ISCA 2008)
    xlink        domains of hosts around one switch each, as NVLink's and UALink's

Hosts and cards are dealt to the leaves (in a torus and a dragonfly: to all switches) in consecutive blocks, as even as
possible. Routes and costs know nothing of kinds: a fabric means the same as if the file listed its switches and links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, islice, product
from math import prod
from typing import Annotated, Literal, NamedTuple, TypeVar

from pydantic import Field, model_validator

from cxlemu.topology.document import Key
from cxlemu.topology.endpoints import dealt, members, named
from cxlemu.topology.fields import Carrier, GbytesPerS, Link, LinkFigures, Misplaced, Model, Nanoseconds, Switch

SWITCHES_MAX, LINKS_MAX = 4096, 16384
LEVEL_NAMES = ("leaf", "spine", "core")
ShortName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.]{0,23}$")]
Part = TypeVar("Part", Switch, Link)
Count = Annotated[int, Field(ge=1, le=1024)]
SomeHosts = Annotated[str, Field(pattern=r"^(hosts|host[0-9]{1,6}(-[0-9]{1,6})?)$")]
SomeCards = Annotated[str, Field(pattern=r"^(cards|card[0-9]{1,6}(-[0-9]{1,6})?)$")]


class Expanded(NamedTuple):
    """The switches and links that a fabric means."""

    switches: list[Switch]
    links: list[Link]


class Hierarchy(Model):
    """The fields that all kinds have."""

    name: ShortName = Field(description="the fabric's name, a prefix for its switches and links")
    hosts: SomeHosts = Field(default="hosts", description="hosts on the fabric, for example host0-15")
    cards: SomeCards = Field(default="cards", description="cards on the fabric, with a card_link")
    port_latency_ns: Nanoseconds = Field(description="latency of every switch, from port to port, in ns")
    host_link: LinkFigures = Field(description="gbytes_per_s and latency_ns of each host's link")
    card_link: LinkFigures | None = Field(default=None, description="each card's link; absent: no cards are on it")

    def expand(self, host_count: int, card_count: int) -> Expanded:
        """Write the fabric out as switches and links; cards are joined if there is a ``card_link``."""
        hosts = self._some("hosts", self.hosts, host_count)
        switches = self._bounded("switches", SWITCHES_MAX, self._switches(hosts))
        links = list(self._ports("hosts", self._edges(hosts, switches), self.host_link, self._host_gbytes_per_s()))
        if self.card_link is not None:
            cards = self._some("cards", self.cards, card_count)
            places = self._card_switches(switches)
            blocks = [(places[index].name, block) for index, block in dealt(cards, len(places))]
            links += self._ports("cards", blocks, self.card_link, self.card_link.gbytes_per_s)
        return Expanded(switches, links + self._bounded("links", LINKS_MAX, self._trunks(hosts)))

    def _some(self, key: str, end: str, count: int) -> range:
        end_group = members(end)
        if end_group is None or not end_group.are_among(count):
            raise Misplaced((key,), f"is {end}, but {key} are {key[:-1]}0 to {key[:-1]}{count - 1}")
        return end_group.among(count)

    def _bounded(self, what: str, most: int, parts: Iterator[Part]) -> list[Part]:
        first = list(islice(parts, most + 1))
        if len(first) > most:
            raise Misplaced((), f"means more than {most} {what}, the limit; make it smaller")
        return first

    def _ports(
        self, kind: str, blocks: Iterable[tuple[str, range]], figures: LinkFigures, gbytes_per_s: float
    ) -> Iterator[Link]:
        for switch, block in blocks:
            yield _link(f"{switch}-{kind}", (named(kind[:-1], block), switch), figures, gbytes_per_s)

    def _switch(self, name: str, level: int = 1) -> Switch:
        return Switch(name=f"{self.name}-{name}", level=level, port_latency_ns=self.port_latency_ns)

    def _trunk(self, one: str, other: str, figures: Carrier, gbytes_per_s: float) -> Link:
        ends = f"{self.name}-{one}", f"{self.name}-{other}"
        return _link(f"{ends[0]}-{other}", ends, figures, gbytes_per_s)

    # --- what kinds differ in ----------------------------------------------------------------------------------

    def _host_gbytes_per_s(self) -> float:
        return self.host_link.gbytes_per_s

    def _switches(self, hosts: range) -> Iterator[Switch]:
        raise NotImplementedError

    def _trunks(self, hosts: range) -> Iterator[Link]:
        raise NotImplementedError

    def _edges(self, hosts: range, switches: list[Switch]) -> Iterator[tuple[str, range]]:
        """Deal hosts to the switches of level 1."""
        edges = [switch.name for switch in switches if switch.level == 1]
        for index, block in dealt(hosts, len(edges)):
            yield edges[index], block

    def _card_switches(self, switches: list[Switch]) -> list[Switch]:
        return [switch for switch in switches if switch.level == 1]


class Trunk(Carrier):
    """A link between two switches of a tree."""

    gbytes_per_s: GbytesPerS | None = Field(
        default=None, description="bandwidth each way, in GB/s; absent: from oversubscription"
    )


class SwitchLevel(Model):
    """Links from the switches of a level to those of the next. A group is joined by one switch above."""

    down: Count = Field(description="groups of this level below one switch above; at the leaves, leaves")
    up: Count = Field(description="switches above one switch of this level")
    trunk: Trunk = Field(description="the link between them: latency_ns, and gbytes_per_s or not")


class Tree(Hierarchy):
    """The fields of leaf/spine and Clos."""

    oversubscription: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | None = Field(
        default=None,
        description="bandwidth of a leaf's hosts divided by that of its trunks; higher levels carry all of it",
    )
    cards_at: Literal["leaf", "top"] = Field(default="leaf", description="level of the switches that join the cards")

    def _levels(self) -> Sequence[tuple[SwitchLevel, Key]]:
        """The levels from the leaves up, and the trunks' keys in the file."""
        raise NotImplementedError

    def _switches(self, hosts: range) -> Iterator[Switch]:
        levels = [level for level, _ in self._levels()]
        for number in range(len(levels) + 1):
            for index in range(_groups(levels, number) * _in_group(levels, number)):
                yield self._switch(_on(number, index), number + 1)

    def _trunks(self, hosts: range) -> Iterator[Link]:
        levels = [level for level, _ in self._levels()]
        arrives = 0.0  # at each switch of a level, from below
        if self.oversubscription is not None:
            arrives = -(-len(hosts) // _groups(levels, 0)) * self.host_link.gbytes_per_s / self.oversubscription
        for number, (down, up, trunk) in enumerate((level.down, level.up, level.trunk) for level in levels):
            speed = trunk.gbytes_per_s or arrives / up
            arrives = speed * down
            inside = _in_group(levels, number)
            for group, begin, way in product(range(_groups(levels, number)), range(inside), range(up)):
                above = (group // down * inside + begin) * up + way
                yield self._trunk(_on(number, group * inside + begin), _on(number + 1, above), trunk, speed)

    def _card_switches(self, switches: list[Switch]) -> list[Switch]:
        level = 1 if self.cards_at == "leaf" else switches[-1].level
        return [switch for switch in switches if switch.level == level]

    @model_validator(mode="after")
    def _trunks_have_one_speed(self) -> Tree:
        for level, key in self._levels():
            if level.trunk.gbytes_per_s is None and self.oversubscription is None:
                what = "is missing: each way, in GB/s, or write oversubscription instead"
                raise Misplaced((*key, "gbytes_per_s"), what)
            if level.trunk.gbytes_per_s is not None and self.oversubscription is not None:
                raise Misplaced((*key, "gbytes_per_s"), "follows from oversubscription; leave one of them out")
        return self


class LeafSpine(Tree):
    """Leaves with hosts, each joined to every spine."""

    kind: Literal["leaf_spine"]
    leaves: Count = Field(description="number of leaves, which share the hosts")
    spines: Count = Field(description="number of spines, each joined to every leaf")
    trunk: Trunk = Field(description="the link from a leaf to a spine: latency_ns, and gbytes_per_s or not")

    def _levels(self) -> Sequence[tuple[SwitchLevel, Key]]:
        return [(SwitchLevel(down=self.leaves, up=self.spines, trunk=self.trunk), ("trunk",))]


class Clos(Tree):
    """An extended generalized fat tree of any number of levels (Öhring et al., IPPS 1995)."""

    kind: Literal["clos"]
    levels: Annotated[tuple[SwitchLevel, ...], Field(strict=False, min_length=1, max_length=7)] = Field(
        description="from the leaves up: down, up and trunk of each level but the top"
    )

    def _levels(self) -> Sequence[tuple[SwitchLevel, Key]]:
        return [(level, ("levels", number, "trunk")) for number, level in enumerate(self.levels)]


class Torus(Hierarchy):
    """Switches in one to three dimensions, each joined to its neighbours, all the way round."""

    kind: Literal["torus"]
    dimensions: Annotated[tuple[Count, ...], Field(strict=False, min_length=1, max_length=3)] = Field(
        description="switches in each direction, for example [4, 4, 4]"
    )
    trunk: LinkFigures = Field(description="the link between neighbours")

    def _places(self) -> Iterator[tuple[int, ...]]:
        """Yield the places of all switches; the first coordinate runs fastest."""
        for backwards in product(*map(range, reversed(self.dimensions))):
            yield backwards[::-1]

    def _switches(self, hosts: range) -> Iterator[Switch]:
        for place in self._places():
            yield self._switch(_at(place))

    def _trunks(self, hosts: range) -> Iterator[Link]:
        for way, size in enumerate(self.dimensions):
            for place in self._places():
                if size > 2 or place[way] + 1 < size:  # two are neighbours once
                    after = (*place[:way], (place[way] + 1) % size, *place[way + 1 :])
                    yield self._trunk(_at(place), _at(after), self.trunk, self.trunk.gbytes_per_s)


class Dragonfly(Hierarchy):
    """Groups of routers, all joined inside a group, and every group to every other (Kim et al., ISCA 2008).

    Links between groups are dealt to a group's routers in turn: port p of group g leads to group g + p + 1.
    """

    kind: Literal["dragonfly"]
    groups: Count = Field(description="number of groups, each joined to every other")
    routers: Count = Field(description="routers of a group, each joined to every other")
    local_link: LinkFigures = Field(description="the link between two routers of a group")
    global_link: LinkFigures = Field(description="the link between two groups")

    def _switches(self, hosts: range) -> Iterator[Switch]:
        for group, router in product(range(self.groups), range(self.routers)):
            yield self._switch(_router(group, router))

    def _trunks(self, hosts: range) -> Iterator[Link]:
        for group in range(self.groups):
            for one, other in combinations(range(self.routers), 2):
                ends = _router(group, one), _router(group, other)
                yield self._trunk(*ends, self.local_link, self.local_link.gbytes_per_s)
        for one, other in combinations(range(self.groups), 2):
            there, back = other - one - 1, one - other - 1 + self.groups
            ends = _router(one, there % self.routers), _router(other, back % self.routers)
            yield self._trunk(*ends, self.global_link, self.global_link.gbytes_per_s)


class XLink(Hierarchy):
    """Single-hop domains: a host's ports lead to its domain's switch, which stands for all that work side by side."""

    kind: Literal["xlink"]
    domain_hosts: Count = Field(description="hosts of one domain, for example 72; the last one may have fewer")
    ports: Count = Field(default=1, description="ports of each host, used as one; host_link is one of them")

    def _switches(self, hosts: range) -> Iterator[Switch]:
        for domain in range(-(-len(hosts) // self.domain_hosts)):
            yield self._switch(f"domain{domain}")

    def _edges(self, hosts: range, switches: list[Switch]) -> Iterator[tuple[str, range]]:
        for domain, switch in enumerate(switches):
            yield switch.name, hosts[domain * self.domain_hosts :][: self.domain_hosts]

    def _host_gbytes_per_s(self) -> float:
        return self.ports * self.host_link.gbytes_per_s

    def _trunks(self, hosts: range) -> Iterator[Link]:
        return iter(())


AnyHierarchy = Annotated[LeafSpine | Clos | Torus | Dragonfly | XLink, Field(discriminator="kind")]


def _link(name: str, ends: tuple[str, str], figures: Carrier, gbytes_per_s: float) -> Link:
    rates = {key: getattr(figures, key) for key in Carrier.model_fields}
    return Link(name=name, ends=ends, gbytes_per_s=gbytes_per_s, **rates)


def _groups(levels: Sequence[SwitchLevel], number: int) -> int:
    return prod(level.down for level in levels[number:])


def _in_group(levels: Sequence[SwitchLevel], number: int) -> int:
    return prod(level.up for level in levels[:number])


def _on(level: int, index: int) -> str:
    return f"{LEVEL_NAMES[level]}{index}" if level < len(LEVEL_NAMES) else f"level{level + 1}.{index}"


def _at(place: tuple[int, ...]) -> str:
    return ".".join(map(str, place))


def _router(group: int, router: int) -> str:
    return f"g{group}r{router}"
