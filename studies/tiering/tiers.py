"""The memory that a topology offers a rank, nearest first: each of its spaces; where memory has owners, the rank's own
part and that of its peers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from cxlemu.cost import CostModel
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Region
from cxlemu.topology import Space, Topology
from studies.tiering.program import Program, timed

REGION_BYTES = 1 << 40


@dataclass(frozen=True)
class Tier:
    """One kind of memory that ranks have."""

    name: str
    space: Space
    own: bool
    capacity_bytes: int  # of each rank
    regions: tuple[Region, ...]  # for each rank, where its part lies
    copied: bool  # takes copies, not loads: a page at a time
    coherence_ns: int  # per access
    filter_lines: int | None  # that the snoop filters of all its homes together have room for; None: for all lines
    load_ns: int = 0  # what a load of an idle line takes


def tiers_of(model: CostModel, ranks: int) -> list[Tier]:
    """Find the tiers of a topology's memory, nearest first; the ranks that share it are 0 to ``ranks - 1``."""
    if not 1 <= ranks <= len(model.hosts):
        raise ArgumentError(f"{model.topology.name} has {len(model.hosts)} places for ranks, not {ranks}")
    tiers: list[Tier] = []
    for space in model.topology.spaces:
        if space.on_cards:
            tiers += _of_space(model, space, ranks)
    timed = [replace(tier, load_ns=_load_ns(model, tier)) for tier in tiers]
    return sorted(timed, key=lambda tier: tier.load_ns)


def _of_space(model: CostModel, space: Space, ranks: int) -> list[Tier]:
    if not space.owned:
        cards = model.cards_of(space)
        return [_tier(model, space, space.name, False, [cards] * ranks, ranks)]
    own = model.cards_of(space, range(ranks))
    others = tuple(dict.fromkeys(card for card in model.cards_of(space) if card not in own))
    sharers = -(-ranks // len(set(own)))
    tiers = [_tier(model, space, space.name, True, [(card,) for card in own], sharers)]
    if others:
        tiers.append(_tier(model, space, f"{space.name} of peers", False, [others] * ranks, ranks))
    return tiers


def _tier(model: CostModel, space: Space, name: str, own: bool, cards: Sequence[tuple[int, ...]], sharers: int) -> Tier:
    for numbers in cards:
        if numbers != tuple(range(numbers[0], numbers[0] + len(numbers))):
            raise ArgumentError(f"{name} of {model.topology.name} should lie on consecutive cards")
    held = sum(_card_bytes(model.topology, [model.cards[card] for card in cards[0]]))
    if space.capacity_bytes is not None:  # a part of each of its cards
        held = held * space.capacity_bytes // sum(_card_bytes(model.topology, model.topology.cards_of(space)))
    regions = tuple(Region(card[0], len(card), space.granule_bytes, 0, 0, REGION_BYTES) for card in cards)
    costs = space.costs or model.topology.costs
    homes = len({card for numbers in cards for card in numbers})
    filter_lines = None if own or space.snoop_filter_lines is None else homes * space.snoop_filter_lines
    coherence_ns = 0 if own else space.coherence_ns or 0
    copied = bool(costs.copy_ns)
    return Tier(name, space, own, held // sharers, regions, copied, coherence_ns, filter_lines)


def _load_ns(model: CostModel, tier: Tier) -> int:
    one = np.zeros(1, np.int64)
    _, (times,) = timed(model, [tier.regions[:1]], [Program(one, one, one + LINE_BYTES, LINE_BYTES)])
    return int(times[0])


def _card_bytes(topology: Topology, numbers: Iterable[int]) -> list[int]:
    return [topology.card(number).capacity_bytes for number in numbers]
