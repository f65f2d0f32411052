"""How the ranks that are alive agree on which ranks go on, and on room for a new communicator.

Nothing but lines on the old communicator's board is used, each with one writer, and no rank waits for the dead:

1. Every rank joins. The lowest rank that it does not take for dead is to lead.
2. When every rank that the leader does not take for dead has joined, the leader claims room (cxlemu/pool/rooms.py),
   writes the roster of the ranks that go on into its first lines, and proposes it (cxlemu/pool/ballots.py).
3. One proposal is decided, once in the life of the old communicator. Every rank on its roster holds the room as well.
   When one of them dies, they shrink the new communicator, on the board in its room.

A rank is taken for dead when it left or its process ended, when its heartbeat stands still for long, or when it does
not join in time. That may be a mistake, and a different one on every rank: several ranks then lead, each with a roster
of its own, and the ballots decide for one of them. A rank that is not on it, such as one that was only stopped and
comes back, gets an ExcludedError. What a rank takes for true therefore decides which ranks go on, but never whether two
groups do, nor who owns memory: no two ranks' claims overlap, and no rank writes to a room before it holds it.
"""

from __future__ import annotations

import random
import secrets
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from cxlemu.errors import ArgumentError, DeadlineError, ExcludedError, name_ranks
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.pool.arena import ARENA_ALIGN_BYTES, Arena
from cxlemu.pool.ballots import BallotAction, BallotStep, agree
from cxlemu.pool.board import Board, Proposal, Stage, Vote
from cxlemu.pool.ledger import Hold, HoldState
from cxlemu.pool.rooms import Rooms
from cxlemu.pool.session import Session
from cxlemu.rounding import round_up

_PATIENCE = 4  # deadlines that a rank waits for its leader, which may come one later and then wait two for others


class Roster(NamedTuple):
    """The ranks that go on, by their numbers in the old communicator, and the room for their new one."""

    ranks: tuple[int, ...]
    room: Hold


