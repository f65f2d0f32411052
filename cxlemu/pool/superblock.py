"""The first 4096 bytes of every card: which pool it belongs to, how the pool is laid out, and which process made it.

    0       superblock     SUPERBLOCK_BYTES
    4096    session area   a line for rank 0's record, then three lines per rank
    ...     data arena     from data_offset(max_ranks) to the end of the card, the same on every card

All integers are little-endian. The body is written first and the magic last, so a card under construction is never
taken for a finished one; the CRC covers magic and body.
"""

from __future__ import annotations

import struct
import time
import uuid
import zlib
from dataclasses import dataclass, fields, replace

from cxlemu.errors import PoolError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.pool.owner import Owner
from cxlemu.rounding import round_up

PAGE_BYTES = 4096
SUPERBLOCK_BYTES = PAGE_BYTES
SESSION_OFFSET = SUPERBLOCK_BYTES
SESSION_LINES_PER_RANK = 3

MAGIC = b"CXLEMUSB"
UNFINISHED = bytes(len(MAGIC))
VERSION = 1

CARDS_MAX = 1024
HOSTS_MAX = 65536
RANKS_MAX = 65536
CARD_BYTES_MAX = 1 << 46
INTERLEAVE_BYTES_MIN = 256
INTERLEAVE_BYTES_MAX = 16 << 20

_HEAD = struct.Struct("<8sI")  # magic, version: readable whatever the version
_BODY = struct.Struct("<16s4I2Q2I2Q16sQ")
_CRC = struct.Struct("<I")
_CRC_OFFSET = _HEAD.size + _BODY.size
PACKED_BYTES = _CRC_OFFSET + _CRC.size


def data_offset(max_ranks: int) -> int:
    """Return the first byte of the data arena: the session area for ``max_ranks`` ranks, rounded up to whole pages."""
    end = SESSION_OFFSET + LINE_BYTES * (1 + SESSION_LINES_PER_RANK * max_ranks)
    return round_up(end, PAGE_BYTES)


@dataclass(frozen=True)
class Geometry:
    """The sizes that are the same on every card of a pool."""

    cards: int
    hosts: int  # emulated ones
    max_ranks: int
    card_bytes: int
    interleave_bytes: int

    @property
    def data_offset(self) -> int:
        """The first byte of the data arena on every card."""
        return data_offset(self.max_ranks)

    def flaw(self) -> str | None:
        """Explain why no pool can be like this, as the end of a sentence; return None when all values are possible."""
        for name, least, most in (("cards", 1, CARDS_MAX), ("hosts", 0, HOSTS_MAX), ("max_ranks", 1, RANKS_MAX)):
            if not least <= getattr(self, name) <= most:
                return f"{name} is {getattr(self, name)}, but must be {least} to {most}"
        if not self.data_offset < self.card_bytes <= CARD_BYTES_MAX or self.card_bytes % PAGE_BYTES:
            start = f"{self.data_offset + PAGE_BYTES} (room for {self.max_ranks} ranks)"
            return (
                f"card_bytes is {self.card_bytes}, but must be {start} to {CARD_BYTES_MAX}, a multiple of {PAGE_BYTES}"
            )
        in_range = INTERLEAVE_BYTES_MIN <= self.interleave_bytes <= INTERLEAVE_BYTES_MAX
        if not in_range or self.interleave_bytes.bit_count() != 1:
            return (
                f"interleave_bytes is {self.interleave_bytes}, but must be a power of two "
                f"from {INTERLEAVE_BYTES_MIN} to {INTERLEAVE_BYTES_MAX}"
            )
        return None


@dataclass(frozen=True)
class Superblock:
    uuid: uuid.UUID
    card: int
    geometry: Geometry
    owner: Owner
    created_ns: int  # wall clock, nanoseconds since 1970

    @classmethod
    def new(cls, geometry: Geometry, owner: Owner) -> Superblock:
        """Make the superblock of card 0 of a new pool, with a fresh UUID."""
        return cls(uuid.uuid4(), 0, geometry, owner, time.time_ns())

    def for_card(self, card: int) -> Superblock:
        return replace(self, card=card)

    def pack(self) -> bytes:
        """Return the superblock's PACKED_BYTES bytes, magic and CRC included."""
        geometry, owner = self.geometry, self.owner
        body = _BODY.pack(
            self.uuid.bytes,
            *(self.card, geometry.cards, geometry.hosts, geometry.max_ranks),
            *(geometry.card_bytes, geometry.interleave_bytes),
            *(owner.uid, owner.pid, owner.start_ticks, owner.pid_namespace),
            *(owner.boot_id.bytes, self.created_ns),
        )
        packed = _HEAD.pack(MAGIC, VERSION) + body
        return packed + _CRC.pack(zlib.crc32(packed))


def parse(data: bytes, where: str) -> Superblock:
    """Read a superblock from untrusted bytes, at least PACKED_BYTES."""
    if len(data) < PACKED_BYTES:
        raise PoolError(f"{where} is cut short: {len(data)} bytes, a superblock needs {PACKED_BYTES}")
    magic, version = _HEAD.unpack_from(data)
    if magic == UNFINISHED:
        raise PoolError(f"{where} is incomplete: its creator is still at work, or died")
    if magic != MAGIC:
        raise PoolError(f"{where} is not a cxlemu card: it starts with {magic!r} instead of {MAGIC!r}")
    if version != VERSION:
        raise PoolError(f"{where} has layout version {version}, this cxlemu reads version {VERSION}")
    (crc,) = _CRC.unpack_from(data, _CRC_OFFSET)
    if crc != zlib.crc32(data[:_CRC_OFFSET]):
        raise PoolError(f"{where} has a damaged superblock: its CRC is wrong")

    pool, card, *shape, uid, pid, ticks, namespace, boot, created_ns = _BODY.unpack_from(data, _HEAD.size)
    geometry = Geometry(*shape)
    owner = Owner(uid, pid, ticks, namespace, uuid.UUID(bytes=boot))
    flaw = geometry.flaw()
    if flaw is None and card >= geometry.cards:
        flaw = f"it is card {card} of {geometry.cards}"
    if flaw:
        raise PoolError(f"{where} has an impossible superblock: {flaw}")
    return Superblock(uuid.UUID(bytes=pool), card, geometry, owner, created_ns)


def check_pool(superblocks: list[Superblock], where: list[str]) -> None:
    """Check that superblocks are those of card 0, 1, ... of one pool."""
    first = superblocks[0]
    for index, (block, name) in enumerate(zip(superblocks, where, strict=True)):
        if block.uuid != first.uuid:
            raise PoolError(f"{name} belongs to another pool: UUID {block.uuid}, {where[0]} has {first.uuid}")
        if block.card != index:
            raise PoolError(f"{name} says it is card {block.card}, but card {index} was expected in its place")
        for field in fields(block):
            if field.name != "card" and getattr(block, field.name) != getattr(first, field.name):
                theirs, ours = getattr(block, field.name), getattr(first, field.name)
                raise PoolError(f"{name} and {where[0]} disagree on {field.name}: {theirs} and {ours}")
