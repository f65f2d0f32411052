"""How the ranks that are alive agree on which ranks go on, and on room for a new communicator.

Nothing but lines on the old communicator's board is used, each with one writer, and no rank waits for the dead:

1. Every rank joins: it votes for a leader, the lowest rank that it does not take for dead.
2. When every rank that the leader does not take for dead has joined it, the leader claims room (cxlemu/pool/rooms.py),
   writes the roster of the ranks that go on into its first lines, and votes CLOSED.
3. Every rank on the roster holds the room as well, prepares its part of it and votes READY. When all are ready, they go
   on. When one of them dies first, they join again, and the next attempt has other room.

A rank is taken for dead when it left or its process ended, when its heartbeat stands still for long, or when it does
not join in time. That may be a mistake: a rank that was only stopped comes back, finds itself on no roster, and gets an
ExcludedError. Time decides only which ranks go on, never which rank owns memory: no two ranks' claims overlap, and no
rank writes to a room before it holds it. Writes of a rank that was thought dead go to rooms that it still holds.
"""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from cxlemu.errors import ArgumentError, DeadlineError, ExcludedError, name_ranks
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.pool.arena import Arena
from cxlemu.pool.board import Board, Stage, Vote
from cxlemu.pool.ledger import Hold
from cxlemu.pool.rooms import Rooms
from cxlemu.pool.session import Session
from cxlemu.rounding import round_up

T = TypeVar("T")

_PATIENCE = 4  # deadlines that a rank waits for its leader, which may come one later and then wait two for others


class Roster(NamedTuple):
    """The ranks that go on, by their numbers in the old communicator, and the room for their new one."""

    closed: Vote  # the leader's, in its stage CLOSED
    ranks: tuple[int, ...]
    room: Hold


