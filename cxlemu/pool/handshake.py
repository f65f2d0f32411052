"""How ranks that share nothing but the pool find each other, and know that they found the living.

Rank 0 publishes a record with a fresh random session id. Every other rank answers it with a fresh random
nonce in its own line, and rank 0 echoes all nonces once all ranks are there. A rank believes nothing before
it sees its own nonce echoed under the session id it answered: the record of a crashed run is answered too,
but nobody is left to echo it, and its old echoes carry old nonces. When the record changes, it answers again.

No cross-host atomics and no coherence are needed: every line has one writer, is pushed whole and verified by
its CRC. That two processes claim the same rank cannot be prevented so, but it is detected. So is a new run in the
pool of one that was thought dead: whoever of the old one still beats sees the new record, and gives up; nothing stops
what it writes before its next beat.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable

from cxlemu.clock import SYSTEM_CLOCK, Clock
from cxlemu.errors import MismatchError, PeerLostError, name_ranks
from cxlemu.pool.session_lines import Answer, Checkin, Record, SessionArea, Verdict
from cxlemu.pool.status import HEARTBEAT_S, Presence, Wait


class Membership(Presence):
    """A rank among ``ranks``, and the lines by which it becomes one."""

    def __init__(
        self,
        area: SessionArea,
        *,
        rank: int,
        ranks: int,
        host: int,
        fingerprint: bytes,
        wait: Wait,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(area, rank, wait, clock)
        self.ranks = ranks
        self._host = host
        self._fingerprint = fingerprint
        self._nonce = 0
        self._nonces: dict[int, int] = {}  # rank 0: the nonce each peer checked in with
        self._counter = 0  # barriers entered
        self._accepted = False

    def gather(self, deadline_s: float) -> None:
        """Rank 0's part. Raises PeerLostError naming who did not come, MismatchError for who is different."""
        self.id = secrets.randbits(64)
        self.beat()  # first, so that whoever accepts the session finds a status
        self._area.store(Record(self.id, self.ranks, os.getpid(), self._host, self._fingerprint), 0)
        for _ in self.looks(deadline_s):
            self.refuse_double()
            for peer in self.peers:
                if (checkin := self.checkin(peer)) is None:
                    continue
                self._nonces[peer] = checkin.nonce
                if not self._agrees(checkin):
                    self.answer_all(Verdict.MISMATCH, culprit=peer)
                    raise MismatchError(self._difference(peer, checkin))
            if len(self._nonces) == len(self.peers):
                self.answer_all(Verdict.ACCEPTED)
                self._accepted = True
                return
        absent = self._absent()
        self.answer_all(Verdict.MISSING, culprit=absent[0])
        raise lost(absent, f"not there after {deadline_s:g} s")

    def join(self, deadline_s: float) -> None:
        """The others' part. Raises PeerLostError and MismatchError as rank 0 does."""
        answered: Record | None = None
        for _ in self.looks(deadline_s):
            record = self._area.load(Record, 0)
            if record is not None and record != answered:
                answered, self.id, self._nonce = record, record.session, secrets.randbits(64)
                self._seen.clear()
                self.beat()
                self.check_in()
            if answered is None:
                continue
            self.refuse_double()
            if (answer := self.my_answer()) is not None:
                return self._believe(answer, answered)
            self.quiet_s(0)  # keep watching rank 0, to blame the right rank below
        if answered is None:
            raise lost([0], f"published no session within {deadline_s:g} s")
        raise self._unanswered(answered, deadline_s)

    def _believe(self, answer: Answer, record: Record) -> None:
        """The session is real: our nonce came back. What did rank 0 decide?"""
        if answer.verdict == Verdict.MISMATCH:
            if answer.culprit == self.rank:
                raise MismatchError(self._difference(0, record))
            raise MismatchError(f"rank {answer.culprit} was started differently from rank 0")
        if answer.verdict == Verdict.MISSING:
            raise lost(self._absent() or [answer.culprit], "not there before the deadline of rank 0")
        self._accepted = True

    def _unanswered(self, record: Record, deadline_s: float) -> PeerLostError | MismatchError:
        """No echo came: is the record residue, or does its rank 0 live (a heartbeat tells) and wait?"""
        doubt = ""
        if not self._agrees(record):
            doubt = f"; unless the record is residue of a dead run: {self._difference(0, record)}"
        if self.quiet_s(0) >= min(deadline_s / 2, 20 * HEARTBEAT_S):
            return lost([0], f"gave no answer within {deadline_s:g} s{doubt}")
        if absent := self._absent():
            return lost(absent, f"not there after {deadline_s:g} s{doubt}")
        return MismatchError(f"rank 0 took another process than pid {os.getpid()} for rank {self.rank}{doubt}")

    def _agrees(self, theirs: Record | Checkin) -> bool:
        return (theirs.ranks, theirs.fingerprint) == (self.ranks, self._fingerprint)

    def _difference(self, peer: int, theirs: Record | Checkin) -> str:
        if theirs.ranks != self.ranks:
            return f"rank {peer} was started in {theirs.ranks} ranks, rank {self.rank} in {self.ranks}"
        return (
            f"rank {peer} was started with another topology, memory or version than rank {self.rank} "
            f"(fingerprint {theirs.fingerprint.hex()}, not {self._fingerprint.hex()})"
        )

    def beat(self) -> None:
        """Say that this rank is alive. Raises MismatchError once another run has begun in this pool."""
        if self._accepted and (record := self._area.load(Record, 0)) is not None and record.session != self.id:
            raise MismatchError(f"another run has begun in this pool: its rank 0 is process {record.pid}")
        super().beat()

    def refuse_double(self) -> None:
        """Raises MismatchError when another process overwrote the line that says who we are."""
        if self.rank == 0:
            record = self._area.load(Record, 0)
            other_pid = record.pid if record is not None and record.session != self.id else None
        else:
            checkin = self.checkin(self.rank)
            other_pid = checkin.pid if checkin is not None and checkin.nonce != self._nonce else None
        if other_pid is not None:
            raise MismatchError(f"two processes run as rank {self.rank}: pids {os.getpid()} and {other_pid}")

    # -- lines

    @property
    def peers(self) -> range:
        """All ranks but rank 0."""
        return range(1, self.ranks)

    def _absent(self) -> list[int]:
        return [peer for peer in self.peers if self.checkin(peer) is None]

    def checkin(self, peer: int) -> Checkin | None:
        checkin = self._area.load(Checkin, peer)
        return checkin if checkin is not None and checkin.session == self.id else None

    def check_in(self) -> None:
        mine = (self.id, self._nonce, self._counter, self.ranks, os.getpid(), self._host, self._fingerprint)
        self._area.store(Checkin(*mine), self.rank)

    def my_answer(self) -> Answer | None:
        answer = self._area.load(Answer, self.rank)
        ours = answer is not None and (answer.session, answer.nonce) == (self.id, self._nonce)
        return answer if ours else None

    def answer_all(self, verdict: Verdict, culprit: int = 0) -> None:
        for peer, nonce in self._nonces.items():
            self._area.store(Answer(self.id, nonce, self._counter, verdict, culprit), peer)


def lost(ranks: Iterable[int], how: str) -> PeerLostError:
    names = tuple(sorted(ranks))
    return PeerLostError(f"{name_ranks(names)} {how}", names)
