"""How a communicator is given up, by one rank for all, and how its survivors go on: revoke, abort, shrink."""

from __future__ import annotations

from typing import Self

from collectives.communicator import revocation
from collectives.communicator.member import Member
from collectives.communicator.premises import Terms
from collectives.communicator.shrink import Agreement, Roster, roster_bytes
from cxlemu.errors import PeerLostError, RevokedError
from cxlemu.pool.arena import ARENA_ALIGN_BYTES
from cxlemu.rounding import round_up


class Revocable(Member):
    """A member of a communicator that may be given up. Names and meanings are those of MPI's ULFM."""

    def __init__(self, terms: Terms) -> None:
        """Move in, as `Member` does."""
        super().__init__(terms)
        self._agreement = Agreement(
            terms.context.session,
            self._board,
            self.rank,
            self.members,
            terms.context.rooms,
            terms.context.arena,
            room_bytes=self._successor_room,
            deadline_s=terms.deadline_s,
        )

    def revoke(self) -> None:
        """Give this communicator up, as MPIX_Comm_revoke does: no rank can call anything of it from then on.

        Ranks that wait in a call of it raise RevokedError soon, others in their next call. Not collective. Does nothing
        where this rank already knows that the communicator is revoked.
        """
        if self._runner.revoked is None and not self.closed:
            self._runner.give_up(RevokedError(f"rank {self.rank} revoked it"))

    def abort(self, reason: str = "") -> None:
        """Give this communicator up from any thread, also while a call of it waits in another.

        That call, and all that wait in a call of this communicator on other ranks, raise RevokedError. Not collective.

        Args:
            reason: Why, for this rank's message.
        """
        if self._runner.revoked is None:
            self._runner.abort(RevokedError(f"rank {self.rank} aborted it" + f": {reason}" * bool(reason)))

    def shrink(self) -> Self:
        """Make a communicator of the ranks that are alive, in the same order, as MPIX_Comm_shrink does.

        Collective over the survivors: a rank that does not come within a deadline is taken for dead. This communicator
        is revoked. The new one has room of its own, where no late write of a dead rank lands. Calls under way are
        waited for, and their errors dropped.

        Returns:
            The survivors' communicator.

        Raises:
            ExcludedError: The other ranks took this one for dead.
            DeadlineError: The other ranks do not answer.
            ArgumentError: The pool has no room left.
            RevokedError: This rank closed the communicator.
        """
        self._runner.check_open()
        self.revoke()
        self._runner.queue.abandon()
        revoked = self._runner.revoked
        lost = revoked.ranks if isinstance(revoked, PeerLostError) else ()
        return self._agreement.reach(frozenset(lost) | revocation.lost(self._board), self._renewed)

    def _successor_room(self, ranks: int, largest_bytes: int) -> int:
        """Return the room for the survivors' communicator, behind the roster."""
        return self._sizing(ranks, self._roster_room).wanted(largest_bytes)

    @property
    def _roster_room(self) -> int:
        return round_up(roster_bytes(self.size), ARENA_ALIGN_BYTES)

    def _renewed(self, roster: Roster) -> Self:
        ranks, room, head_bytes = roster.ranks, roster.room, self._roster_room
        members = tuple(self.members[rank] for rank in ranks)
        furnished = self._sizing(len(ranks), head_bytes).furnish(room.end - room.at)
        lane, deadline_s = self._lane.beside(), self._runner.deadline_s
        return type(self)(
            Terms(
                self._context,
                members,
                furnished,
                room,
                lane,
                deadline_s,
                self._planner.integrity,
                head_bytes,
                self._peers_among(ranks),
            )
        )
