"""A session: ranks that met through the pool, say what they do, and can wait for each other."""

from __future__ import annotations

from cxlemu.clock import SYSTEM_CLOCK, Clock
from cxlemu.errors import ArgumentError, MismatchError
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.board import Board
from cxlemu.pool.handshake import Membership, lost
from cxlemu.pool.session_lines import FINGERPRINT_BYTES, SessionArea, State, Status, Verdict
from cxlemu.pool.status import Wait, backoff

__all__ = ["Session", "State", "Status", "Wait", "backoff"]


class Session(Membership):
    """One rank's part in a session. Belongs to one thread; every wait ends at its deadline."""

    @classmethod
    def open(
        cls,
        memory: HostMemory,
        *,
        rank: int,
        ranks: int,
        session_offset: int,
        max_ranks: int,
        fingerprint: bytes,
        deadline_s: float,
        host: int = 0,
        wait: Wait = backoff,
        clock: Clock = SYSTEM_CLOCK,
    ) -> Session:
        """Meet all ``ranks`` in the session area at ``session_offset`` of card 0.

        ``fingerprint`` (at most 16 bytes) digests what all ranks must agree on. Raises ArgumentError for a
        rank that does not fit, PeerLostError naming the ranks that did not come, MismatchError on both sides
        when ranks or fingerprints differ, or when two processes claim the same rank.
        """
        if not 1 <= ranks <= max_ranks:
            raise ArgumentError(f"{ranks} ranks do not fit: this pool has room for 1 to {max_ranks}")
        if not 0 <= rank < ranks:
            raise ArgumentError(f"rank {rank} is not one of the ranks 0 to {ranks - 1}")
        if len(fingerprint) > FINGERPRINT_BYTES:
            raise ArgumentError(f"a fingerprint has at most {FINGERPRINT_BYTES} bytes, not {len(fingerprint)}")
        session = cls(
            SessionArea(memory, session_offset),
            rank=rank,
            ranks=ranks,
            host=host,
            fingerprint=fingerprint.ljust(FINGERPRINT_BYTES, b"\0"),
            wait=wait,
            clock=clock,
        )
        if rank == 0:
            session.gather(deadline_s)
        else:
            session.join(deadline_s)
        return session

    def board(self, offset: int, ranks: int) -> Board:
        """The board of a communicator of so many ranks, at ``offset`` of card 0."""
        return Board(self._area.memory, offset, self.id, ranks)

    def barrier(self, deadline_s: float) -> None:
        """Return when all ranks entered; for bootstrap, as rank 0 looks at every rank.

        Raises PeerLostError naming those that left, failed or did not come, MismatchError when two processes
        turn out to run as one rank.
        """
        self._counter += 1
        self.refuse_double()
        if self.rank == 0:
            self._await_peers(deadline_s)
            self.answer_all(Verdict.ACCEPTED)
        else:
            self.check_in()
            self._await_root(deadline_s)

    def _await_peers(self, deadline_s: float) -> None:
        waiting = set(self._nonces)
        for _ in self.looks(deadline_s):
            gone = self.departed(waiting)  # before the counters: a peer may enter and then leave
            waiting = {peer for peer in waiting if not self._entered(peer)}
            if not waiting:
                return
            if missed := waiting & gone.keys():
                raise lost(missed, f"gone before barrier {self._counter}")
        raise lost(waiting, f"not in barrier {self._counter} after {deadline_s:g} s")

    def _entered(self, peer: int) -> bool:
        checkin = self.checkin(peer)
        if checkin is None:
            return False
        if checkin.nonce != self._nonces[peer]:
            raise MismatchError(f"two processes run as rank {peer}, one of them is pid {checkin.pid}")
        return checkin.counter >= self._counter

    def _await_root(self, deadline_s: float) -> None:
        for _ in self.looks(deadline_s):
            gone = self.departed([0])  # before the answer: rank 0 may answer and then leave
            answer = self.my_answer()
            if answer is not None and answer.counter >= self._counter:
                return
            if gone:
                failed = [rank for rank, how in self.departed(self.peers).items() if how == State.FAILED]
                raise lost([0, *failed], f"gone before barrier {self._counter} was complete")
        raise lost([0], f"did not complete barrier {self._counter} within {deadline_s:g} s")
