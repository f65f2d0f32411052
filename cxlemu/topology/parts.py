"""The parts of a machine and what follows from them alone; ``checks`` says whether they fit together."""

import math
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field

from cxlemu.errors import ArgumentError
from cxlemu.topology.fabric import Fabric, Side
from cxlemu.topology.fields import (
    Cards,
    Costs,
    Emulation,
    Hosts,
    Item,
    Link,
    Misplaced,
    Model,
    Name,
    Protocol,
    Routing,
    Space,
    Switch,
)
from cxlemu.topology.hierarchies import AnyHierarchy, Expanded


def _as_groups(cards: Any) -> Any:
    """One group may be written without the list around it."""
    return [cards] if isinstance(cards, dict) else cards


class Parts(Model):
    """The fields of a topology file."""

    name: Name = Field(description="the topology's name")
    description: Annotated[str, Field(max_length=200)] = Field(default="", description="one line for people")
    hosts: Hosts = Field(description="count, ranks_per_host and memory of the hosts")
    cards: Annotated[tuple[Cards, ...], Field(strict=False, min_length=1), BeforeValidator(_as_groups)] = Field(
        description="one group of equal cards, or a list of groups"
    )
    accelerator: Name | None = Field(default=None, description="the accelerator of every rank, a shipped one")
    costs: Costs = Field(default=Costs(), description="costs of every rank's copy engines and software")
    fabrics: Annotated[tuple[AnyHierarchy, ...], Field(strict=False, max_length=16)] = Field(
        default=(), description="fabrics of many switches, each in a few lines"
    )
    switches: Annotated[tuple[Switch, ...], Field(strict=False, max_length=256)] = Field(
        default=(), description="single switches between hosts and cards"
    )
    links: Annotated[tuple[Link, ...], Field(strict=False, max_length=1024)] = Field(
        default=(), description="single links that join hosts, switches and cards"
    )
    routing: Routing = Field(default="first", description="choice among several shortest routes: first or spread")
    spaces: Annotated[tuple[Space, ...], Field(strict=False, min_length=1, max_length=256)] = Field(
        description="memories for regions: a cxl_pool, or others on cards"
    )
    bill: Annotated[tuple[Item, ...], Field(strict=False, min_length=1, max_length=64)] | None = Field(
        default=None, description="parts of the fabric: name, kind, count, price_usd and power_watts of each"
    )
    emulation: Emulation = Field(description="card_bytes, the memory that backs each card on this machine")

    @property
    def host_count(self) -> int:
        return self.hosts.count

    @property
    def place_count(self) -> int:
        """How many ranks have a place of their own."""
        return self.hosts.count * self.hosts.ranks_per_host

    @property
    def card_count(self) -> int:
        """The number of all memories, those with owners included."""
        return sum(len(numbers) for numbers, _ in self.card_groups())

    def card_groups(self) -> Iterator[tuple[range, Cards]]:
        """Yield each group of cards with the numbers of its cards, in the file's order.

        In a group of owned memory, card k of the group belongs to host or rank k.
        """
        first = 0
        for group in self.cards:
            count = {"hosts": self.hosts.count, "ranks": self.place_count}.get(group.owner or "", group.count)
            yield range(first, first + count), group
            first += count

    def card(self, number: int) -> Cards:
        """Return the group that a card belongs to, with its figures; `card_groups` deals the numbers, from 0."""
        for numbers, group in self.card_groups():
            if number in numbers:
                return group
        raise ArgumentError(f"there is no card {number}; {self.name} has {self.card_count}")

    def cards_of(self, space: Space) -> tuple[int, ...]:
        """Return the numbers of the cards that ``space`` lies on: consecutive, and none for memory without cards.

        Without ``space.cards`` these are all cards with owners for an owned space, and all cards without owners for
        another.
        """
        if not space.on_cards:
            return ()
        if space.cards is not None:
            return space.cards
        return tuple(
            n for numbers, group in self.card_groups() if (group.owner is not None) == space.owned for n in numbers
        )

    def card_name(self, number: int) -> str:
        """Name a card for people: ``card3``, or by its owner, ``rank3 memory``. There must be such a card."""
        numbers, group = next((numbers, group) for numbers, group in self.card_groups() if number in numbers)
        return f"card{number}" if group.owner is None else f"{group.owner[:-1]}{number - numbers[0]} memory"

    def owner_host(self, number: int) -> int | None:
        """Return the host that a memory belongs to, itself or by its ranks; None for a card without an owner."""
        numbers, group = next((numbers, group) for numbers, group in self.card_groups() if number in numbers)
        if group.owner is None:
            return None
        return (number - numbers[0]) // (1 if group.owner == "hosts" else self.hosts.ranks_per_host)

    def speaking(self, space: Space, protocol: Protocol) -> Self:
        """Return the same machine where everybody uses one protocol on one of ``spaces``, and on the links to it.

        The protocol's costs replace those of the space, its ``call_ns`` that of the machine, and its ``share_of_rate``
        scales the bandwidth of each link at a switch over which the space is reached. The copy's fabrics are written
        out, as switches and links.
        """
        switches, links = self.expanded
        leading = {switch.name for switch in switches} if space.over is None else self._over(space)
        slower = [
            link.model_copy(update={"gbytes_per_s": link.gbytes_per_s * protocol.share_of_rate})
            if leading.intersection(link.ends)
            else link
            for link in links
        ]
        spaces = []
        for spoken in self.spaces:
            update: dict[str, Any] = {} if spoken.over is None else {"over": tuple(sorted(self._over(spoken)))}
            if spoken is space:
                update |= {"costs": protocol.costs, "protocols": None}
            spaces.append(spoken.model_copy(update=update))
        costs = self.costs.model_copy(update={"call_ns": protocol.costs.call_ns})
        parts = {"switches": tuple(switches), "links": tuple(slower), "fabrics": ()}
        return self.model_copy(update={**parts, "spaces": tuple(spaces), "costs": costs})

    def in_graph(self) -> Self:
        """Return the same machine where calls are part of a captured graph, which launches them in ``graph_call_ns``.

        Raises:
            ArgumentError: The topology does not say what that takes.
        """

        def launched(costs: Costs, key: str) -> Costs:
            if costs.graph_call_ns is None and costs.call_ns is not None:
                raise ArgumentError(f"{self.name} has no cost for calls in a graph: give {key}.graph_call_ns")
            return costs.model_copy(update={"call_ns": costs.graph_call_ns})

        spaces = []
        for space in self.spaces:
            protocols = space.protocols and tuple(
                protocol.model_copy(
                    update={"costs": launched(protocol.costs, f"spaces.{space.name}.protocols.{protocol.name}.costs")}
                )
                for protocol in space.protocols
            )
            spaces.append(space.model_copy(update={"protocols": protocols}))
        return self.model_copy(update={"costs": launched(self.costs, "costs"), "spaces": tuple(spaces)})

    def space(self, name: str) -> Space:
        named = {space.name: space for space in self.spaces if space.on_cards}
        if name not in named:
            raise ArgumentError(f"{self.name} has no space {name!r} on cards: it has {', '.join(named)}")
        return named[name]

    def carried_gbytes_per_s(self, cards: Iterable[int], *, both_ways: bool = False) -> float:
        """Return what cards carry together, through their ports, in GB/s of payload; other memory has no port.

        ``both_ways`` counts reads and writes at once: a port is full duplex, a card's memory is not.
        """
        fabric, carried = self.fabric(), 0.0
        for number in cards:
            card, route = self.card(number), None if self.owner_host(number) is not None else fabric.route(0, number)
            port = route.links[-1].payload_gbytes_per_s * (1 + both_ways) if route and route.links else math.inf
            carried += min(card.total_gbytes_per_s, port)
        return carried

    @property
    def pool_space(self) -> Space:
        """The space where collectives run by default: the pool or, without one, the first memory of hosts or ranks."""
        pool = next((space for space in self.spaces if space.kind == "cxl_pool"), None)
        return pool or next(space for space in self.spaces if space.owned)

    @property
    def pool_card_count(self) -> int:
        """The number of cards of ``pool_space``, which count from 0."""
        return len(self.cards_of(self.pool_space))

    @property
    def interleave_bytes(self) -> int:
        """The pool's granule: a power of two from 256 bytes to 16 MiB."""
        return self.pool_space.granule_bytes

    @property
    def card_bytes(self) -> int:
        """The number of bytes that back each card on this machine."""
        return self.emulation.card_bytes

    @property
    def smallest_card_bytes(self) -> int:
        """The capacity of the smallest card."""
        return min(group.capacity_bytes for group in self.cards)

    @property
    def pool_numa_node(self) -> int | None:
        """The NUMA node that the cards' memory is bound to, if any."""
        return self.emulation.numa_node

    @cached_property
    def expanded(self) -> Expanded:
        """All switches and links: the file's own, and those that its fabrics mean. Raises Misplaced as these do."""
        switches, links = list(self.switches), list(self.links)
        pooled = sum(group.count for group in self.cards if group.owner is None)
        for number, fabric in enumerate(self.fabrics):
            try:
                more = fabric.expand(self.host_count, pooled)
            except Misplaced as defect:
                raise Misplaced(("fabrics", number, *defect.key), defect.text) from None
            switches += more.switches
            links += more.links
        return Expanded(switches, links)

    def fabric(self, lost: Collection[str] = ()) -> Fabric:
        """Build the graph of switches and links in which routes are found, without those lost: see `Fabric`.

        ``LINK/host3`` or ``LINK/card3`` names one end of a link that has many.
        """
        return self._fabric_without(lost) if lost else self._fabric

    @cached_property
    def _fabric(self) -> Fabric:
        return self._fabric_without(())

    def __getstate__(self) -> dict[Any, Any]:
        state = super().__getstate__()  # ranks get no graph with its routes: megabytes for a pod
        return {**state, "__dict__": {name: of for name, of in state["__dict__"].items() if name != "_fabric"}}

    def _fabric_without(self, lost: Collection[str]) -> Fabric:
        return Fabric(*self.expanded, self._sides.__getitem__, routing=self.routing, lost=lost)

    @cached_property
    def _sides(self) -> list[Side]:
        """For each card its owner and the switches that may lead to it."""
        sides = [Side()] * self.card_count
        for numbers, group in self.card_groups():
            for index, card in enumerate(numbers):
                if group.owner is not None:
                    host = index if group.owner == "hosts" else index // self.hosts.ranks_per_host
                    sides[card] = Side(host, group.owner, group=numbers[0])
        for space in reversed(self.spaces):  # the first one counts
            if space.over is None:
                continue
            over = frozenset(self._over(space))
            for card in self.cards_of(space):
                sides[card] = sides[card]._replace(over=over)
        return sides

    def _over(self, space: Space) -> set[str]:
        """The switches over which a space is reached: a fabric's name stands for all of its own."""
        over = set(space.over or ())
        whole = over.intersection(fabric.name for fabric in self.fabrics)
        return over | {switch.name for switch in self.expanded.switches if switch.name.partition("-")[0] in whole}
