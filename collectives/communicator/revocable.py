"""How a communicator is given up, by one rank for all, and how its survivors go on: revoke, abort, shrink."""

from __future__ import annotations

from typing import Self

from collectives.communicator.calls import revocation
from collectives.communicator.member import Member
from collectives.communicator.membership.opening import await_ready
from collectives.communicator.membership.premises import Terms
from collectives.communicator.membership.shrink import Agreement, head_bytes
from cxlemu.errors import PeerLostError, RevokedError


class Revocable(Member):
    """A member of a communicator that may be given up. Names and meanings are those of MPI's ULFM."""

    def __init__(self, terms: Terms) -> None:
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
        self._successor: Self | None = None  # what this communicator shrank to

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
        if self._runner.revoked is None and not self.closed:
            self._runner.abort(RevokedError(f"rank {self.rank} aborted it" + f": {reason}" * bool(reason)))

    def shrink(self) -> Self:
        """Make a communicator of the ranks that are alive, in the same order, as MPIX_Comm_shrink does.

        Collective over the survivors: a rank that does not come within a deadline counts as dead. This communicator
        is revoked. The new one has room of its own, where no late write of a dead rank lands. Calls under way are
        waited for, and their errors dropped. A communicator that shrank before shrinks once more from what it became.

        Returns:
            The survivors' communicator, the same on all that it is returned to.

        Raises:
            ExcludedError: The other ranks took this one for dead.
            DeadlineError: The other ranks do not answer.
            PeerLostError: One rank after the other died meanwhile.
            ArgumentError: The pool has no room left.
            RevokedError: This rank closed the communicator.
        """
        newest = self._successor or self
        for _ in self.members:
            newest = self._successor = newest._decided()
            try:
                newest._await_members()
                return newest
            except (PeerLostError, RevokedError) as error:
                newest._runner.give_up(error)
                lost = error
        raise lost

    def _decided(self) -> Self:
        """Make the communicator on which the survivors decide, once for all."""
        self._runner.check_open()
        self.revoke()
        self._runner.queue.abandon()
        revoked = self._runner.revoked
        lost = revoked.ranks if isinstance(revoked, PeerLostError) else ()
        ranks, room = self._agreement.reach(frozenset(lost) | revocation.lost(self._board))
        head = head_bytes(self.size)
        return type(self)(
            Terms(
                self._context,
                tuple(self.members[rank] for rank in ranks),
                self._sizing(len(ranks), head).furnish(room.end - room.at),
                room,
                self._lane.beside(),
                self._runner.deadline_s,
                self._planner.integrity,
                head,
                self._peers_among(ranks),
            )
        )

    def _await_members(self) -> None:
        """Wait until all members are ready. Raises PeerLostError where one is lost, or what another member found."""
        await_ready(self._context, self._board, self.members, self._runner.deadline_s, self._look_for_notices)

    def _look_for_notices(self) -> None:
        if (notice := revocation.poll(self._board)) is not None:
            raise revocation.as_error(*notice, f"rank {self.rank} makes this communicator", me=self.rank)

    def _successor_room(self, ranks: int, largest_bytes: int) -> int:
        """Return the room for the survivors' communicator, behind the roster."""
        return self._sizing(ranks, head_bytes(self.size)).wanted(largest_bytes)
