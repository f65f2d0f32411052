"""A communicator's board: what its ranks tell each other when they can no longer use its collectives.

    line 2r        notice   written by rank r: why it gave the communicator up
    line 2r + 1    vote     written by rank r: where it stands in agreeing on the ranks that go on
    (collectives/communicator/shrink.py)

Lines are sealed as those of the session area are, and carry the name of the communicator's room: lines that an earlier
communicator or run left here are ignored. Ranks are those of the communicator.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, HostMemory
from cxlemu.pool.session_area import seal
from cxlemu.pool.superblock import CARD_BYTES_MAX, CARDS_MAX, HOSTS_MAX


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
    """Where a rank stands in agreeing on the ranks that go on."""

    JOINED = 1  # waits for the leader's roster of the ranks that go on
    CLOSED = 2  # the leader has claimed room, and written the roster into its first lines
    READY = 3  # has prepared its part of the room


class Notice(NamedTuple):
    """Why a rank gave its communicator up."""

    cause: Cause
    numbers: tuple[int, ...] = ()  # the ranks it is about, or where the hardware failed


class Vote(NamedTuple):
    """Where a rank stands in agreeing on the ranks that go on.

    Attributes:
        stage: How far it has come.
        attempt: Number of the attempt; JOINED: of the last one that this rank took part in. 0: the board's own
            communicator is being made.
        leader: The rank that leads the attempt; JOINED: the one that this rank votes for.
        at: Where the room begins, in bytes; JOINED: 0.
        digest: CRC32 of the roster, from CLOSED on.
    """

    stage: Stage
    attempt: int
    leader: int
    at: int
    digest: int = 0


NUMBERS_MAX = 5
ATTEMPTS_MAX = 1 << 20  # to agree on the ranks that go on: each takes a part of the room, and much time
_CAUSES, _STAGES = frozenset(Cause), frozenset(Stage)
_NOTICE = struct.Struct(f"<QHH{NUMBERS_MAX}Q")
_VOTE = struct.Struct("<QIIIIQ")
_NOTICE_MAGIC, _VOTE_MAGIC = b"NOT1", b"VOT1"


def board_bytes(ranks: int) -> int:
    """Return the size of the board of a communicator of ``ranks`` ranks, in bytes."""
    return 2 * ranks * LINE_BYTES


class Board:
    """The board of a communicator, as one rank's memory shows it.

    Args:
        memory: The rank's memory.
        offset: Where the board begins on card 0, in bytes.
        name: The name of the communicator's room, 64 bits; lines with another one are ignored.
        ranks: Number of ranks in the communicator.
    """

    def __init__(self, memory: HostMemory, offset: int, name: int, ranks: int) -> None:
        self.memory = memory
        self.ranks = ranks
        self._offset, self._name = offset, name

    def post(self, rank: int, notice: Notice) -> None:
        """Tell why ``rank`` gave the communicator up.

        Args:
            rank: The rank that calls this.
            notice: The cause; of its numbers the first NUMBERS_MAX are told.
        """
        numbers = notice.numbers[:NUMBERS_MAX]
        padding = [0] * (NUMBERS_MAX - len(numbers))
        self._store(2 * rank, _NOTICE_MAGIC, _NOTICE.pack(self._name, notice.cause, len(numbers), *numbers, *padding))

    def notices(self) -> dict[int, Notice]:
        """Read the notices of the ranks that gave up, by rank."""
        found = {}
        for rank in range(self.ranks):
            fields = self._load(2 * rank, _NOTICE_MAGIC, _NOTICE)
            if not fields or fields[1] not in _CAUSES or fields[2] > NUMBERS_MAX:
                continue
            notice = Notice(Cause(fields[1]), tuple(fields[3 : 3 + fields[2]]))
            if self._can_be(notice):
                found[rank] = notice
        return found

    def _can_be(self, notice: Notice) -> bool:
        """Whether a rank could have posted such numbers."""
        match notice:
            case Notice(Cause.PEER_LOST | Cause.MISMATCH, numbers):
                return all(number < self.ranks for number in numbers)
            case Notice(Cause.POISON, (card, offset)):
                return card < CARDS_MAX and offset < CARD_BYTES_MAX
            case Notice(Cause.CARD_LOST, (card,)):
                return card < CARDS_MAX
            case Notice(Cause.LINK_DOWN, (host,)):
                return host < HOSTS_MAX
            case Notice(Cause.INTEGRITY, (rank, card)):
                return rank < self.ranks and card < CARDS_MAX
        return notice.cause not in (Cause.POISON, Cause.CARD_LOST, Cause.LINK_DOWN, Cause.INTEGRITY)

    def vote(self, rank: int, vote: Vote) -> None:
        """Publish the vote of ``rank``, which is the rank that calls this, in place of its last one."""
        fields = (self._name, vote.stage, vote.attempt, vote.leader, vote.digest, vote.at)
        self._store(2 * rank + 1, _VOTE_MAGIC, _VOTE.pack(*fields))

    def votes(self) -> dict[int, Vote]:
        """Read the votes of the ranks that voted, by rank."""
        votes = ((rank, self.vote_of(rank)) for rank in range(self.ranks))
        return {rank: vote for rank, vote in votes if vote is not None}

    def vote_of(self, rank: int) -> Vote | None:
        """Read the vote of one rank; None while it has not voted."""
        fields = self._load(2 * rank + 1, _VOTE_MAGIC, _VOTE)
        if not fields or fields[1] not in _STAGES:
            return None
        vote = Vote(Stage(fields[1]), fields[2], fields[3], fields[5], fields[4])
        possible = vote.attempt <= ATTEMPTS_MAX and vote.leader < self.ranks and vote.at < CARD_BYTES_MAX
        return vote if possible else None

    def _store(self, index: int, magic: bytes, fields: bytes) -> None:
        payload = fields.ljust(PAYLOAD_BYTES, b"\0")
        self.memory.signal(0, self._offset + index * LINE_BYTES, seal(magic, payload, index), payload)

    def _load(self, index: int, magic: bytes, layout: struct.Struct) -> tuple[int, ...]:
        """Return the fields of a whole line of this communicator; an empty tuple where there is no such line."""
        word, payload = self.memory.poll(0, self._offset + index * LINE_BYTES)
        fields = layout.unpack_from(payload)
        return fields if word == seal(magic, payload, index) and fields[0] == self._name else ()