@dataclass
class Agreement:
    """One rank's part in agreements; it lives as long as the old communicator, and can reach one again and again.

    Attributes:
        session: This rank's session, which knows which ranks left or fell silent.
        board: The old communicator's board, with a line of votes for each rank.
        rank: This rank's number in the old communicator.
        members: The world ranks of the old communicator, in its order.
        rooms: This rank's part in taking room.
        arena: Where on the cards the new communicator may lie.
        room_bytes: Says, of the number of ranks that go on and the largest free part in bytes, how many to take.
        deadline_s: How long a silent rank is waited for, in seconds.
    """

    session: Session
    board: Board
    rank: int
    members: tuple[int, ...]  # world ranks
    rooms: Rooms
    arena: Arena
    room_bytes: Callable[[int, int], int]
    deadline_s: float
    _attempt: int = field(default=0)  # the last one that this rank took part in

    def reach(self, lost: frozenset[int], prepare: Callable[[Roster], T]) -> T:
        """Agree with the other survivors, and prepare this rank's part of the new room.

        Args:
            lost: Ranks that are said to be dead; half a deadline of silence confirms it.
            prepare: Makes this rank's part; called again, with other room, when a rank on the roster dies meanwhile.

        Returns:
            What ``prepare`` made, on every survivor.

        Raises:
            ExcludedError: The others went on without this rank.
            DeadlineError: The others do not answer, or find no agreement.
            ArgumentError: The room left is too small.
            Exception: What ``prepare`` raises.
        """
        for _ in range(len(self.members) + 1):
            roster = self._gather(lost)
            self._attempt = roster.closed.attempt
            room, leader = roster.room, self.members[roster.closed.leader]
            if roster.closed.leader != self.rank and not self.rooms.join(leader, room):
                continue
            try:
                made = prepare(roster)
                self.board.vote(self.rank, roster.closed._replace(stage=Stage.READY))
                if self._all_ready(roster):
                    return made
            except BaseException:
                self.rooms.release(room.name)
                raise
            self.rooms.release(room.name)
        raise DeadlineError(f"rank {self.rank} found no agreement on who is alive: too many ranks came and went")

    # --- joining ----------------------------------------------------------------------------------------------

    def _gather(self, lost: frozenset[int]) -> Roster:
        clock = self.session.clock
        began = clock.now()
        mine: Vote | None = None
        for _ in self.session.looks(_PATIENCE * self.deadline_s):
            waited = (clock.now() - began) / self.deadline_s
            gone = {rank for rank in self._others() if self._silent(rank, lost)}  # before the votes: it may have voted
            votes = self._votes()
            joined = {rank for rank, vote in votes.items() if vote.stage == Stage.JOINED} | {self.rank}
            ahead = {rank for rank, vote in votes.items() if vote.attempt > self._attempt} if waited < 2 else set()
            if waited >= 1:
                gone |= self._others() - joined - ahead
            leader = min(set(range(len(self.members))) - gone)
            if mine is None or mine.leader != leader:
                mine = Vote(Stage.JOINED, self._attempt, leader, 0)
                self.board.vote(self.rank, mine)
            if leader != self.rank:
                if (roster := self._closed_by(leader, votes)) is not None:
                    return roster
                continue
            here = {rank for rank in joined if rank == leader or votes[rank].leader == leader} - gone
            if here == set(range(len(self.members))) - gone:
                self._refuse_if_excluded(votes, here)
                return self._close(tuple(sorted(here)))
        waited_s = clock.now() - began
        raise DeadlineError(f"rank {self.rank} waited {waited_s:.1f} s, and rank {leader} has not said who goes on")

    def _votes(self) -> dict[int, Vote]:
        """Read the votes, without those for room that the old communicator never had."""
        return {rank: vote for rank, vote in self.board.votes().items() if self._has_room_for(vote)}

    def _has_room_for(self, vote: Vote) -> bool:
        if vote.stage == Stage.JOINED:
            return True
        return self.arena.at <= vote.at <= self.arena.end - roster_bytes(len(self.members))

    def _others(self) -> set[int]:
        return set(range(len(self.members))) - {self.rank}

    def _silent(self, rank: int, lost: frozenset[int]) -> bool:
        """Whether a rank left, or shows no sign of life for a deadline; half of one where it is said to be dead."""
        member = self.members[rank]
        if self.session.departed([member]):
            return True
        return self.session.quiet_s(member) >= self.deadline_s / (2 if rank in lost else 1)

    # --- closing ----------------------------------------------------------------------------------------------

    def _close(self, ranks: tuple[int, ...]) -> Roster:
        """Do the leader's part: claim room, and write there which ranks go on."""
        attempt = 1 + max((vote.attempt for vote in self._votes().values()), default=self._attempt)
        room = self._claim(len(ranks))
        bits = _bits(ranks, len(self.members))
        memory = self.board.memory
        memory.write(0, room.at, bits)
        memory.flush(0, room.at, bits.nbytes)
        memory.fence()
        closed = Vote(Stage.CLOSED, attempt, self.rank, room.at, zlib.crc32(bits.data))
        self.board.vote(self.rank, closed)
        return Roster(closed, ranks, room)

    def _claim(self, ranks: int) -> Hold:
        name, wanted = secrets.randbits(64), partial(self.room_bytes, ranks)
        try:
            return self.rooms.claim(name, self.arena, wanted)
        except ArgumentError:
            self.rooms.search()
            return self.rooms.claim(name, self.arena, wanted)

    def _closed_by(self, leader: int, votes: dict[int, Vote]) -> Roster | None:
        vote = votes.get(leader)
        if vote is None or vote.leader != leader or vote.attempt <= self._attempt:
            return None
        ranks = self._named(vote)
        if ranks is None:
            return None
        if self.rank not in ranks:
            raise self._excluded(ranks)
        room = self.rooms.find_at(self.members[leader], vote.at)
        if room is None or not self.rooms.fits(room, self.arena):
            return None
        return Roster(vote._replace(stage=Stage.CLOSED), ranks, room)

    def _named(self, vote: Vote) -> tuple[int, ...] | None:
        """Read which ranks this vote's leader named; None while it has not closed, or where others have its room."""
        if vote.stage not in (Stage.CLOSED, Stage.READY) or not vote.attempt:
            return None
        bits = np.empty(roster_bytes(len(self.members)), np.uint8)
        memory = self.board.memory
        memory.invalidate(0, vote.at, bits.nbytes)
        memory.read(0, vote.at, bits)
        if zlib.crc32(bits.data) != vote.digest:
            return None
        ranks = tuple(map(int, np.flatnonzero(np.unpackbits(bits)[: len(self.members)])))
        return ranks if vote.leader in ranks else None  # a leader goes on itself

    def _refuse_if_excluded(self, votes: dict[int, Vote], here: set[int]) -> None:
        """Raises ExcludedError when others closed without this rank, and none of them has come back to join."""
        for vote in votes.values():
            ranks = self._named(vote) if vote.attempt > self._attempt else None
            if ranks is not None and self.rank not in ranks and not here & set(ranks):
                raise self._excluded(ranks)

    def _excluded(self, ranks: tuple[int, ...]) -> ExcludedError:
        others = f"{name_ranks(ranks)} went on without rank {self.rank}"
        return ExcludedError(f"{others}, which they took for dead: it came too late, or showed no sign of life")

    # --- going on ---------------------------------------------------------------------------------------------

    def _all_ready(self, roster: Roster) -> bool:
        """Whether all on the roster have prepared; False when one of them will not any more."""
        ready = roster.closed._replace(stage=Stage.READY)
        for _ in self.session.looks(self.deadline_s):
            gone = any(self._silent(rank, frozenset()) for rank in roster.ranks if rank != self.rank)
            votes = self._votes()
            theirs = [votes.get(rank) for rank in roster.ranks]
            if all(vote == ready for vote in theirs):
                return True
            given_up = any(
                vote and vote.attempt >= ready.attempt and vote not in (ready, roster.closed) for vote in theirs
            )
            if gone or given_up:
                return False
        return False


def roster_bytes(ranks: int) -> int:
    """Return how many bytes a roster of ``ranks`` ranks takes at the beginning of the new room: whole lines."""
    return round_up(-(-ranks // 8), LINE_BYTES)


def _bits(ranks: tuple[int, ...], size: int) -> Bytes:
    named = np.zeros(roster_bytes(size) * 8, np.uint8)
    named[list(ranks)] = 1
    return np.packbits(named)
