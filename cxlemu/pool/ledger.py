"""The ledger: which rank holds which room of the pool, one line for each room that a rank holds.

Every rank has a page of lines on card 0, behind the arena, that it alone writes:

    line 0    identity   which process this rank is, and how many of its lines were ever used
    line 1    pulse      a number that grows for as long as the process lives (cxlemu/pool/liveness.py)
    line 2..  holds      a room that this rank holds, or has claimed

Lines are sealed as those of the session area are, and carry the session's id: lines that an earlier run left here hold
nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, HostMemory
from cxlemu.pool.session_area import seal
from cxlemu.pool.superblock import CARD_BYTES_MAX, CARDS_MAX
from cxlemu.rounding import round_up

ALL_CARDS = -1
IDENTITY, PULSE, FIRST_HOLD = 0, 1, 2
LINES_MIN, LINES_MAX = 8, 256  # of one rank: as many rooms as a rank can hold at once, and FIRST_HOLD
SHARE = 16  # ledgers take at most this part of a card, where LINES_MIN lines a rank leave the choice


class HoldState(IntEnum):
    """How firmly a rank holds a room, or what it says about one in a line that holds no bytes."""

    CLAIMED = 1  # until it has seen that no other rank claims the same
    HELD = 2
    REFUSED = 3  # no room: what a leader answers to the members of a group
    SHORT = 4  # no room yet: a leader asks the members of a group to give back what they dropped
    SEARCHED = 5  # a member did


class Hold(NamedTuple):
    """A room that a rank holds, or has claimed.

    Attributes:
        name: 64 bits by which members of a group know their room; each name is used once in a session.
        at: Its first byte, on every card or on ``card``.
        end: The byte behind it.
        card: The only card that it is on, or ALL_CARDS.
        state: How firmly it is held, or what is said about it.
    """

    name: int
    at: int
    end: int
    card: int
    state: HoldState

    def overlaps(self, other: Hold) -> bool:
        """Whether the two rooms have a byte in common."""
        same_card = ALL_CARDS in (self.card, other.card) or self.card == other.card
        return same_card and self.at < other.end and other.at < self.end


class Identity(NamedTuple):
    """Which process a rank is.

    Attributes:
        lines: How many of the rank's lines were ever used, from line 0 on: readers look at no more.
        pid: The process.
        machine: Digests the machine's boot and the process's pid namespace, in which ``pid`` means something.
    """

    lines: int
    pid: int
    machine: int


_IDENTITY, _HOLD = struct.Struct("<QIIQ"), struct.Struct("<QQQQiB")
_IDENTITY_MAGIC, _HOLD_MAGIC = b"IDN1", b"HLD1"
_STATES = frozenset(HoldState)


def ledger_lines(ranks: int, card_bytes: int) -> int:
    """Return how many lines each rank's part of the ledger has, given the size of card 0."""
    return max(LINES_MIN, min(LINES_MAX, card_bytes // SHARE // LINE_BYTES // ranks))


def ledger_bytes(ranks: int, card_bytes: int) -> int:
    """Return the size of all ranks' ledgers in bytes, given the size of card 0: whole pages, at its end."""
    return round_up(ranks * ledger_lines(ranks, card_bytes) * LINE_BYTES, 4096)


class Ledger:
    """All ranks' ledgers, as one rank's memory shows them.

    Args:
        memory: The rank's memory for lines; no program's writes go through it.
        offset: Where the first rank's ledger begins on card 0, in bytes.
        lines: How many lines each rank has.
        session: Id of the session; lines of other sessions are none.
        rank: This rank, which writes its own lines alone.
    """

    def __init__(self, memory: HostMemory, offset: int, lines: int, session: int, rank: int) -> None:
        self.memory, self.lines, self.rank = memory, lines, rank
        self._offset, self._session = offset, session

    def place(self, rank: int, line: int) -> int:
        """Return where a rank's line lies on card 0."""
        return self._offset + (rank * self.lines + line) * LINE_BYTES

    def identify(self, identity: Identity) -> None:
        """Publish which process this rank is. It is in the pool when this returns."""
        self._store(IDENTITY, _IDENTITY_MAGIC, _IDENTITY.pack(self._session, *identity))

    def identity(self, rank: int) -> Identity | None:
        """Read which process a rank is; None until it says so in this session."""
        fields = self._load(rank, IDENTITY, _IDENTITY_MAGIC, _IDENTITY)
        return Identity(*fields[1:]) if fields and fields[1] <= self.lines else None

    def post(self, line: int, hold: Hold | None) -> None:
        """Publish a hold in one of this rank's lines, or that the line holds nothing. It is in the pool at the end."""
        fields = b"" if hold is None else _HOLD.pack(self._session, *hold)
        self._store(line, _HOLD_MAGIC, fields)

    def holds(self, rank: int) -> Iterator[Hold]:
        """Read what a rank holds or has claimed, in the order of its lines."""
        identity = self.identity(rank)
        for line in range(FIRST_HOLD, 0 if identity is None else identity.lines):
            fields = self._load(rank, line, _HOLD_MAGIC, _HOLD)
            if fields and fields[5] in _STATES:
                _, name, at, end, card, state = fields
                if at <= end <= CARD_BYTES_MAX and ALL_CARDS <= card < CARDS_MAX:
                    yield Hold(name, at, end, card, HoldState(state))

    def _store(self, line: int, magic: bytes, fields: bytes) -> None:
        payload = fields.ljust(PAYLOAD_BYTES, b"\0")
        self.memory.signal(0, self.place(self.rank, line), seal(magic, payload, self._index(self.rank, line)), payload)
        self.memory.fence()  # a signal alone may be on its way still, and what this rank looks at next depends on it

    def _load(self, rank: int, line: int, magic: bytes, layout: struct.Struct) -> tuple[int, ...]:
        word, payload = self.memory.poll(0, self.place(rank, line))
        fields = layout.unpack_from(payload)
        whole = word == seal(magic, payload, self._index(rank, line)) and fields[0] == self._session
        return fields if whole else ()

    def _index(self, rank: int, line: int) -> int:
        return rank * self.lines + line
