"""A communicator's board: what its ranks tell each other when they can no longer use its collectives.

    line 3r            notice   written by rank r: why it gave the communicator up
    lines 3r + 1, + 2  vote     written by rank r in turn: where it stands in agreeing on the ranks that go on
    (cxlemu/pool/ballots.py)

Lines are sealed as those of the session area are, and carry the name of the communicator's room: lines that an earlier
communicator or run left here are ignored. Ranks are those of the communicator. Of a rank's two votes the later one
counts. One of them is whole at any time, also when the rank dies while it writes the other.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, HostMemory
from cxlemu.pool.home import Home
from cxlemu.pool.session_area import COUNT_MAX, seal
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
    """How far a rank has come, from the making of its communicator to the decision on who goes on without it."""

    EXPECTED = 0  # whoever took the room says that this rank will come
    READY = 1  # has prepared its part of the room
    JOINED = 2  # takes part in agreeing on the ranks that go on
    DECIDED = 3  # has seen the decision


class Notice(NamedTuple):
    """Why a rank gave its communicator up."""

    cause: Cause
    numbers: tuple[int, ...] = ()  # the ranks it is about, or where the hardware failed


class Proposal(NamedTuple):
    leader: int  # the rank that proposes it, and holds the room
    name: int  # the room's name, 64 bits
    at: int  # where the room begins, in bytes: with the roster of the ranks that go on
    digest: int  # CRC32 of the roster


class Vote(NamedTuple):
    """Where a rank stands in agreeing on the ranks that go on."""

    stage: Stage = Stage.EXPECTED  # how far it has come
    promised: int = 0  # the highest ballot that it leads or has led; it takes part in no lower one
    accepted: int = 0  # the ballot in which it accepted ``value``; 0: in none
    value: Proposal | None = None  # what is decided, if its ballot comes through


NUMBERS_MAX = 5
VOTES_MAX = 1 << 31  # of one rank
_CAUSES, _STAGES = frozenset(Cause), frozenset(Stage)
_NOTICE = struct.Struct(f"<QHH{NUMBERS_MAX}Q")
_VOTE = struct.Struct("<QIHQQIQQI")
_NOTHING = Proposal(0, 0, 0, 0)
_NOTICE_MAGIC, _VOTE_MAGIC = b"NOT1", b"VOT2"
_LINES = 3  # of each rank


def board_bytes(ranks: int) -> int:
    return _LINES * ranks * LINE_BYTES


class Board:
    """The board of a communicator, as one rank's memory shows it."""

    def __init__(self, memory: HostMemory, offset: int, name: int, ranks: int) -> None:
        self.memory = memory
        self.ranks = ranks
        self.name = name  # of the communicator's room
        self._offset = offset
        self._home = Home()

    def post(self, rank: int, notice: Notice) -> None:
        """Publish why ``rank``, the caller, gave the communicator up, with at most NUMBERS_MAX numbers of the cause."""
        numbers = notice.numbers[:NUMBERS_MAX]
        padding = [0] * (NUMBERS_MAX - len(numbers))
        self._store(
            _LINES * rank, _NOTICE_MAGIC, _NOTICE.pack(self.name, notice.cause, len(numbers), *numbers, *padding)
        )

    def notices(self) -> dict[int, Notice]:
        by_rank = {}
        for rank in range(self.ranks):
            fields = self._load(_LINES * rank, _NOTICE_MAGIC, _NOTICE)
            if not fields or fields[1] not in _CAUSES or fields[2] > NUMBERS_MAX:
                continue
            notice = Notice(Cause(fields[1]), tuple(fields[3 : 3 + fields[2]]))
            if self._can_be(notice):
                by_rank[rank] = notice
        return by_rank

    def _can_be(self, told: Notice | Proposal) -> bool:
        """Whether a rank could have posted such numbers."""
        match told:
            case Proposal(leader, _, at):
                return leader < self.ranks and at < CARD_BYTES_MAX
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
        return told.cause not in (Cause.POISON, Cause.CARD_LOST, Cause.LINK_DOWN, Cause.INTEGRITY)

    def vote(self, rank: int, vote: Vote) -> None:
        """Publish the vote of ``rank``, which is the rank that calls this, in place of its last one."""
        number = 1 + max(self._votes(rank), default=0)
        fields = (number, vote.stage, vote.promised, vote.accepted, *(vote.value or _NOTHING))
        self._store(_LINES * rank + 1 + number % 2, _VOTE_MAGIC, _VOTE.pack(self.name, *fields))

    def vote_of(self, rank: int) -> Vote | None:
        """Read the vote of one rank; None while it has not voted, or where none of its lines can be read."""
        votes = self._votes(rank)
        return votes[max(votes)] if votes else None

    def is_ready(self, rank: int) -> bool:
        """Whether a rank has prepared its part of the room; one that has come further has as well."""
        vote = self.vote_of(rank)
        return vote is not None and vote.stage >= Stage.READY

    def _votes(self, rank: int) -> dict[int, Vote]:
        """Read a rank's lines, by how many votes it had published by then."""
        votes = {}
        for line in (1, 2):
            fields = self._load(_LINES * rank + line, _VOTE_MAGIC, _VOTE)
            if not fields:
                continue
            _, number, stage, promised, accepted, *value = fields
            proposal = Proposal(*value)
            counted = number <= VOTES_MAX and accepted <= promised <= COUNT_MAX
            staged = stage in _STAGES and (accepted or stage != Stage.DECIDED)
            if counted and staged and self._can_be(proposal):
                votes[number] = Vote(Stage(stage), promised, accepted, proposal if accepted else None)
        return votes

    def _store(self, index: int, magic: bytes, fields: bytes) -> None:
        self._home.check()
        payload = fields.ljust(PAYLOAD_BYTES, b"\0")
        self.memory.signal(0, self._offset + index * LINE_BYTES, seal(magic, payload, index), payload)

    def _load(self, index: int, magic: bytes, layout: struct.Struct) -> tuple[int, ...]:
        """Return the fields of a whole line of this communicator; an empty tuple where there is no such line."""
        word, payload = self.memory.poll(0, self._offset + index * LINE_BYTES)
        fields = layout.unpack_from(payload)
        return fields if word == seal(magic, payload, index) and fields[0] == self.name else ()
