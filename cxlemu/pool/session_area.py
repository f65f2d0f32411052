"""The session area: what ranks say to each other before there is any communicator, one 64-byte line at a time.

    line 0                 record   written by rank 0
    line 1 + 3r            checkin  written by rank r
    line 2 + 3r            answer   written by rank 0, for rank r
    line 3 + 3r            status   written by rank r

Every line: CRC32 of the rest (seeded with the line's index, so a line that landed in another line's place does not
verify), a four-letter kind, then 56 bytes of fields, all little-endian. The first 8 bytes are the doorbell word of the
line, so a line that arrived in two halves fails its CRC and is read again.
"""

import itertools
import math
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from cxlemu.clock import SYSTEM_CLOCK, Clock
from cxlemu.errors import CancelledError, MismatchError
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, HostMemory
from cxlemu.pool.home import Home
from cxlemu.pool.owner import PID_MAX
from cxlemu.pool.superblock import HOSTS_MAX, RANKS_MAX
from cxlemu.unshared import Unshared

HEARTBEAT_S = 0.05

Wait = Callable[[int], None]
"""Called between two looks at the pool, with the number of looks so far; may raise to abandon the wait."""

FINGERPRINT_BYTES = 16
TEXT_BYTES = 24
COUNT_MAX = 2**62  # of anything that is counted: no process counts as far, and a sum of two fits into its field


class Admission(IntEnum):
    """Rank 0's answer when the gathering is over; ``culprit`` is the rank that it is about."""

    ACCEPTED = 1
    MISMATCH = 2
    MISSING = 3


class RankState(IntEnum):
    """Where a rank stands in its session, as its status line says."""

    RUNNING = 1
    DONE = 2
    FAILED = 3


class Record(NamedTuple):
    session: int
    ranks: int
    pid: int
    host: int
    fingerprint: bytes


class Checkin(NamedTuple):
    """A rank's answer to the record, with the number of barriers that it has entered."""

    session: int
    nonce: int
    counter: int  # barriers this rank has entered
    ranks: int
    pid: int
    host: int
    fingerprint: bytes


class Answer(NamedTuple):
    """Rank 0's answer to a rank's check-in, with the number of barriers that are complete."""

    session: int
    nonce: int  # the rank's own nonce, echoed
    counter: int  # barriers that are complete
    admission: int
    culprit: int


class Status(NamedTuple):
    """A rank's heartbeat, the call that it is in, and whether it has left."""

    session: int
    heartbeat: int
    call: int
    comm: int
    tag: int
    state: int
    text_utf8: bytes  # zero-padded to TEXT_BYTES

    @property
    def text(self) -> str:
        """The rank's own words on what it is doing; whatever a terminal would not print is replaced."""
        return printable(self.text_utf8)


Line = Record | Checkin | Answer | Status
L = TypeVar("L", Record, Checkin, Answer, Status)

_LAYOUT: dict[type[Line], tuple[bytes, struct.Struct]] = {
    Record: (b"REC1", struct.Struct(f"<QIII{FINGERPRINT_BYTES}s")),
    Checkin: (b"CHK1", struct.Struct(f"<QQQIII{FINGERPRINT_BYTES}s")),
    Answer: (b"ANS1", struct.Struct("<QQQII")),
    Status: (b"STA1", struct.Struct(f"<QQQIHB{TEXT_BYTES}s")),
}

# What each field can be. The others are names, which are only compared, and heartbeats, which go round.
_BOUNDS: dict[type[Line], dict[str, tuple[int, int]]] = {
    Record: {"ranks": (1, RANKS_MAX), "pid": (1, PID_MAX), "host": (0, HOSTS_MAX - 1)},
    Checkin: {"counter": (0, COUNT_MAX), "ranks": (1, RANKS_MAX), "pid": (1, PID_MAX), "host": (0, HOSTS_MAX - 1)},
    Answer: {"counter": (0, COUNT_MAX), "admission": (min(Admission), max(Admission)), "culprit": (0, RANKS_MAX - 1)},
    Status: {"call": (0, COUNT_MAX), "state": (min(RankState), max(RankState))},
}


class SessionArea:
    """The session area's lines, as one rank's memory shows them."""

    def __init__(self, memory: HostMemory, offset: int) -> None:
        self.memory = memory
        self.home = Home()
        self._offset = offset

    def store(self, line: Line, rank: int) -> None:
        """Push a line, whole and alone: a heartbeat never stands in for a program's fence."""
        self.home.check()
        index = line_index(type(line), rank)
        self.memory.signal(0, self._offset + index * LINE_BYTES, *encode(line, index))

    def load(self, kind: type[L], rank: int) -> L | None:
        """Fetch a line as it is in the pool now; None where there is none, or not a whole one. A Record has no rank."""
        index = line_index(kind, rank)
        return decode(kind, index, *self.memory.poll(0, self._offset + index * LINE_BYTES))