@dataclass
class Agreement:
    """One rank's part in the one agreement of a communicator, which may be asked for again and again."""

    session: Session  # this rank's session, which knows which ranks left or fell silent
    board: Board  # the old communicator's board, with the ranks' votes
    rank: int  # this rank's number in the old communicator
    members: tuple[int, ...]  # the world ranks of the old communicator, in its order
    rooms: Rooms  # this rank's part in taking room
    arena: Arena  # where on the cards the new communicator may lie
    # says, of the number of ranks that go on and the largest free part in bytes, how many to take
    room_bytes: Callable[[int, int], int]
    deadline_s: float  # how long a silent rank is waited for, in seconds
    _own: Proposal | None = field(default=None)  # its room is held until another proposal is known to be decided
    _alive: tuple[int, ...] = field(default=())  # who goes on if this rank leads

    def reach(self, lost: frozenset[int]) -> Roster:
        """Agree with the other survivors."""
        steps = self.steps(lost)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def steps(self, lost: frozenset[int]) -> Generator[BallotStep, None, Roster]:
        """Do the same, and yield each step of the ballots before it is done: for tests that stop a rank there."""
        looks = self._looks()
        votes: dict[int, Vote] = {}
        ballots = agree(self.rank, len(self.members))
        result: Vote | Proposal | bool | None = None
        while True:
            try:
                step = ballots.send(result)
            except StopIteration as end:
                return self._go_on(end.value)
            yield step
            match step.do:
                case BallotAction.VOTE:
                    self.board.vote(self.rank, step.vote)
                case BallotAction.FENCE:
                    self.board.memory.fence()
                case BallotAction.LOOK:
                    votes[step.rank] = result = self._vote_of(step.rank, looks)
                case BallotAction.LEAD:
                    result = self._is_to_lead(votes, next(looks), lost)
                case BallotAction.PROPOSE:
                    self._own = result = self._own or self._propose()

    # --- leading ----------------------------------------------------------------------------------------------

    def _looks(self) -> Iterator[float]:
        """Wait between looks; yield for how many deadlines this rank has waited. Raises DeadlineError in the end."""
        began = self.session.clock.now()
        for _ in self.session.looks(_PATIENCE * self.deadline_s):
            waited_s = self.session.clock.now() - began
            yield waited_s / self.deadline_s
        raise DeadlineError(f"rank {self.rank} waited {waited_s:.1f} s, and no rank has decided which ranks go on")

    def _vote_of(self, rank: int, looks: Iterator[float]) -> Vote:
        """Read a rank's vote; every rank has one, so where none can be read it is being written."""
        while (vote := self.board.vote_of(rank)) is None or not self._has_room_for(vote):
            next(looks)
        return vote

    def _has_room_for(self, vote: Vote) -> bool:
        last = self.arena.end - roster_bytes(len(self.members))
        return vote.value is None or self.arena.at <= vote.value.at <= last

    def _is_to_lead(self, votes: dict[int, Vote], waited: float, lost: frozenset[int]) -> bool:
        everyone = set(range(len(self.members)))
        joined = {rank for rank, vote in votes.items() if vote.stage >= Stage.JOINED} | {self.rank}
        gone = {rank for rank in everyone - {self.rank} if self._silent(rank, lost)}
        if waited >= 1:
            gone |= everyone - joined
        self._alive = tuple(sorted(joined - gone))
        led = sum(vote.promised > 0 for vote in votes.values())  # of several that lead, each waits for some looks
        return min(everyone - gone) == self.rank and everyone - gone <= joined and not random.randrange(led + 1)

    def _silent(self, rank: int, lost: frozenset[int]) -> bool:
        """Whether a rank left, or shows no sign of life for a deadline; half of one where it is said to be dead."""
        member = self.members[rank]
        if self.session.departed([member]):
            return True
        return self.session.quiet_s(member) >= self.deadline_s / (2 if rank in lost else 1)

    def _propose(self) -> Proposal:
        """Claim room, and write there which ranks go on, and that they are expected on the new board."""
        room = self._claim(len(self._alive))
        bits = _bits(self._alive, len(self.members))
        memory = self.board.memory
        memory.write(0, room.at, bits)
        memory.flush(0, room.at, bits.nbytes)
        board = self.session.board(room.at + head_bytes(len(self.members)), len(self._alive), room.name)
        for rank in range(len(self._alive)):
            board.vote(rank, Vote())
        memory.fence()
        return Proposal(self.rank, room.name, room.at, zlib.crc32(bits.data))

    def _claim(self, ranks: int) -> Hold:
        name, wanted = secrets.randbits(64), partial(self.room_bytes, ranks)
        try:
            return self.rooms.claim(name, self.arena, wanted)
        except ArgumentError:
            self.rooms.search()
            return self.rooms.claim(name, self.arena, wanted)

    # --- going on ---------------------------------------------------------------------------------------------

    def _go_on(self, decided: Proposal) -> Roster:
        """Hold the room of the proposal that was decided."""
        if self._own is not None and decided != self._own:
            self.rooms.release(self._own.name)
        ranks = self._named(decided)
        if self.rank in ranks and (room := self._held(decided)) is not None:
            return Roster(ranks, room)
        others = name_ranks([rank for rank in ranks if rank != self.rank]) if ranks else "the others"
        raise ExcludedError(
            f"{others} went on without rank {self.rank}, which they declared dead: it was late, or its "
            f"heartbeat had stopped"
        )

    def _held(self, decided: Proposal) -> Hold | None:
        """Hold the proposal's room as well; None where its leader has given it back."""
        leader = self.members[decided.leader]
        held = self.rooms.find(self.members[self.rank], decided.name)
        room = held or self.rooms.find(leader, decided.name)
        if room is None or (room.at, room.state) != (decided.at, HoldState.HELD):
            return None
        return room if self.rooms.fits(room, self.arena) and (held or self.rooms.join(leader, room)) else None

    def _named(self, decided: Proposal) -> tuple[int, ...]:
        """Read which ranks a proposal names; none where its room is given back, and others have written there."""
        bits = np.empty(roster_bytes(len(self.members)), np.uint8)
        memory = self.board.memory
        memory.invalidate(0, decided.at, bits.nbytes)
        memory.read(0, decided.at, bits)
        if zlib.crc32(bits.data) != decided.digest:
            return ()
        return tuple(map(int, np.flatnonzero(np.unpackbits(bits)[: len(self.members)])))


def roster_bytes(ranks: int) -> int:
    """Return how many bytes a roster of ``ranks`` ranks takes at the beginning of the new room: whole lines."""
    return round_up(-(-ranks // 8), LINE_BYTES)


def head_bytes(ranks: int) -> int:
    """Return where in the new room its communicator's board begins, behind the roster, in bytes."""
    return round_up(roster_bytes(ranks), ARENA_ALIGN_BYTES)


def _bits(ranks: tuple[int, ...], size: int) -> Bytes:
    named = np.zeros(roster_bytes(size) * 8, np.uint8)
    named[list(ranks)] = 1
    return np.packbits(named)
