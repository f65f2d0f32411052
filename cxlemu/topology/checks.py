"""How a topology's parts must fit together: names resolve, hosts reach the pool, sizes fit."""

from collections.abc import Iterator

from cxlemu.topology.document import Key, shown
from cxlemu.topology.endpoints import members
from cxlemu.topology.fields import Misplaced, Space, closest
from cxlemu.topology.parts import Parts
from cxlemu.topology.shipped import shipped_accelerators
from cxlemu.units import format_bytes

CARDS_MAX = 256
OWNED_MAX = 1 << 14


def defects(topology: Parts) -> Iterator[Misplaced]:
    """Yield every defect, in an order in which each check may rely on the ones before it: raise the first."""
    if not topology.description.isprintable():
        yield Misplaced(("description",), "should be one line of printable text")
    yield from _cards(topology)
    if topology.accelerator is not None and topology.accelerator not in shipped_accelerators():
        near = closest(topology.accelerator, shipped_accelerators())
        yield Misplaced(("accelerator",), f"is {topology.accelerator}, which is not a shipped accelerator; {near}")
    yield from _names_taken_twice(topology)
    yield from _link_ends(topology)
    yield from _spaces(topology)
    yield from _unreachable(topology)
    yield from _emulation(topology)


def _cards(topology: Parts) -> Iterator[Misplaced]:
    pooled = sum(group.count for group in topology.cards if group.owner is None)
    if pooled > CARDS_MAX:
        yield Misplaced(("cards",), f"are {pooled} but should be {CARDS_MAX} at most")
    if topology.card_count - pooled > OWNED_MAX:
        owned = topology.card_count - pooled
        yield Misplaced(("cards",), f"of hosts and ranks are {owned} but should be {OWNED_MAX} at most")
    owners = [group.owner for group in topology.cards]
    for index, owner in enumerate(owners):
        if owner is None and any(owners[:index]):
            yield Misplaced(("cards", index), "should come before those that hosts or ranks own")


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
        if members(switch.name) is not None:
            yield Misplaced(("switches", index, "name"), f"{switch.name} means hosts or cards; choose another")
    switches = {switch.name for switch in topology.expanded.switches}
    pooled = sum(group.count for group in topology.cards if group.owner is None)
    counts = {"host": topology.host_count, "rank": topology.place_count, "card": pooled}
    for index, link in enumerate(topology.links):
        for side, end in enumerate(link.ends):
            some = members(end)
            if some is None and end in switches:
                continue
            if some is None or not some.are_among(counts[some.kind]):
                known = [*switches, "hosts", "ranks"] + ["cards"] * bool(pooled)
                known += [f"{kind}{number}" for kind in ("host", "card") for number in range(counts[kind])]
                what = f"{shown(end)} is not a host, card or switch; {closest(end, known)}"
                yield Misplaced(("links", index, "ends", side), what)
        if link.ends[0] == link.ends[1]:
            yield Misplaced(("links", index, "ends"), f"are both {link.ends[0]} but should be two things")


def _spaces(topology: Parts) -> Iterator[Misplaced]:
    for index, space in enumerate(topology.spaces):
        if space.on_cards:
            yield from _space_on_cards(topology, space, ("spaces", index))
    pools = [space for space in topology.spaces if space.kind == "cxl_pool"]
    if len(pools) > 1 or (not pools and not any(space.owned for space in topology.spaces)):
        what = f"should hold exactly one space of kind cxl_pool, not {len(pools)}"
        yield Misplaced(("spaces",), what + (", or memory of hosts or ranks" if not pools else ""))
    if pools and topology.cards_of(pools[0])[0] != 0:
        yield Misplaced(("spaces", topology.spaces.index(pools[0]), "cards"), "should begin with card 0")


def _space_on_cards(topology: Parts, space: Space, where: Key) -> Iterator[Misplaced]:
    cards = topology.cards_of(space)
    if not cards:
        what = "of hosts or ranks" if space.owned else "that nobody owns"
        yield Misplaced((*where, "kind"), f"is {space.kind}, but there are no cards {what}")
    for card in cards:
        if not 0 <= card < topology.card_count:
            yield Misplaced((*where, "cards"), f"name card {card}, but cards are 0 to {topology.card_count - 1}")
    if list(cards) != list(range(cards[0], cards[0] + len(cards))):
        yield Misplaced((*where, "cards"), "should be consecutive and ascending, like [0, 1, 2]")
    for card in cards:
        if (topology.owner_host(card) is not None) != space.owned:
            what = "nobody owns it" if space.owned else "it has an owner"
            yield Misplaced(
                (*where, "cards"), f"name card {card}, which a space of kind {space.kind} cannot lie on: {what}"
            )
    switches = [switch.name for switch in topology.expanded.switches] + [fabric.name for fabric in topology.fabrics]
    for index, name in enumerate(space.over or ()):
        if name not in switches:
            yield Misplaced((*where, "over", index), f"{shown(name)} is not a switch; {closest(name, switches)}")
    room = sum(topology.card(card).capacity_bytes for card in cards)
    if space.capacity_bytes is not None and space.capacity_bytes > room:
        what = f"is {format_bytes(space.capacity_bytes)} but its cards hold {format_bytes(room)}"
        yield Misplaced((*where, "capacity_bytes"), what)


def _unreachable(topology: Parts) -> Iterator[Misplaced]:
    apart = topology.fabric().cut_off(range(topology.host_count), topology.cards_of(topology.pool_space))
    for host, card in sorted(apart, key=lambda pair: pair[::-1]):
        name = topology.card_name(card)
        what = f"should join every host to the pool's cards, but host{host} does not reach {name}"
        yield Misplaced(("fabrics" if topology.fabrics and not topology.links else "links",), what)


def _emulation(topology: Parts) -> Iterator[Misplaced]:
    nbytes, where = topology.card_bytes, ("emulation", "card_bytes")
    smallest = topology.smallest_card_bytes
    if nbytes > smallest:
        yield Misplaced(where, f"is {format_bytes(nbytes)} but should fit the smallest card, {format_bytes(smallest)}")
    if nbytes < 2 * topology.interleave_bytes:
        what = f"is {nbytes} but should hold at least two granules of {topology.interleave_bytes} bytes"
        yield Misplaced(where, what)
