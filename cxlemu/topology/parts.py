"""The parts of a machine and what follows from them alone; whether they fit together, ``checks`` says."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from cxlemu.errors import ArgumentError
from cxlemu.topology.fabric import Fabric
from cxlemu.topology.fields import Cards, Costs, Emulation, Hosts, Link, Misplaced, Model, Name, Routing, Space, Switch
from cxlemu.topology.hierarchies import AnyHierarchy, Expanded


def _as_groups(cards: Any) -> Any:
    """One group may be written without the list around it."""
    return [cards] if isinstance(cards, dict) else cards


class Parts(Model):
    """What a topology file says, field by field."""

    name: Name = Field(description="the topology's name")
    description: Annotated[str, Field(max_length=200)] = Field(default="", description="one line for people")
    hosts: Hosts = Field(description="count, ranks_per_host and memory of the hosts")
    cards: Annotated[tuple[Cards, ...], Field(strict=False, min_length=1), BeforeValidator(_as_groups)] = Field(
        description="one group of equal cards, or a list of groups"
    )
    costs: Costs = Field(default=Costs(), description="what every rank's copy engines and software cost")
    fabrics: Annotated[tuple[AnyHierarchy, ...], Field(strict=False, max_length=16)] = Field(
        default=(), description="fabrics of many switches, each in a few lines"
    )
    switches: Annotated[tuple[Switch, ...], Field(strict=False, max_length=256)] = Field(
        default=(), description="single switches between hosts and cards"
    )
    links: Annotated[tuple[Link, ...], Field(strict=False, max_length=1024)] = Field(
        default=(), description="single links that join hosts, switches and cards"
    )
    routing: Routing = Field(default="first", description="which of several shortest routes: first or spread")
    spaces: Annotated[tuple[Space, ...], Field(strict=False, min_length=1, max_length=256)] = Field(
        description="the memories that regions lie in, one of them of kind cxl_pool"
    )
    emulation: Emulation = Field(description="card_bytes, the memory that backs each card on this machine")

    @property
    def host_count(self) -> int:
        return self.hosts.count

    @property
    def card_count(self) -> int:
        return sum(group.count for group in self.cards)

    def card(self, number: int) -> Cards:
        """The group that card ``number`` belongs to. Raises ArgumentError where there is no such card."""
        first = 0
        for group in self.cards:
            if 0 <= number - first < group.count:
                return group
            first += group.count
        raise ArgumentError(f"there is no card {number}; {self.name} has {self.card_count}")

    def cards_of(self, space: Space) -> tuple[int, ...]:
        """The numbers of the cards that ``space`` lies on: consecutive, and none for memory without cards."""
        if not space.on_cards:
            return ()
        return tuple(range(self.card_count)) if space.cards is None else space.cards

    @property
    def pool_space(self) -> Space:
        return next(space for space in self.spaces if space.kind == "cxl_pool")

    @property
    def interleave_bytes(self) -> int:
        """The pool's granule: a power of two from 256 bytes to 16 MiB."""
        granule = self.pool_space.interleave_bytes
        assert granule is not None
        return granule

    @property
    def card_bytes(self) -> int:
        """Memory that really backs each card on this machine."""
        return self.emulation.card_bytes

    @property
    def pool_numa_node(self) -> int | None:
        """The NUMA node that the cards' memory is bound to, if any."""
        return self.emulation.numa_node

    @cached_property
    def expanded(self) -> Expanded:
        """All switches and links: the file's own, and those that its fabrics mean. Raises Misplaced as these do."""
        switches, links = list(self.switches), list(self.links)
        for number, fabric in enumerate(self.fabrics):
            try:
                more = fabric.expand(self.host_count, self.card_count)
            except Misplaced as defect:
                raise Misplaced(("fabrics", number, *defect.key), defect.text) from None
            switches += more.switches
            links += more.links
        return Expanded(switches, links)

    def fabric(self, lost: Collection[str] = ()) -> Fabric:
        """The graph of it. ``lost``: switches and links that failed, see Fabric."""
        return Fabric(*self.expanded, routing=self.routing, lost=lost)
