"""What a topology's parts must be to each other: names resolve, hosts reach the pool, sizes fit."""

from __future__ import annotations

from collections.abc import Iterator

from cxlemu.topology.document import Key, shown
from cxlemu.topology.ends import members
from cxlemu.topology.fields import Misplaced, Space, closest
from cxlemu.topology.parts import Parts
from cxlemu.units import format_bytes

CARDS_MAX = 256


def defects(topology: Parts) -> Iterator[Misplaced]:
    """Every defect, in an order in which each check may rely on the ones before it: raise the first."""
    if not topology.description.isprintable():
        yield Misplaced(("description",), "should be one line of printable text")
    if topology.card_count > CARDS_MAX:
        yield Misplaced(("cards",), f"are {topology.card_count} but should be {CARDS_MAX} at most")
    yield from _names_taken_twice(topology)
    yield from _link_ends(topology)
    yield from _spaces(topology)
    yield from _unreachable(topology)
    yield from _emulation(topology)


def _names_taken_twice(topology: Parts) -> Iterator[Misplaced]:
    for kind in ("fabrics", "switches", "links", "spaces"):
        seen: dict[str, int] = {}
        for index, item in enumerate(getattr(topology, kind)):
            if item.name in seen:
                yield Misplaced((kind, index, "name"), f"{item.name} is already {kind}[{seen[item.name]}]; rename one")
            seen[item.name] = index
    for kind in ("switches", "links"):
        for index, item in enumerate(getattr(topology, kind)):
            for fabric in topology.fabrics:
                if item.name.startswith(f"{fabric.name}-"):
                    what = f"{item.name} begins as names in the fabric {fabric.name} do; choose another"
                    yield Misplaced((kind, index, "name"), what)


def _link_ends(topology: Parts) -> Iterator[Misplaced]:
    for index, switch in enumerate(topology.switches):
        if switch.name in {"hosts", "cards"} or members(switch.name):
            yield Misplaced(("switches", index, "name"), f"{switch.name} means hosts or cards; choose another")
    switches = {switch.name for switch in topology.expanded.switches}
    counts = {"host": topology.host_count, "card": topology.card_count}
    for index, link in enumerate(topology.links):
        for side, end in enumerate(link.ends):
            some = members(end)
            if some is None and end in switches:
                continue
            if some is None or not some.are_among(counts[some.kind]):
                known = [*switches, "hosts", "cards"]
                known += [f"{kind}{number}" for kind, count in counts.items() for number in range(count)]
                what = f"{shown(end)} is not a host, card or switch; {closest(end, known)}"
                yield Misplaced(("links", index, "ends", side), what)
        if link.ends[0] == link.ends[1]:
            yield Misplaced(("links", index, "ends"), f"are both {link.ends[0]} but should be two things")


def _spaces(topology: Parts) -> Iterator[Misplaced]:
    for index, space in enumerate(topology.spaces):
        if space.on_cards:
            yield from _space_on_cards(topology, space, ("spaces", index))
    pools = sum(space.kind == "cxl_pool" for space in topology.spaces)
    if pools != 1:
        yield Misplaced(("spaces",), f"should hold exactly one space of kind cxl_pool, not {pools}")


def _space_on_cards(topology: Parts, space: Space, where: Key) -> Iterator[Misplaced]:
    cards = topology.cards_of(space)
    for card in cards:
        if not 0 <= card < topology.card_count:
            yield Misplaced((*where, "cards"), f"name card {card}, but cards are 0 to {topology.card_count - 1}")
    if list(cards) != list(range(cards[0], cards[0] + len(cards))):
        yield Misplaced((*where, "cards"), "should be consecutive and ascending, like [0, 1, 2]")
    room = sum(topology.card(card).capacity_bytes for card in cards)
    if space.capacity_bytes is not None and space.capacity_bytes > room:
        what = f"is {format_bytes(space.capacity_bytes)} but its cards hold {format_bytes(room)}"
        yield Misplaced((*where, "capacity_bytes"), what)


def _unreachable(topology: Parts) -> Iterator[Misplaced]:
    cards = topology.cards_of(topology.pool_space)
    apart = topology.fabric().cut_off(range(topology.host_count), range(cards[0], cards[-1] + 1))
    for host, card in sorted(apart, key=lambda pair: pair[::-1]):
        what = f"should join every host to the pool's cards, but host{host} does not reach card{card}"
        yield Misplaced(("fabrics" if topology.fabrics and not topology.links else "links",), what)


def _emulation(topology: Parts) -> Iterator[Misplaced]:
    nbytes, where = topology.card_bytes, ("emulation", "card_bytes")
    smallest = min(group.capacity_bytes for group in topology.cards)
    if nbytes > smallest:
        yield Misplaced(where, f"is {format_bytes(nbytes)} but should fit the smallest card, {format_bytes(smallest)}")
    if nbytes < 2 * topology.interleave_bytes:
        what = f"is {nbytes} but should hold at least two granules of {topology.interleave_bytes} bytes"
        yield Misplaced(where, what)
