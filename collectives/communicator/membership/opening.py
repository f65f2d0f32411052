"""How the members of a new communicator come to one room of the pool, without any other rank.

1. The member of the lowest rank in the world, their leader, claims room (cxlemu/pool/rooms.py), under a name that all
   members know. Where there is less than asked for, it asks the others to give back what they dropped, and claims again
   when all have answered.
2. The others find the room of that name in the leader's part of the ledger, and hold it as well.
3. Each clears its doorbells there, and votes READY on the board, at the room's beginning; they begin when all are.

Each member lets its hold go by itself (stay.py). The last one makes room for others. Members that list each other in
other orders have other names for the room, which tell that (cxlemu/pool/orders.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial

from collectives.communicator.calls.lane import CallLane
from collectives.communicator.calls.loss import lost_among
from collectives.communicator.membership.premises import Terms
from collectives.communicator.membership.sizing import Sizing
from cxlemu.engines.peer_memory import PeerMemory
from cxlemu.errors import ArgumentError, MismatchError, PeerLostError, name_ranks
from cxlemu.pool.board import Board, Stage, Vote
from cxlemu.pool.ledger import Hold, HoldState
from cxlemu.pool.orders import in_order
from cxlemu.pool.rooms import Rooms
from cxlemu.world import RankContext

Look = Callable[[], None]  # raises where a rank that is waited for has given up


def in_peace() -> None:
    """Look at nothing."""


def agree(
    context: RankContext,
    members: tuple[int, ...],
    name: int,
    sizing: Sizing,
    lane: CallLane,
    *,
    deadline_s: float,
    integrity: str | None,
    peers: PeerMemory | None = None,
    look: Look = in_peace,
) -> Terms:
    """Come to one room with the other members, in which all lay out the same things."""
    room = find_room(context, members, name, sizing.wanted, deadline_s, look, settle=sizing.settle)
    nbytes = room.end - room.at
    try:
        furnished = sizing.furnish(nbytes)
        if furnished.nbytes > nbytes:
            raise ArgumentError(f"this rank needs {furnished.nbytes}")
    except BaseException as error:
        context.rooms.release(room.name)
        if not isinstance(error, ArgumentError) or context.rank == min(members):
            raise
        took = f"rank {members.index(min(members))} took {nbytes} bytes of every card"
        raise MismatchError(f"{took}: {error}; all ranks ask for the same sizes") from error
    return Terms(context, members, furnished, room, lane, deadline_s, integrity, peers=peers)


def find_room(
    context: RankContext,
    members: Sequence[int],
    name: int,
    wanted: Callable[[int], int],
    deadline_s: float,
    look: Look = in_peace,
    *,
    settle: Callable[[int], int] | None = None,
) -> Hold:
    """Claim a room as the leader, or hold the one that the leader claimed; of less than is wanted only when all have
    given back what they dropped."""
    if context.rank == min(members):
        return _claim(context, members, name, wanted, settle or wanted, deadline_s, look)
    return _hold_with_leader(context, members, name, deadline_s, look)


def _claim(
    context: RankContext,
    members: Sequence[int],
    name: int,
    wanted: Callable[[int], int],
    settle: Callable[[int], int],
    deadline_s: float,
    look: Look,
) -> Hold:
    """Claim a room as the leader; refuse it to the others only when all have given back what they dropped."""
    rooms = context.rooms
    for make_room in (rooms.search, partial(_ask, context, members, name, deadline_s, look)):
        try:
            return rooms.claim(name, context.arena, wanted)
        except ArgumentError:
            make_room()
    try:
        return rooms.claim(name, context.arena, settle)
    except ArgumentError:
        rooms.refuse(name)
        raise


def _ask(context: RankContext, members: Sequence[int], name: int, deadline_s: float, look: Look) -> None:
    """Ask the other members for room that they dropped, and wait until each has answered, is lost or does not come."""
    rooms, waiting = context.rooms, {*members} - {context.rank}
    with suppress(ArgumentError), rooms.saying(name, HoldState.SHORT):  # no line to say it in: claim what there is
        for _ in context.session.looks(deadline_s):
            look()
            gone = lost_among(context, waiting).keys()
            waiting = {other for other in waiting - gone if _said(context, other, name, members) is None}
            if not waiting:
                return


def _hold_with_leader(context: RankContext, members: Sequence[int], name: int, deadline_s: float, look: Look) -> Hold:
    """Hold the leader's room when it has one, and help it to find one."""
    rooms, leader = context.rooms, min(members)
    its = members.index(leader)
    rooms.collect()
    with ExitStack() as answer:
        answered = False
        for _ in context.session.looks(deadline_s):
            lost = lost_among(context, [leader])  # before the look: the leader may claim and then leave
            room = _said(context, leader, name, members)
            if room is not None and room.state == HoldState.REFUSED:
                raise ArgumentError(
                    f"the pool has no room for a communicator of {len(members)} ranks: close "
                    f"some, give the pool larger cards, or make fewer communicators"
                )
            if room is not None and room.state == HoldState.ABANDONED:
                raise abandoned(its, members)
            if room is not None and room.state == HoldState.SHORT and not answered:
                rooms.search()
                answer.enter_context(rooms.saying(name, HoldState.SEARCHED))
                answered = True
            elif room is not None and rooms.fits(room, context.arena):
                answer.close()  # its line may be the one that the room needs
                if _join(rooms, leader, room):
                    return room
            look()
            if lost:
                gone = f"{lost[leader]} before it made a communicator of {name_ranks(members)}"
                raise PeerLostError(f"rank {its} {gone}", (its,))
    made = f"made no communicator of {name_ranks(members)} within {deadline_s:g} s"
    raise PeerLostError(f"rank {its} {made}: each of them must call it", (its,))