def line_index(kind: type[Line], rank: int) -> int:
    """Return the index of a line in the area: 0 for the record, then three lines per rank."""
    if kind is Record:
        return 0
    return 1 + 3 * rank + (Checkin, Answer, Status).index(kind)


def encode(line: Line, index: int) -> tuple[int, bytes]:
    """Encode a line at ``index`` of the area as word and payload, as ``HostMemory.signal`` takes them."""
    magic, layout = _LAYOUT[type(line)]
    payload = layout.pack(*line).ljust(PAYLOAD_BYTES, b"\0")
    return seal(magic, payload, index), payload


def decode(kind: type[L], index: int, word: int, payload: bytes) -> L | None:
    """Decode a line of 64 bytes; None if they are not a whole and meaningful line of this kind at this index."""
    magic, layout = _LAYOUT[kind]
    if word != seal(magic, payload, index):
        return None
    line = kind(*layout.unpack_from(payload))
    return line if within(line, _BOUNDS[kind]) else None


def within(line: NamedTuple, bounds: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a line's numbers are such as its writer could have written.

    A seal says that a line arrived as it was written, not that its writer was sane: a number that was read is bounded
    before anything is computed, allocated or looped over with it.
    """
    return all(least <= getattr(line, name) <= most for name, (least, most) in bounds.items())


def printable(text_utf8: bytes) -> str:
    """Decode zero-padded text that another process wrote, for a message: what is not printable is replaced."""
    text = text_utf8.rstrip(b"\0").decode("utf-8", errors="replace")
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def seal(magic: bytes, payload: bytes, index: int) -> int:
    """Compute the word of a line: its kind, and a checksum of its contents and its index (plus a key of the pool)."""
    return zlib.crc32(magic + payload, index) | int.from_bytes(magic, "little") << 32


def backoff(attempt: int) -> None:
    """Yield the core in the first looks, then sleep longer and longer, up to 1 ms."""
    time.sleep(0 if attempt < 20 else min(50e-6 * 2 ** min(attempt - 20, 5), 1e-3))


class LifeSigns(Protocol):
    """What says whether ranks are alive beside their status lines: `cxlemu.pool.liveness.Liveness`."""

    def pulse(self, rank: int) -> int:
        """Return a number that changes again and again while the rank lives."""

    def ended(self, ranks: Iterable[int]) -> dict[int, int]:
        """Find those of ``ranks`` whose process has certainly ended, with the pid that each had."""

    def watched(self, rank: int) -> bool:
        """Whether `ended` alone tells whether the rank is alive, so that its silence means nothing."""

    def stop(self) -> None:
        """Stop this rank's own pulse."""


class Presence(Unshared):
    """One rank's status line, and what it sees of others', under one session. Threads of the rank may share it."""

    def __init__(self, area: SessionArea, rank: int, wait: Wait, clock: Clock = SYSTEM_CLOCK) -> None:
        """Begin without a session; nothing is pushed yet."""
        self.rank = rank
        self.clock = clock
        self.id = 0
        self._area = area
        self._wait = wait
        self._status = Status(0, 0, 0, 0, 0, RankState.RUNNING, b"")
        self._pushing = threading.Lock()
        self._beat_at = 0.0
        self._silent = False
        self.life: LifeSigns | None = None
        self._seen: dict[int, tuple[tuple[int | None, int], float]] = {}  # peer: heartbeat and pulse, since when
        self._looked_at = self._looks_since = -math.inf  # at pulses: last, and from when on without a long gap

    def report(self, comm: int, call: int, tag: int, text: str) -> None:
        """Publish what this rank is doing in one line; the text is cut to 24 bytes of UTF-8."""
        short = text.encode()[:TEXT_BYTES].decode(errors="ignore").encode()
        self._push(comm=comm, call=call, tag=tag, text_utf8=short)

    def beat(self) -> None:
        """Publish that this rank is alive. One line is pushed. Raises CancelledError in a rank that plays dead."""
        if self._silent:
            raise CancelledError("this rank plays dead")
        self._push()

    def play_dead(self) -> None:
        """Publish nothing any more, as a process that was killed: for ranks that are threads of one process."""
        self._silent = True
        if self.life is not None:
            self.life.stop()

    def leave(self, *, failed: bool = False) -> None:
        """Publish that this rank leaves and will not answer any more; not over the line of another run.

        A forked child leaves without a word.
        """
        if not self._silent and not self._area.home.left:
            with suppress(MismatchError):
                self._push(state=RankState.FAILED if failed else RankState.DONE)

    def peek(self, rank: int) -> Status | None:
        """Read the last status of ``rank``; None if it published none in this session or its line is damaged."""
        status = self._area.load(Status, rank)
        return status if status is not None and status.session == self.id else None

    def departed(self, ranks: Iterable[int]) -> dict[int, RankState]:
        """Find those of ``ranks`` that left, and how: DONE or FAILED. A rank whose process has ended failed."""
        asked = list(ranks)
        left = dict.fromkeys(self.ended(asked), RankState.FAILED)  # before the lines: a rank leaves before it ends
        statuses = ((rank, self.peek(rank)) for rank in asked)
        return left | {rank: RankState(s.state) for rank, s in statuses if s and s.state != RankState.RUNNING}

    def ended(self, ranks: Iterable[int]) -> dict[int, int]:
        """Find those of ``ranks`` whose process has certainly ended, with the pid that each had."""
        return {} if self.life is None else self.life.ended(ranks)

    def stopped_beating(self, ranks: Iterable[int], older_than_s: float, *, watched: bool = False) -> tuple[int, ...]:
        """Find ranks whose pulse did beat and stands still, and of whose processes nothing else is known.

        With ``watched``: among the ranks that are processes of this machine, which may be stopped, as by SIGSTOP.

        A rank that did not look for half of that time was stopped itself, and maybe its peers with it, as on a virtual
        machine that pauses: it looks for the whole time again before it takes any for lost.
        """
        life, now = self.life, self.clock.now()
        if life is None:
            return ()
        if now - self._looked_at > older_than_s / 2:
            self._looks_since = now
        self._looked_at = now
        beating = (rank for rank in ranks if life.watched(rank) is watched and life.pulse(rank))
        silent = self.silent(beating, older_than_s)
        return silent if now - self._looks_since >= older_than_s else ()

    def silent(self, ranks: Iterable[int], older_than_s: float) -> tuple[int, ...]:
        """Find ranks that did not leave and whose heartbeat stands still.

        This rank's clock alone counts, from the moment it first looked at the peer.
        """
        return tuple(rank for rank in ranks if self.quiet_s(rank) >= older_than_s)

    def quiet_s(self, rank: int) -> float:
        """Return for how many seconds this rank has not seen the heartbeat of ``rank`` advance; 0 if that rank left."""
        before, status, after = self.clock.now(), self.peek(rank), self.clock.now()  # this rank may stall in between
        beat = None if status is None else status.heartbeat, 0 if self.life is None else self.life.pulse(rank)
        seen_beat, seen_at = self._seen.setdefault(rank, (beat, after))
        if status is not None and (beat != seen_beat or status.state != RankState.RUNNING):
            self._seen[rank] = (beat, after)
            return 0.0
        return max(0.0, before - seen_at)

    def await_departure(self, ranks: Iterable[int], deadline_s: float) -> bool:
        """Wait until all ``ranks`` left: a rank in another session, or whose process ended, counts as gone."""
        if self._area.home.left:
            return True
        awaited = set(ranks)
        return any(not (awaited := {rank for rank in awaited if not self._left(rank)}) for _ in self.looks(deadline_s))

    def _left(self, rank: int) -> bool:
        status = self._area.load(Status, rank)
        left = status is not None and (status.session != self.id or status.state != RankState.RUNNING)
        return left or rank in self.ended([rank])

    def looks(self, deadline_s: float) -> Iterator[int]:
        """Yield the number of looks so far, once a look; wait in between, and keep the heartbeat going.

        The last look begins when the time is over, however long this rank stalled before: what is not seen then had not
        come in time.
        """
        end = self.clock.now() + deadline_s
        for attempt in itertools.count():
            over = self.clock.now() >= end
            yield attempt
            if over:
                return
            now = self.clock.now()
            if self.id and now - self._beat_at >= HEARTBEAT_S and self._status.state == RankState.RUNNING:
                self.beat()
            self._wait(attempt)

    def _push(self, **changes: Any) -> None:
        with self._pushing:  # threads that store one line at once leave a torn one
            status = self._status._replace(session=self.id, heartbeat=(self._status.heartbeat + 1) % 2**64, **changes)
            self._status = status
            self._area.store(status, self.rank)
            self._beat_at = self.clock.now()
