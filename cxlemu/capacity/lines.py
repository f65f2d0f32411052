"""The lines on card 0 of a pool whose capacity is lent: 64 bytes, each with one writer, sealed as sessions' are.

    in the superblock's page    header     how capacity is lent, and what is being changed     the manager
    from data_offset            grants     SLOTS lines: each tenant's bytes of every card      the manager
                                accounts   SLOTS lines: all that a tenant ever had             the manager
                                uses       pages of each slot, a line for each rank in it      that rank

A tenant maps all of this read-only, but for the pages of its own slot. Seals hold the pool's UUID, so that lines of a
pool that lay there before do not verify. Whatever is read is untrusted:
a line that is damaged, belongs to another pool or lies in another place counts as absent, and numbers are held to what
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
from cxlemu.pool.session_area import COUNT_MAX, seal, within
from cxlemu.pool.superblock import CARD_BYTES_MAX, PAGE_BYTES, RANKS_MAX
from cxlemu.rounding import round_up

SLOTS = 64
HEADER_OFFSET = 2048
TENANT_BYTES = 24


class TableChange(IntEnum):
    """The change that the manager is making. If the manager dies in its middle, the next one knows."""

    NOTHING = 0
    ADD = 1
    RELEASE = 2
    FORCE = 3
    RECLAIM = 4


class GrantState(IntEnum):
    """Whether a slot's bytes are lent, and whether ranks may enter them."""

    FREE = 0
    HELD = 1
    RELEASING = 2  # for a moment: no rank may enter, a rank that is in may stay
    FORCED = 3  # taken away; it is not lent again until its users have left


class Header(NamedTuple):
    """How the pool's capacity is lent, and which change is being made. Offsets and sizes are in bytes of each card."""

    change: int
    epoch: int  # counts changes
    block_bytes: int
    first_byte: int
    end_byte: int
    given: int  # number of grants ever lent
    ranks: int  # the most in a world: each has a line to say that it is in a grant
    page_bytes: int  # every slot's uses begin at a multiple of this


class GrantLine(NamedTuple):
    """One slot of the table: ``nbytes`` bytes from ``at`` on of every card, and the tenant that holds them."""

    number: int
    at: int
    nbytes: int
    state: int
    tenant: bytes


class AccountLine(NamedTuple):
    """All that a tenant ever had, in bytes of each card."""

    tenant: bytes
    peak: int
    added: int
    released: int
    forced: int


class UseLine(NamedTuple):
    """A rank's word on whether it is in a grant, and the process that it is."""

    number: int  # the grant's
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
    Header: (b"CAP2", struct.Struct("<QQQQQQII")),
    GrantLine: (b"GRA1", struct.Struct(f"<QQQQ{TENANT_BYTES}s")),
    AccountLine: (b"ACC1", struct.Struct(f"<{TENANT_BYTES}sQQQQ")),
    UseLine: (b"USE1", struct.Struct("<QIIIxxxxQQ16s")),
}

HEADER_BOUNDS = {
    "change": (min(TableChange), max(TableChange)),
    "epoch": (0, COUNT_MAX),
    "block_bytes": (LINE_BYTES, CARD_BYTES_MAX),
    "given": (0, COUNT_MAX),
    "ranks": (1, RANKS_MAX),
    "page_bytes": (LINE_BYTES, CARD_BYTES_MAX),
}

# What each field can be, whatever the pool; the others name a process. The table holds lines to its pool's sizes.
_BYTES = (0, CARD_BYTES_MAX)
_BOUNDS: dict[type, dict[str, tuple[int, int]]] = {
    Header: {},  # a reader has to tell one that cannot be from one that is not there: see HEADER_BOUNDS
    GrantLine: {"number": (0, COUNT_MAX), "at": _BYTES, "nbytes": _BYTES, "state": (min(GrantState), max(GrantState))},
    AccountLine: {"peak": _BYTES, "added": (0, COUNT_MAX), "released": (0, COUNT_MAX), "forced": (0, COUNT_MAX)},
    UseLine: {"number": (0, COUNT_MAX), "inside": (0, 1)},
}


class Lines:
    """The lines on card 0 of one pool, as one host's memory shows them."""

    def __init__(self, memory: HostMemory, uuid: uuids.UUID) -> None:
        self.memory, self.uuid = memory, uuid
        self._key = zlib.crc32(uuid.bytes)

    def store(self, offset: int, line: L, index: int = 0) -> None:
        """Push a line, whole and alone: a reader finds it, or the one before, or knows that it is torn.

        It is in the pool on return: who says first and then looks may rely on that.
        """
        magic, layout = _LAYOUT[type(line)]
        payload = layout.pack(*line).ljust(PAYLOAD_BYTES, b"\0")
        self.memory.signal(0, offset, self._seal(magic, payload, index), payload)
        self.memory.fence()

    def load(self, offset: int, kind: type[L], index: int = 0) -> L | None:
        """Fetch a line from the pool; None where no whole line of this kind, index and pool lies at the offset."""
        magic, layout = _LAYOUT[kind]
        word, payload = self.memory.poll(0, offset)
        if word != self._seal(magic, payload, index):
            return None
        line = kind(*layout.unpack_from(payload))
        return line if within(line, _BOUNDS[kind]) and _is_named(line) else None

    def _seal(self, magic: bytes, payload: bytes, index: int) -> int:
        return seal(magic, payload, (self._key + index) & 0xFFFFFFFF)


def uses_range(data_offset: int, ranks: int, page_bytes: int, slot: int) -> tuple[int, int]:
    """Return the first byte of a slot's uses on card 0, and the first byte behind them; both begin a page."""
    nbytes = round_up(ranks * LINE_BYTES, page_bytes)
    begin = round_up(data_offset + 2 * SLOTS * LINE_BYTES, page_bytes) + slot * nbytes
    return begin, begin + nbytes


def table_end(data_offset: int, ranks: int, page_bytes: int) -> int:
    """Return the first byte behind the table; the arguments are those of `uses_range`."""
    return uses_range(data_offset, ranks, page_bytes, SLOTS - 1)[1]


def page_bytes_for(align_bytes: int, card_bytes: int) -> int:
    """Choose the bytes between two slots' uses: what can be mapped alone, unless that fills too much of a card."""
    return align_bytes if SLOTS * align_bytes <= card_bytes // 8 else PAGE_BYTES


def tenant_bytes(tenant: str) -> bytes:
    """Encode a tenant's name for a line, zero-padded to TENANT_BYTES."""
    return tenant.encode().ljust(TENANT_BYTES, b"\0")


def tenant_name(line: bytes) -> str:
    return line.rstrip(b"\0").decode(errors="replace")


def _is_named(line: Header | GrantLine | AccountLine | UseLine) -> bool:
    """Whether a line that names a tenant gives it a name that a tenant can have, or none."""
    if not isinstance(line, GrantLine | AccountLine):
        return True
    name = tenant_name(line.tenant)
    return tenant_bytes(name) == line.tenant and name.isprintable() and ":" not in name
