"""What a rank does while it waits: shows that it is alive, and looks whether its peers are, and do the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from collectives.communicator import revocation
from cxlemu.engines.streams import Blocked, Running
from cxlemu.errors import MismatchError, PeerLostError, name_ranks
from cxlemu.pool.board import Board
from cxlemu.pool.session_area import Status
from cxlemu.world import RankContext

LOOK_S = 0.05


@dataclass
class PeerMonitor:
    """Looks after the peers of one communicator; the engine calls it again and again while nothing progresses."""

    context: RankContext
    board: Board
    comm: int
    members: tuple[int, ...]  # world ranks
    deadline_s: float
    call: int = 0
    _told: bool = field(default=False)
    _looked: float = field(default=0.0)
    _gone: frozenset[int] = field(default=frozenset())  # world ranks that had left when we last looked

    def begin(self, call: int) -> None:
        """Call number ``call`` begins. What it is is told to the peers when this rank first has to wait in it."""
        self.call = call
        self._told = False
        self._gone = frozenset()

    def __call__(self, running: Running, blocked: list[Blocked], waited_s: float) -> None:
        """Raises MismatchError or PeerLostError when a peer will not come any more, and what a peer gave up for."""
        self.context.check()
        if not self._told:
            call = running.call
            text = f"{call.collective} {call.nbytes} {call.dtype}"
            self.context.session.report(self.comm, self.call, running.binding.tag, text)
            self._told = True
        now = self.context.session.clock.now()
        if now - self._looked < LOOK_S and waited_s <= self.deadline_s:
            return
        self._looked = now
        session = self.context.session
        session.beat()
        peers = [member for member in self.members if member != self.context.rank]
        for peer in peers:
            if (status := session.peek(peer)) is not None:
                self._compare(running, peer, status)
        waits_for = " and for ".join(map(running.describe, blocked))
        waits = f"rank {running.part.rank} waits in [{running.call}] for {waits_for}"
        # What a peer rang before it left may not have been seen at the last look: believe the second one.
        gone = frozenset(session.departed(self.members[b.owner] for b in blocked if b.owner >= 0))
        if (notice := revocation.poll(self.board)) is not None:
            self.context.check()  # a peer that lost its capacity has seen that earlier than this rank
            error = revocation.as_error(*notice, waits)
            if isinstance(error, PeerLostError) and set(error.ranks) <= set(self._ranks(gone)):
                raise _left(error.ranks, waits)  # this rank has seen it, too
            raise error
        if lost := gone & self._gone:
            raise _left(self._ranks(lost), waits)
        self._gone = gone
        silent = session.silent(peers, older_than_s=self.deadline_s / 2)
        if silent and waited_s > self.deadline_s:
            ranks = self._ranks(silent)
            since = f"gave no sign of life for {self.deadline_s / 2:.3g} s or more"
            raise PeerLostError(f"{name_ranks(ranks)} {since}; {waits}, since {waited_s:.1f} s", ranks)

    def _compare(self, running: Running, peer: int, status: Status) -> None:
        """A peer in the same call of this communicator must have called the same."""
        same_call = (status.comm, status.call) == (self.comm, self.call)
        if same_call and status.tag != running.binding.tag:
            raise MismatchError(
                f"call {self.call} of this communicator is [{running.call}] on rank {running.part.rank} but "
                f"[{status.text} ...] on rank {self.members.index(peer)}, or an earlier call differed: all ranks must "
                f"call the same collectives with the same arguments"
            )

    def _ranks(self, members: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(self.members.index(member) for member in members))


def _left(ranks: tuple[int, ...], waits: str) -> PeerLostError:
    return PeerLostError(f"{name_ranks(ranks)} left; {waits}", ranks)
