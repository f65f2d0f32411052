"""A session: ranks that share nothing but the pool find each other, know that they found the living, and wait.

Rank 0 publishes a record with a fresh random session id. Every other rank answers it with a fresh random nonce in its
own line, and rank 0 echoes all nonces once all ranks are there. A rank believes nothing before it sees its own nonce
echoed under the session id it answered: the record of a crashed run is answered as well, but no process is left to echo
it, and its old echoes carry old nonces. When the record changes, it answers again.

No cross-host atomics and no coherence are needed: every line has one writer, is pushed whole and verified by its CRC.
This cannot prevent two processes from claiming the same rank, but it detects them. It also detects a new run in the
pool of a run that was thought dead: a rank of the old run that still beats sees the new record and gives up; nothing
stops what it writes before its next beat. A pool therefore has one run at a time, and who starts another one makes sure
that the ranks of the last one have ended, or are stopped for good.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable
from typing import Any

from cxlemu.clock import SYSTEM_CLOCK, Clock
from cxlemu.errors import ArgumentError, MismatchError, PeerLostError, name_ranks
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.board import Board
from cxlemu.pool.session_area import (
    FINGERPRINT_BYTES,
    HEARTBEAT_S,
    Admission,
    Answer,
    Checkin,
    Presence,
    RankState,
    Record,
    SessionArea,
    Wait,
    backoff,
)


class Session(Presence):
    """One rank's part in a session; every wait ends at its deadline."""

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
        """Make a rank's part before it meets the others; use `open`, whose arguments these are."""
        super().__init__(area, rank, wait, clock)
        self.ranks = ranks
        self._host = host
        self._fingerprint = fingerprint
        self._nonce = 0
        self._nonces: dict[int, int] = {}  # rank 0: the nonce each peer checked in with
        self._counter = 0  # barriers entered
        self._accepted = False

    def __repr__(self) -> str:
        return f"<Session rank {self.rank} of {self.ranks}>"

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
        """Meet all ranks in the session area of a pool; ``fingerprint`` (16 bytes at most) digests what they agree
        on."""
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

    # --- finding each other --------------------------------------------------------------------------------------

    def gather(self, deadline_s: float) -> None:
        """Publish a new session as rank 0, and wait until all ranks answered it."""
        self.id = secrets.randbits(64)
        self.beat()  # first, so that a rank that accepts the session finds a status
        self._area.store(Record(self.id, self.ranks, os.getpid(), self._host, self._fingerprint), 0)
        for _ in self.looks(deadline_s):
            self.refuse_double()
            for peer in self.peers:
                if (checkin := self.checkin(peer)) is None:
                    continue
                self._nonces[peer] = checkin.nonce
                if not self._agrees(checkin):
                    self.answer_all(Admission.MISMATCH, culprit=peer)
                    raise MismatchError(self._difference(peer, checkin))
            if len(self._nonces) == len(self.peers):
                self.answer_all(Admission.ACCEPTED)
                self._accepted = True
                return
        absent = [peer for peer in self.peers if peer not in self._nonces]  # at the last look: they may have come since
        self.answer_all(Admission.MISSING, culprit=absent[0])
        raise lost(absent, f"not there after {deadline_s:g} s")

    def join(self, deadline_s: float) -> None:
        """Answer the session of rank 0, and wait until it echoes this rank's nonce."""
        answered: Record | None = None
        residue: Answer | None = None  # what lay there before rank 0 could answer this rank
        for _ in self.looks(deadline_s):
            record = self._area.load(Record, 0)
            if record is not None and record != answered:
                answered, self.id, self._nonce = record, record.session, secrets.randbits(64)
                self._seen.clear()
                residue = self._area.load(Answer, self.rank)
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
        raise self._unanswered(answered, residue, deadline_s)

    def _believe(self, answer: Answer, record: Record) -> None:
        """Act on what rank 0 decided: the session is real, as our nonce came back."""
        if answer.admission == Admission.MISMATCH:
            if answer.culprit == self.rank:
                raise MismatchError(self._difference(0, record))
            raise MismatchError(f"rank {answer.culprit} was started differently from rank 0")
        if answer.admission == Admission.MISSING:
            raise lost(self._absent() or [answer.culprit], "not there before the deadline of rank 0")
        self._accepted = True

    def _unanswered(self, record: Record, residue: Answer | None, deadline_s: float) -> PeerLostError | MismatchError:
        """Explain why no echo came: either the record is residue, or its rank 0 lives (a heartbeat tells) and waits.

        That rank 0 took another process for this rank is known only where it gave such an answer since this rank asked:
        a rank 0 that lives, has all ranks and gives no answer may just be slow.
        """
        doubt = ""
        if not self._agrees(record):
            doubt = f"; unless the record is residue of a dead run: {self._difference(0, record)}"
        answer = self._area.load(Answer, self.rank)
        if answer is not None and answer != residue and answer.session == self.id and answer.nonce != self._nonce:
            return MismatchError(f"rank 0 answered another process than pid {os.getpid()} as rank {self.rank}{doubt}")
        quiet_s = self.quiet_s(0)
        if quiet_s < min(deadline_s / 2, 20 * HEARTBEAT_S) and (absent := self._absent()):
            return lost(absent, f"not there after {deadline_s:g} s{doubt}")
        return lost([0], f"gave no answer within {deadline_s:g} s, and no sign of life for {quiet_s:.2g} s{doubt}")

    def _agrees(self, theirs: Record | Checkin) -> bool:
        return (theirs.ranks, theirs.fingerprint) == (self.ranks, self._fingerprint)

    def _difference(self, peer: int, theirs: Record | Checkin) -> str:
        if theirs.ranks != self.ranks:
            return f"rank {peer} was started with {theirs.ranks} ranks, but rank {self.rank} with {self.ranks}"
        return (
            f"rank {peer} was started with another topology, memory or version than rank {self.rank} "
            f"(fingerprint {theirs.fingerprint.hex()}, not {self._fingerprint.hex()})"
        )

    def _push(self, **changes: Any) -> None:
        """Push this rank's status. Raises MismatchError once another run has begun in this pool."""
        if self._accepted and (record := self._area.load(Record, 0)) is not None and record.session != self.id:
            raise MismatchError(f"another run has begun in this pool: its rank 0 is process {record.pid}")
        super()._push(**changes)

    def refuse_double(self) -> None:
        """Raise MismatchError if another process overwrote the line that says which process this rank is."""
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
        return range(1, self.ranks)

    def _absent(self) -> list[int]:
        return [peer for peer in self.peers if self.checkin(peer) is None]

    def checkin(self, peer: int) -> Checkin | None:
        """Read a peer's check-in; return None if it has not answered this session."""
        checkin = self._area.load(Checkin, peer)
        return checkin if checkin is not None and checkin.session == self.id else None

    def check_in(self) -> None:
        """Push this rank's check-in: its nonce, and the barriers that it has entered."""
        mine = (self.id, self._nonce, self._counter, self.ranks, os.getpid(), self._host, self._fingerprint)
        self._area.store(Checkin(*mine), self.rank)

    def my_answer(self) -> Answer | None:
        """Read rank 0's answer to this rank; return None if it does not echo the nonce."""
        answer = self._area.load(Answer, self.rank)
        if answer is None or (answer.session, answer.nonce) != (self.id, self._nonce):
            return None
        return answer if answer.culprit < self.ranks else None

    def answer_all(self, admission: Admission, culprit: int = 0) -> None:
        """Answer, as rank 0, every peer that has checked in."""
        for peer, nonce in self._nonces.items():
            self._area.store(Answer(self.id, nonce, self._counter, admission, culprit), peer)

    # --- afterwards ----------------------------------------------------------------------------------------------

    @property
    def memory(self) -> HostMemory:
        """The memory for lines, through which no program writes."""
        return self._area.memory

    def board(self, offset: int, ranks: int, name: int) -> Board:
        return Board(self._area.memory, offset, name, ranks)

    def barrier(self, deadline_s: float) -> None:
        """Return when all ranks entered; for bootstrap, as rank 0 looks at every rank."""
        self._counter += 1
        self.refuse_double()
        if self.rank == 0:
            self._await_peers(deadline_s)
            self.answer_all(Admission.ACCEPTED)
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
                failed = [rank for rank, how in self.departed(self.peers).items() if how == RankState.FAILED]
                raise lost([0, *failed], f"gone before barrier {self._counter} was complete")
        raise lost([0], f"did not complete barrier {self._counter} within {deadline_s:g} s")


def lost(ranks: Iterable[int], how: str) -> PeerLostError:
    """Make the error for ranks that are gone; ``how`` ends the sentence about them."""
    names = tuple(sorted(ranks))
    return PeerLostError(f"{name_ranks(names)} {how}", names)
