"""One status line a rank: what it does, that it lives, how it left. And what this rank saw of the others'."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator

from cxlemu.clock import SYSTEM_CLOCK, Clock
from cxlemu.errors import CancelledError
from cxlemu.pool.session_lines import TEXT_BYTES, SessionArea, State, Status

HEARTBEAT_S = 0.05

Wait = Callable[[int], None]
"""Called between two looks at the pool, with the number of looks so far; may raise to abandon the wait."""


def backoff(attempt: int) -> None:
    """Give the core away at once, then sleep longer and longer, up to 1 ms."""
    time.sleep(0 if attempt < 20 else min(50e-6 * 2 ** min(attempt - 20, 5), 1e-3))


class Presence:
    """Status lines under one session ``id`` (0: none yet). Belongs to one thread."""

    def __init__(self, area: SessionArea, rank: int, wait: Wait, clock: Clock = SYSTEM_CLOCK) -> None:
        self.rank = rank
        self.clock = clock
        self.id = 0
        self._area = area
        self._wait = wait
        self._status = Status(0, 0, 0, 0, 0, State.RUNNING, b"")
        self._beat_at = 0.0
        self._silent = False
        self._seen: dict[int, tuple[int | None, float]] = {}  # peer: its heartbeat, when we saw it change

    def report(self, comm: int, call: int, tag: int, text: str) -> None:
        """Say what this rank is doing; ``text`` is cut to 24 bytes of UTF-8. One line is pushed."""
        short = text.encode()[:TEXT_BYTES].decode(errors="ignore").encode()
        self._push(self._status._replace(comm=comm, call=call, tag=tag, text_utf8=short))

    def beat(self) -> None:
        """Say that this rank is alive. One line is pushed."""
        if self._silent:
            raise CancelledError("this rank plays dead")
        self._push(self._status)

    def play_dead(self) -> None:
        """Never say anything again: what the peers see of a process that was killed, where ranks are threads of one."""
        self._silent = True

    def leave(self, *, failed: bool = False) -> None:
        """Say that this rank is going and will not answer any more."""
        if not self._silent:
            self._push(self._status._replace(state=State.FAILED if failed else State.DONE))

    def peek(self, rank: int) -> Status | None:
        """What ``rank`` said last; None if it said nothing in this session or its line is damaged."""
        status = self._area.load(Status, rank)
        return status if status is not None and status.session == self.id else None

    def departed(self, ranks: Iterable[int]) -> dict[int, State]:
        """Those of ``ranks`` that left, and how: DONE or FAILED."""
        statuses = ((rank, self.peek(rank)) for rank in ranks)
        return {rank: State(s.state) for rank, s in statuses if s is not None and s.state != State.RUNNING}

    def silent(self, ranks: Iterable[int], older_than_s: float) -> tuple[int, ...]:
        """Those of ``ranks`` that did not leave and whose heartbeat did not advance for so long.

        Judged by this rank's clock alone, from the moment it first looked at the peer.
        """
        return tuple(rank for rank in ranks if self.quiet_s(rank) >= older_than_s)

    def quiet_s(self, rank: int) -> float:
        """For how long this rank has not seen the heartbeat of ``rank`` advance; 0 when that rank left."""
        status, now = self.peek(rank), self.clock.now()
        beat = None if status is None else status.heartbeat
        seen_beat, seen_at = self._seen.setdefault(rank, (beat, now))
        if status is not None and (beat != seen_beat or status.state != State.RUNNING):
            self._seen[rank] = (beat, now)
            return 0.0
        return now - seen_at

    def await_departure(self, ranks: Iterable[int], deadline_s: float) -> bool:
        """Whether all ``ranks`` left before the deadline. Who speaks in another session by now has left this one."""
        awaited = set(ranks)
        return any(not (awaited := {rank for rank in awaited if not self._left(rank)}) for _ in self.looks(deadline_s))

    def _left(self, rank: int) -> bool:
        status = self._area.load(Status, rank)
        return status is not None and (status.session != self.id or status.state != State.RUNNING)

    def looks(self, deadline_s: float) -> Iterator[int]:
        """One item per look at the pool, at least one; waits in between and keeps the heartbeat going."""
        end = self.clock.now() + deadline_s
        for attempt in itertools.count():
            yield attempt
            now = self.clock.now()
            if now >= end:
                return
            if self.id and now - self._beat_at >= HEARTBEAT_S:
                self._push(self._status)
            self._wait(attempt)

    def _push(self, status: Status) -> None:
        self._status = status._replace(session=self.id, heartbeat=(status.heartbeat + 1) % 2**64)
        self._area.store(self._status, self.rank)
        self._beat_at = self.clock.now()
