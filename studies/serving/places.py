"""Where a store of keys and values lies, and which cards of a topology that is.

- ``accelerator``: nowhere else; what instances compute stays in their own memory while there is room
- ``host``: each host's memory, for its own instances
- ``rdma``: the same memory, which all hosts share: a block lies on the host that its id names
- ``pool``: the cards of a pool, which all hosts share
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cxlemu.cost import CostModel
from cxlemu.errors import ArgumentError
from cxlemu.topology import Space, Topology
from cxlemu.units import format_bytes
from studies.serving.blocks import BlockCache

SHARED = ("pool", "rdma")  # the places that all hosts reach


@dataclass(frozen=True)
class StoreHome:
    """A part of a store: its blocks, and the cards that they lie on."""

    cache: BlockCache
    cards: tuple[int, ...]
    granule_bytes: int  # 0: each block lies on all cards alike


class KvStore:
    """A store's homes: one of a pool, one for each host otherwise, none where there is no store."""

    def __init__(
        self, kind: str, model: CostModel, hosts: Sequence[int], block_bytes: int, capacity_bytes: int | None
    ) -> None:
        self.kind, self.model, self.hosts, self.block_bytes = kind, model, hosts, block_bytes
        self.homes: dict[int, StoreHome | None] = {}  # by host; a pool's is the first one's
        if kind == "accelerator":
            return
        topology = model.topology
        if kind == "pool":
            space, parts = _pool(topology), {hosts[0]: model.cards_of(_pool(topology))}
        else:
            space = _memory(topology)
            first = topology.cards_of(space)[0]
            parts = {host: (model.cards.index(first + host),) for host in hosts}
        for host, cards in parts.items():
            there = sum(topology.card(model.cards[card]).capacity_bytes for card in cards)
            mine = there if capacity_bytes is None else capacity_bytes // len(parts)
            if mine > there:
                raise ArgumentError(
                    f"--capacity {format_bytes(capacity_bytes or 0)} is more than {kind} has on {topology.name}: "
                    f"{format_bytes(there * len(parts))}"
                )
            if mine < block_bytes:
                raise ArgumentError(
                    f"a store of {format_bytes(mine)} in {kind} does not hold one block of {format_bytes(block_bytes)}"
                )
            self.homes[host] = StoreHome(BlockCache(mine // block_bytes), cards, space.granule_bytes)
        self._all = {host: cache for host, cache in self.homes.items() if cache is not None}

    def home(self, block: int, host: int) -> StoreHome | None:
        """Return where a block lies, or would lie, for an instance on a host; None: nowhere."""
        if not self.homes:
            return None
        if self.kind == "rdma":
            return self.homes[self.hosts[block % len(self.hosts)]]
        return self.near(host)

    def near(self, host: int) -> StoreHome | None:
        """Return where blocks for one host's instances lie best; None: nowhere."""
        return self.homes[self.hosts[0] if self.kind == "pool" else host] if self.homes else None

    def lose_host(self, host: int) -> bool:
        """Lose a host's memory; return whether a store was there."""
        if self.kind not in ("host", "rdma"):
            return False
        self.homes[host] = None
        return True

    def restore_host(self, host: int) -> None:
        """Let a host's memory, which is empty, take part in the store again."""
        if self.kind in ("host", "rdma"):
            was = self._all[host]
            self.homes[host] = replace(was, cache=BlockCache(was.cache.capacity))

    def lose_card(self, card: int) -> StoreHome | None:
        """Lose a pool's card, and with it all blocks, as each lies on all cards; return what was there."""
        lost = self.homes[self.hosts[0]] if self.kind == "pool" else None
        if lost is None:
            return None
        index = self.model.cards.index(card) if card in self.model.cards else -1
        left = tuple(card for card in lost.cards if card != index)
        if len(left) == len(lost.cards):
            return None
        capacity = lost.cache.capacity * len(left) // len(lost.cards)
        self.homes[self.hosts[0]] = StoreHome(BlockCache(capacity), left, lost.granule_bytes) if left else None
        return lost

    @property
    def evicted(self) -> int:
        """How many blocks were given up for others."""
        return sum(home.cache.evicted for home in self.homes.values() if home is not None)


def weights_home(model: CostModel, place: KvStore, host: int) -> StoreHome:
    """Return where a cold instance reads its weights: in the store's place, on another host if that is remote, or else
    in its own host's memory."""
    store_home = place.near((host + 1) % model.topology.host_count if place.kind == "rdma" else host)
    if store_home is None:
        store_home = KvStore("host", model, place.hosts, 1, None).near(host)
    assert store_home is not None
    return store_home


def _pool(topology: Topology) -> Space:
    for space in topology.spaces:
        if space.on_cards and not space.owned:
            return space
    raise ArgumentError(f"{topology.name} has no pool: give -c a topology with cards that no host owns")


def _memory(topology: Topology) -> Space:
    for space in topology.spaces:
        if space.on_cards and space.owned and topology.card(topology.cards_of(space)[0]).owner == "hosts":
            return space
    raise ArgumentError(
        f"{topology.name} has no memory of hosts for keys and values: add cards with owner: hosts, and their space"
    )


def places_of(topology: Topology) -> Sequence[str]:
    kinds = ["accelerator"]
    for kind, ask in (("host", _memory), ("pool", _pool), ("rdma", _memory)):
        try:
            ask(topology)
        except ArgumentError:
            continue
        kinds.append(kind)
    return kinds
