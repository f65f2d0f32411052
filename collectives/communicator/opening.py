"""How the members of a new communicator come to one room of the pool, without any other rank, and how they leave it.

1. The first member, their leader, claims room (cxlemu/pool/rooms.py), under a name that all members know.
2. The others find the room of that name in the leader's part of the ledger, and hold it as well.
3. Each clears its doorbells there, and votes READY on the board, at the room's beginning; they begin when all are.

Each member lets its hold go by itself, when nothing that it wrote can arrive any more. The last one makes room for
others.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass

from collectives.communicator.heap_blocks import Used
from collectives.communicator.lane import CallLane
from collectives.communicator.loss import lost_among
from cxlemu.errors import ArgumentError, PeerLostError, RunError, name_ranks
from cxlemu.pool.board import Board, Stage, Vote
from cxlemu.pool.ledger import Hold, HoldState
from cxlemu.world import RankContext


@dataclass
class Stay:
    """One rank's stay in a room, from its hold to giving it back.

    Attributes:
        context: The rank and its part of the ledger.
        room: The room.
        lane: What writes there.
        failed: A call failed, so that stores of this rank may still be in its host's cache.
        settle_too: Fences what other lanes of the communicator wrote.
        arrays: Arrays in the room that the user still holds, and can still store to.
        stored: Where NumPy stores without a flush: card, first byte, and how many bytes so far.
    """

    context: RankContext
    room: Hold
    lane: CallLane
    failed: bool = False
    settle_too: Callable[[], None] = lambda: None
    arrays: Sized = ()
    stored: tuple[int, int, Used] | None = None

    def fail(self) -> None:
        """Note that a call failed."""
        self.failed = True

    def drop(self) -> None:
        """Give the room back for a communicator that was dropped, perhaps with calls under way."""
        self.failed = True
        self.give_back()

    def give_back(self) -> None:
        """Let the room go, or do so later where arrays in it are still held; twice is fine."""
        if len(self.arrays):
            self.context.rooms.later(self.give_back)
            return
        memory, room = self.lane.quick, self.room
        try:
            if self.failed:
                for card in range(len(self.context.pool.cards)):
                    memory.invalidate(card, room.at, room.end - room.at)
            elif self.stored is not None and (nbytes := self.stored[2].nbytes):
                memory.invalidate(*self.stored[:2], nbytes)
            self.lane.settle()
            self.settle_too()
        except RunError:
            return  # hardware that failed holds back what was written: the room stays taken
        self.context.rooms.release(room.name)


def find_room(
    context: RankContext, members: Sequence[int], name: int, wanted: Callable[[int], int], deadline_s: float
) -> Hold:
    """Claim a room as the first member, or hold the one that the first member claimed.

    Args:
        context: This rank's context.
        members: The world ranks of the members.
        name: The room's name, the same on all members.
        wanted: Says, of the size of the largest free part of every card, how many bytes to take.
        deadline_s: How long to wait for the first member, in seconds.

    Raises:
        ArgumentError: There is no room.
        PeerLostError: The first member does not come.
    """
    rooms, leader = context.rooms, members[0]
    if context.rank == leader:
        try:
            return rooms.claim(name, context.arena, wanted)
        except ArgumentError:
            gc.collect()  # communicators that were dropped are often found no earlier
        try:
            return rooms.claim(name, context.arena, wanted)
        except ArgumentError:
            rooms.refuse(name)
            raise
    rooms.collect()
    for _ in context.session.looks(deadline_s):
        lost = lost_among(context, [leader])  # before the look: the leader may claim and then leave
        room = rooms.find(leader, name)
        if room is not None and room.state == HoldState.REFUSED:
            raise ArgumentError(
                f"the pool has no room for a communicator of {len(members)} ranks, as its rank 0 found: close some, "
                f"give the pool larger cards, or make fewer communicators"
            )
        if room is not None and rooms.fits(room, context.arena) and rooms.join(leader, room):
            return room
        if lost:
            raise PeerLostError(f"rank 0 {lost[leader]} before it made a communicator of {name_ranks(members)}", (0,))
    made = f"made no communicator of {name_ranks(members)} within {deadline_s:g} s"
    raise PeerLostError(f"rank 0 {made}: each of them has to call it", (0,))


def await_ready(context: RankContext, board: Board, members: Sequence[int], room: Hold, deadline_s: float) -> None:
    """Tell the other members that this rank's part of the room is prepared, and wait until theirs are.

    Args:
        context: This rank's context.
        board: The new communicator's board.
        members: The world ranks of the members.
        room: The room.
        deadline_s: How long to wait, in seconds.

    Raises:
        PeerLostError: A member left, died or did not come; its ``ranks`` are those of the new communicator.
    """
    board.vote(members.index(context.rank), Vote(Stage.READY, 0, 0, room.at))
    waiting = [rank for rank, member in enumerate(members) if member != context.rank]
    made = f"a communicator of {name_ranks(members)}"
    for _ in context.session.looks(deadline_s):
        lost = lost_among(context, [members[rank] for rank in waiting])  # before the votes: a rank may vote and leave
        waiting = [rank for rank in waiting if board.vote_of(rank) is None]  # who votes again was ready before
        if not waiting:
            return
        for rank in waiting:
            if members[rank] in lost:
                raise PeerLostError(f"rank {rank} {lost[members[rank]]} while this rank makes {made}", (rank,))
    raise PeerLostError(f"{name_ranks(waiting)} did not come within {deadline_s:g} s to make {made}", tuple(waiting))
