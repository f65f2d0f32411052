"""A communicator's board: what its ranks tell each other when they can no longer use its collectives.

    line 2r        notice   written by rank r: why it gave the communicator up
    line 2r + 1    vote     written by rank r: where it stands in agreeing on who goes on
    (collectives/communicator/shrink.py)

Lines are sealed as those of the session area are, and carry the session's id: what an earlier run left here is no line.
Ranks are those of the communicator.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, HostMemory
from cxlemu.pool.session_area import seal


class Cause(IntEnum):
    """Why a rank gave its communicator up; the more telling cause comes first."""

    POISON = 1
    CARD_LOST = 2
    LINK_DOWN = 3
    INTEGRITY = 4
    PEER_LOST = 5
    MISMATCH = 6
    DEADLINE = 7
    REVOKED = 8  # asked for
    FAILED = 9  # anything else


class Stage(IntEnum):
    JOINED = 1  # waits for the leader to say who goes on
    CLOSING = 2  # the leader claims room
    CLOSED = 3  # ... and has said who goes on, in the first lines of that room
    READY = 4  # has prepared its part of the room


class Notice(NamedTuple):
    cause: Cause
    numbers: tuple[int, ...] = ()  # of ranks, or where the hardware failed


class Vote(NamedTuple):
    stage: Stage
    attempt: int
    leader: int
    at: int  # JOINED: where this rank knows of no claims; else the claimed room
    digest: int = 0  # CRC32 of the roster, from CLOSED on


NUMBERS_MAX = 5
_CAUSES, _STAGES = frozenset(Cause), frozenset(Stage)
_NOTICE = struct.Struct(f"<QHH{NUMBERS_MAX}Q")
_VOTE = struct.Struct("<QIIIIQ")
_NOTICE_MAGIC, _VOTE_MAGIC = b"NOT1", b"VOT1"


def board_bytes(ranks: int) -> int:
    return 2 * ranks * LINE_BYTES


class Board:
    """At ``offset`` of card 0, as one rank's memory shows it."""

    def __init__(self, memory: HostMemory, offset: int, session: int, ranks: int) -> None:
        self.memory = memory
        self.ranks = ranks
        self._offset, self._session = offset, session

    def post(self, rank: int, notice: Notice) -> None:
        """``rank`` tells why it gave up; of more numbers than there is room for, the first."""
        numbers = notice.numbers[:NUMBERS_MAX]
        padding = [0] * (NUMBERS_MAX - len(numbers))
        self._store(
            2 * rank, _NOTICE_MAGIC, _NOTICE.pack(self._session, notice.cause, len(numbers), *numbers, *padding)
        )

    def notices(self) -> dict[int, Notice]:
        """By rank, of those who gave up."""
        found = {}
        for rank in range(self.ranks):
            fields = self._load(2 * rank, _NOTICE_MAGIC, _NOTICE)
            if fields and fields[1] in _CAUSES:
                found[rank] = Notice(Cause(fields[1]), tuple(fields[3 : 3 + min(fields[2], NUMBERS_MAX)]))
        return found

    def vote(self, rank: int, vote: Vote) -> None:
        fields = (self._session, vote.stage, vote.attempt, vote.leader, vote.digest, vote.at)
        self._store(2 * rank + 1, _VOTE_MAGIC, _VOTE.pack(*fields))

    def votes(self) -> dict[int, Vote]:
        """By rank, of those who voted."""
        found = {}
        for rank in range(self.ranks):
            fields = self._load(2 * rank + 1, _VOTE_MAGIC, _VOTE)
            if fields and fields[1] in _STAGES:
                found[rank] = Vote(Stage(fields[1]), fields[2], fields[3], fields[5], fields[4])
        return found

    def _store(self, index: int, magic: bytes, fields: bytes) -> None:
        payload = fields.ljust(PAYLOAD_BYTES, b"\0")
        self.memory.signal(0, self._offset + index * LINE_BYTES, seal(magic, payload, index), payload)

    def _load(self, index: int, magic: bytes, layout: struct.Struct) -> tuple[int, ...]:
        """The fields of a whole line of this session; none where there is no such line."""
        word, payload = self.memory.poll(0, self._offset + index * LINE_BYTES)
        fields = layout.unpack_from(payload)
        return fields if word == seal(magic, payload, index) and fields[0] == self._session else ()
