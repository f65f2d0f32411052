"""The ledger: which rank holds which room of the pool, one line for each room that a rank holds.

Every rank has a page of lines on card 0, behind the arena, that it alone writes:

    line 0    identity   which process this rank is, and how many of its lines were ever used
    line 1    pulse      a number that grows for as long as the process lives (cxlemu/pool/liveness.py)
    line 2..  holds      a room that this rank holds, or has claimed

Lines are sealed as those of the session area are, and carry the session's id: lines that an earlier run left here hold
nothing. A rank that is stopped while it stores a line leaves a torn one, and what it holds must be seen all the same.
So how firmly a room is held is in the line's word alone, which is never torn: a claim becomes a hold in one store.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, HostMemory
from cxlemu.pool.home import Home
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
    ABANDONED = 6  # a member makes no communicator there: the handler of a signal raised
    MISMATCHED = 7  # ... another member asked for another one


class Hold(NamedTuple):
    """A room that a rank holds, or has claimed."""

    name: int  # 64 bits by which members of a group know their room; each name is used once in a session
    at: int  # its first byte, on every card or on ``card``
    end: int  # the byte after its last
    card: int  # the only card that it is on, or ALL_CARDS
    state: HoldState  # how firmly it is held, or what is said about it

    def overlaps(self, hold: Hold) -> bool:
        """Whether the two rooms have a byte in common."""
        same_card = ALL_CARDS in (self.card, hold.card) or self.card == hold.card
        return same_card and self.at < hold.end and hold.at < self.end


class Identity(NamedTuple):
    lines: int  # how many of the rank's lines were ever used, from line 0 on: readers look at no more
    pid: int
    machine: int  # digests the machine's boot and the process's pid namespace, in which ``pid`` means something


_IDENTITY, _HOLD = struct.Struct("<QIIQ"), struct.Struct("<QQQQi")
_IDENTITY_MAGIC = b"IDN1"
_HOLD_MAGICS = {
    HoldState.CLAIMED: b"CLM1",
    HoldState.HELD: b"HLD1",
    HoldState.REFUSED: b"REF1",
    HoldState.SHORT: b"SHO1",
    HoldState.SEARCHED: b"SEA1",
    HoldState.ABANDONED: b"ABA1",
    HoldState.MISMATCHED: b"MIS1",
}
_STATES = {magic: state for state, magic in _HOLD_MAGICS.items()}


def ledger_lines(ranks: int, card_bytes: int) -> int:
    """Return how many lines each rank's part of the ledger has, given the size of card 0."""
    return max(LINES_MIN, min(LINES_MAX, card_bytes // SHARE // LINE_BYTES // ranks))


def ledger_bytes(ranks: int, card_bytes: int) -> int:
    """Return the size of all ranks' ledgers in bytes, given the size of card 0: whole pages, at its end."""
    return round_up(ranks * ledger_lines(ranks, card_bytes) * LINE_BYTES, 4096)


class Ledger:
    def __init__(self, memory: HostMemory, offset: int, lines: int, session: int, rank: int) -> None:
        self.memory, self.lines, self.rank = memory, lines, rank
        self._home = Home()
        self._offset, self._session = offset, session

    def place(self, rank: int, line: int) -> int:
        return self._offset + (rank * self.lines + line) * LINE_BYTES

    def identify(self, identity: Identity) -> None:
        """Publish which process this rank is. It is in the pool when this returns."""
        self._store(IDENTITY, _IDENTITY_MAGIC, _IDENTITY.pack(self._session, *identity))

    def identity(self, rank: int) -> Identity | None:
        """Read which process a rank is; None until it says so in this session."""
        magic, fields = self._load(rank, IDENTITY, _IDENTITY)
        return Identity(*fields[1:]) if magic == _IDENTITY_MAGIC and fields and fields[1] <= self.lines else None

    def post(self, line: int, hold: Hold | None) -> None:
        """Publish a hold in one of this rank's lines, or that the line holds nothing. It is in the pool at the end."""
        magic = _HOLD_MAGICS[HoldState.HELD if hold is None else hold.state]
        self._store(line, magic, b"" if hold is None else _HOLD.pack(self._session, *hold[:-1]))

    def holds(self, rank: int) -> Iterator[Hold]:
        """Read what a rank holds or has claimed, in the order of its lines."""
        for line in range(FIRST_HOLD, self._used(rank)):
            magic, fields = self._load(rank, line, _HOLD)
            if fields and magic in _STATES:
                _, name, offset, end, card = fields
                if offset <= end <= CARD_BYTES_MAX and ALL_CARDS <= card < CARDS_MAX:
                    yield Hold(name, offset, end, card, _STATES[magic])

    def _used(self, rank: int) -> int:
        """Return how many of a rank's lines to look at: all of them while the line that says so is torn."""
        magic, fields = self._load(rank, IDENTITY, _IDENTITY)
        if magic != _IDENTITY_MAGIC or fields == ():
            return 0
        return self.lines if fields is None else min(fields[1], self.lines)

    def _store(self, line: int, magic: bytes, fields: bytes) -> None:
        self._home.check()
        payload = fields.ljust(PAYLOAD_BYTES, b"\0")
        self.memory.signal(0, self.place(self.rank, line), seal(magic, payload, self._index(self.rank, line)), payload)
        self.memory.fence()  # a signal alone may be on its way still, and what this rank looks at next depends on it

    def _load(self, rank: int, line: int, layout: struct.Struct) -> tuple[bytes, tuple[int, ...] | None]:
        """Read a line's kind and fields; () in place of another session's fields, None where the line is not whole."""
        word, payload = self.memory.poll(0, self.place(rank, line))
        magic = (word >> 32).to_bytes(4, "little")
        if word != seal(magic, payload, self._index(rank, line)):
            return magic, None
        fields = layout.unpack_from(payload)
        return magic, fields if fields[0] == self._session else ()

    def _index(self, rank: int, line: int) -> int:
        return rank * self.lines + line