def _join(rooms: Rooms, leader: int, room: Hold) -> bool:
    """Hold the leader's room, in a line that a dropped communicator had where this rank has no other."""
    try:
        return rooms.join(leader, room)
    except ArgumentError:
        rooms.search()
        return rooms.join(leader, room)


def _said(context: RankContext, member: int, name: int, members: Sequence[int]) -> Hold | None:
    """Find what a member holds of the room, or says about it. Raises MismatchError where ranks ask for others."""
    said = context.rooms.find(member, name)
    if said is not None and said.state != HoldState.MISMATCHED:
        return said
    for other in [member] if said is None else members:  # whoever said so has seen what another one lists
        if other != context.rank and (order := context.rooms.other_order(other, name, members)) is not None:
            theirs = in_order(members, order)
            raise MismatchError(
                f"rank {other} of the world makes a communicator of "
                f"{f'these ranks in another order than {[*members]}' if theirs is None else theirs}, this rank of "
                f"{[*members]}: all members list them in the same order"
            )
    if said is not None:
        rank = members.index(member)
        raise MismatchError(f"rank {rank} asked for a communicator of other sizes: all ranks ask for the same sizes")
    return None


def abandoned(rank: int, members: Sequence[int]) -> PeerLostError:
    """Make the error of a member that was interrupted: the others need not wait for it."""
    return PeerLostError(f"rank {rank} was interrupted while it made a communicator of {name_ranks(members)}", (rank,))


def await_ready(
    context: RankContext, board: Board, members: Sequence[int], deadline_s: float, look: Look = in_peace
) -> None:
    """Tell the other members that this rank's part of the room is prepared, and wait until theirs are."""
    board.vote(members.index(context.rank), Vote(Stage.READY))
    waiting = [rank for rank, member in enumerate(members) if member != context.rank]
    made = f"a communicator of {name_ranks(members)}"
    for _ in context.session.looks(deadline_s):
        lost = lost_among(context, [members[rank] for rank in waiting])  # before the votes: a rank may vote and leave
        waiting = [rank for rank in waiting if not board.is_ready(rank)]
        if not waiting:
            return
        look()
        for rank in waiting:
            said = _said(context, members[rank], board.name, members)
            if said is not None and said.state == HoldState.ABANDONED:
                raise abandoned(rank, members)
            if members[rank] in lost:
                raise PeerLostError(f"rank {rank} {lost[members[rank]]} while this rank makes {made}", (rank,))
    raise PeerLostError(f"{name_ranks(waiting)} did not arrive within {deadline_s:g} s to make {made}", tuple(waiting))
