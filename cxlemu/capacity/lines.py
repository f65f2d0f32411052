"""What lies on card 0 of a pool whose capacity is lent: 64-byte lines, each with one writer, sealed as sessions' are.

    in the superblock's page    header     how capacity is lent, and what is being changed     the manager
    from data_offset            grants     SLOTS lines: who holds which bytes of every card    the manager
                                accounts   SLOTS lines: all that a tenant ever had             the manager
                                uses       a line for each slot and rank: that it is in it     that rank


Seals hold the pool's UUID, so that a pool that lay there before has left no lines. Whatever is read is untrusted: a
line that is damaged, belongs to another pool or lies in another place counts as absent, and numbers are held to what
the pool can be.
"""

from __future__ import annotations

import struct
import uuid as uuids
import zlib
from enum import IntEnum
from typing import NamedTuple, TypeVar

from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, HostMemory
from cxlemu.pool.owner import Owner
from cxlemu.pool.session_area import seal

SLOTS = 64
HEADER_OFFSET = 2048
TENANT_BYTES = 24


class TableChange(IntEnum):
    """What the manager is at. Should it die of it, the next one knows."""

    NOTHING = 0
    ADD = 1
    RELEASE = 2
    FORCE = 3
    RECLAIM = 4


class GrantState(IntEnum):
    FREE = 0
    HELD = 1
    RELEASING = 2  # for a moment: nobody may come in, a rank that is in may stay
    FORCED = 3  # taken away; until its users have left, nobody else gets it


class Header(NamedTuple):
    change: int
    epoch: int  # counts changes
    block_bytes: int
    first_byte: int
    end_byte: int
    given: int  # grants ever
    ranks: int  # of a world, that have lines to say that they are in a grant


class GrantLine(NamedTuple):
    number: int
    at: int
    nbytes: int
    state: int
    tenant: bytes


class AccountLine(NamedTuple):
    tenant: bytes
    peak: int
    added: int
    released: int
    forced: int


class UseLine(NamedTuple):
    number: int  # of the grant
    inside: int
    uid: int
    pid: int
    start_ticks: int
    pid_namespace: int
    boot_id: bytes

    @classmethod
    def of(cls, number: int, owner: Owner, *, inside: bool) -> UseLine:
        place = (owner.uid, owner.pid, owner.start_ticks, owner.pid_namespace, owner.boot_id.bytes)
        return cls(number, int(inside), *place)

    @property
    def owner(self) -> Owner:
        return Owner(self.uid, self.pid, self.start_ticks, self.pid_namespace, uuids.UUID(bytes=self.boot_id))


L = TypeVar("L", Header, GrantLine, AccountLine, UseLine)

_LAYOUT: dict[type, tuple[bytes, struct.Struct]] = {
    Header: (b"CAP1", struct.Struct("<QQQQQQQ")),
    GrantLine: (b"GRA1", struct.Struct(f"<QQQQ{TENANT_BYTES}s")),
    AccountLine: (b"ACC1", struct.Struct(f"<{TENANT_BYTES}sQQQQ")),
    UseLine: (b"USE1", struct.Struct("<QIIIxxxxQQ16s")),
}


class Lines:
    """Lines on card 0 of one pool, as one host's memory shows them."""

    def __init__(self, memory: HostMemory, uuid: uuids.UUID) -> None:
        self.memory, self.uuid = memory, uuid
        self._key = zlib.crc32(uuid.bytes)

    def store(self, offset: int, line: L, index: int = 0) -> None:
        """Push the line, whole and alone: a reader finds it, or the one before, or knows that it is torn."""
        magic, layout = _LAYOUT[type(line)]
        payload = layout.pack(*line).ljust(PAYLOAD_BYTES, b"\0")
        self.memory.signal(0, offset, self._seal(magic, payload, index), payload)

    def load(self, offset: int, kind: type[L], index: int = 0) -> L | None:
        magic, layout = _LAYOUT[kind]
        word, payload = self.memory.poll(0, offset)
        return kind(*layout.unpack_from(payload)) if word == self._seal(magic, payload, index) else None

    def _seal(self, magic: bytes, payload: bytes, index: int) -> int:
        return seal(magic, payload, (self._key + index) & 0xFFFFFFFF)


def table_bytes(ranks: int) -> int:
    return (2 + ranks) * SLOTS * LINE_BYTES


def tenant_bytes(tenant: str) -> bytes:
    return tenant.encode().ljust(TENANT_BYTES, b"\0")


def tenant_name(line: bytes) -> str:
    return line.rstrip(b"\0").decode(errors="replace")
