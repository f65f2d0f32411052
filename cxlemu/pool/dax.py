"""A pool of real cards: one /dev/daxX.Y device per card, or files that stand in for them.

Nothing but the cards is needed to attach: no shared memory, no process that owns them. Paths come in any order; each
card's superblock says which card it is.
"""

from __future__ import annotations

import uuid as uuids
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from cxlemu.errors import ArgumentError, PoolError
from cxlemu.memory.dax import DaxMemory
from cxlemu.memory.protocol import Bytes, HostMemory
from cxlemu.pool.device import Mapped, map_device, map_part
from cxlemu.pool.owner import NOBODY
from cxlemu.pool.pool import Pool
from cxlemu.pool.superblock import SUPERBLOCK_BYTES, Superblock, check_pool, parse
from cxlemu.rounding import round_up
from cxlemu.units import format_bytes


class DaxPool(Pool):
    """A pool on devices, which processes of several machines can attach."""

    spans_machines = True

    def __init__(self, superblock: Superblock, mapped: Sequence[Mapped]) -> None:
        """Use ``attach``."""
        card_bytes = superblock.geometry.card_bytes
        super().__init__(str(superblock.uuid), superblock, [card.pages[:card_bytes] for card in mapped])
        self.mapped = tuple(mapped)
        self.align_bytes = max(card.device.align_bytes for card in self.mapped)

    @classmethod
    def attach(cls, paths: Sequence[str], uuid: uuids.UUID | None = None) -> DaxPool:
        """Map the pool with this UUID on devices in any order (None: the one that all make up). Writes nothing."""
        mapped = map_all(paths)
        if uuid is None:
            signed = [(read_superblock(card), card) for card in mapped]
            _refuse_other_pools(signed)
        else:
            signed = [(card_of, card) for card in mapped if (card_of := _of_pool(card, uuid)) is not None]
            if not signed:
                raise PoolError(f"none of {_listed(paths)} is a card of pool {uuid}")
        signed.sort(key=lambda pair: pair[0].card)
        _refuse_missing(signed)
        check_pool([block for block, _ in signed], [card.device.path for _, card in signed])
        for block, card in signed:
            if card.pages.nbytes < block.geometry.card_bytes:
                raise PoolError(
                    f"{card.device.path} has {card.pages.nbytes} bytes in whole pages of {card.device.align_bytes}, "
                    f"its superblock says {block.geometry.card_bytes}"
                )
        return cls(signed[0][0], [card for _, card in signed])

    def describe(self) -> str:
        """Describe the number and size of the cards, then each card and how it is mapped, in card order."""
        cards = (f"{card.device.path} ({card.device.kind}, {card.how})" for card in self.mapped)
        size, granule = format_bytes(self.card_bytes), format_bytes(self.interleave_bytes)
        return f"{len(self.cards)} of {size}, interleaved by {granule}: {', '.join(cards)}"

    def line_memory(self, cards: Sequence[Bytes] | None = None, *, writable: bool = True) -> HostMemory:
        """Return a memory that reaches the cards, or ``cards``, with this machine's cache-line instructions."""
        return DaxMemory(self.cards if cards is None else cards, writable=writable)

    def part(self, card: int, offset: int, nbytes: int, *, writable: bool = True) -> Bytes:
        """Map bytes of a device alone, as `Pool.part`. Raises PoolError as `map_part`."""
        device = self.mapped[card].device
        return map_part(device, offset, round_up(nbytes, device.align_bytes), writable=writable)[:nbytes]

    @property
    def lock_path(self) -> Path:
        return Path(self.mapped[0].device.path)

    def close(self) -> None:
        """Let go of the mappings of all devices; twice is fine."""
        super().close()
        self.mapped = ()


def map_all(paths: Sequence[str]) -> list[Mapped]:
    """Map every device, in the order of ``paths``."""
    if not paths:
        raise ArgumentError("a pool of real cards needs its devices: give --device once for every card")
    mapped: dict[tuple[int, ...], Mapped] = {}
    for path in paths:
        card = map_device(path)
        if (other := mapped.get(card.device.identity)) is not None:
            raise PoolError(f"{other.device.path} and {path} are one device, and so one card")
        mapped[card.device.identity] = card
    return list(mapped.values())


def read_superblock(card: Mapped) -> Superblock:
    """Read a card's superblock. Raises PoolError where there is none, or not one that `cxlemu pool format` wrote."""
    path, data = card.device.path, superblock_bytes(card)
    if not any(data):
        raise PoolError(f"{path} is not formatted: `cxlemu pool format` makes a pool of cards")
    superblock = parse(data, path)
    if superblock.owner != NOBODY:
        raise PoolError(f"{path} is a card of an emulated pool, which ends with process {superblock.owner.pid}")
    return superblock


def superblock_bytes(card: Mapped) -> bytes:
    """Fetch a superblock's bytes as they are on the card.

    This host may have cached what another one has overwritten since.
    """
    data = np.empty(SUPERBLOCK_BYTES, np.uint8)
    memory = DaxMemory([card.pages])
    memory.invalidate(0, 0, SUPERBLOCK_BYTES)
    memory.read(0, 0, data)
    return data.tobytes()


def _of_pool(card: Mapped, uuid: uuids.UUID) -> Superblock | None:
    try:
        superblock = read_superblock(card)
    except PoolError:
        return None
    return superblock if superblock.uuid == uuid else None


def _refuse_other_pools(signed: Sequence[tuple[Superblock, Mapped]]) -> None:
    first, here = signed[0]
    for other, there in signed:
        if other.uuid != first.uuid:
            raise PoolError(
                f"{here.device.path} belongs to pool {first.uuid}, but {there.device.path} to pool {other.uuid}: "
                "give the cards of one pool, or choose one with --pool"
            )


def _refuse_missing(signed: Sequence[tuple[Superblock, Mapped]]) -> None:
    first = signed[0][0]
    paths: dict[int, str] = {}
    for block, card in signed:
        if block.card in paths:
            where = f"{paths[block.card]} and {card.device.path}"
            raise PoolError(f"{where} both claim to be card {block.card} of pool {block.uuid}: one is a copy")
        paths[block.card] = card.device.path
    missing = [str(index) for index in range(first.geometry.cards) if index not in paths]
    if missing:
        raise PoolError(
            f"pool {first.uuid} has {first.geometry.cards} cards, but its card {', '.join(missing)} is not among "
            f"{_listed(paths.values())}"
        )


def _listed(paths: Iterable[str]) -> str:
    return ", ".join(paths)
