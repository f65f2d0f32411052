"""The 64-byte lines of the session area: what a rank may say to its peers before there is any communicator.

    line 0                 record   written by rank 0
    line 1 + 3r            checkin  written by rank r
    line 2 + 3r            answer   written by rank 0, for rank r
    line 3 + 3r            status   written by rank r

Every line: CRC32 of the rest (seeded with the line's index, so a line that landed in another line's place
does not verify), a four-letter kind, then 56 bytes of fields, all little-endian. The first 8 bytes are the
doorbell word of the line, so a line that arrived in two halves fails its CRC and is read again.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import NamedTuple, TypeVar

from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES, HostMemory

FINGERPRINT_BYTES = 16
TEXT_BYTES = 24


class Verdict(IntEnum):
    """What rank 0 answers when the gathering is over; ``culprit`` is the rank it speaks of."""

    ACCEPTED = 1
    MISMATCH = 2
    MISSING = 3


class State(IntEnum):
    RUNNING = 1
    DONE = 2
    FAILED = 3


_VERDICTS, _STATES = frozenset(Verdict), frozenset(State)


class Record(NamedTuple):
    session: int
    ranks: int
    pid: int
    host: int
    fingerprint: bytes


class Checkin(NamedTuple):
    session: int
    nonce: int
    counter: int  # barriers this rank has entered
    ranks: int
    pid: int
    host: int
    fingerprint: bytes


class Answer(NamedTuple):
    session: int
    nonce: int  # the rank's own nonce, echoed
    counter: int  # barriers that are complete
    verdict: int
    culprit: int


class Status(NamedTuple):
    session: int
    heartbeat: int
    call: int
    comm: int
    tag: int
    state: int
    text_utf8: bytes  # zero-padded to TEXT_BYTES

    @property
    def text(self) -> str:
        return self.text_utf8.rstrip(b"\0").decode("utf-8", errors="replace")


Line = Record | Checkin | Answer | Status
L = TypeVar("L", Record, Checkin, Answer, Status)

_LAYOUT: dict[type[Line], tuple[bytes, struct.Struct]] = {
    Record: (b"REC1", struct.Struct(f"<QIII{FINGERPRINT_BYTES}s")),
    Checkin: (b"CHK1", struct.Struct(f"<QQQIII{FINGERPRINT_BYTES}s")),
    Answer: (b"ANS1", struct.Struct("<QQQII")),
    Status: (b"STA1", struct.Struct(f"<QQQIHB{TEXT_BYTES}s")),
}


class SessionArea:
    """The lines at ``offset`` of card 0, as one rank's memory shows them."""

    def __init__(self, memory: HostMemory, offset: int) -> None:
        self.memory = memory
        self._offset = offset

    def store(self, line: Line, rank: int) -> None:
        """Push the line of ``rank``, whole and alone: a heartbeat never stands in for a program's fence."""
        index = line_index(type(line), rank)
        self.memory.signal(0, self._offset + index * LINE_BYTES, *encode(line, index))

    def load(self, kind: type[L], rank: int) -> L | None:
        """The line of ``rank`` as it is in the pool now; None where there is none, or not whole."""
        index = line_index(kind, rank)
        return decode(kind, index, *self.memory.poll(0, self._offset + index * LINE_BYTES))


def line_index(kind: type[Line], rank: int) -> int:
    if kind is Record:
        return 0
    return 1 + 3 * rank + (Checkin, Answer, Status).index(kind)


def encode(line: Line, index: int) -> tuple[int, bytes]:
    """(word, payload) of the line, as ``HostMemory.signal`` takes them."""
    magic, layout = _LAYOUT[type(line)]
    payload = layout.pack(*line).ljust(PAYLOAD_BYTES, b"\0")
    return seal(magic, payload, index), payload


def decode(kind: type[L], index: int, word: int, payload: bytes) -> L | None:
    """The line, or None if these bytes are not a whole and meaningful line of this kind at this index."""
    magic, layout = _LAYOUT[kind]
    if word != seal(magic, payload, index):
        return None
    line = kind(*layout.unpack_from(payload))
    if isinstance(line, Status) and line.state not in _STATES:
        return None
    if isinstance(line, Answer) and line.verdict not in _VERDICTS:
        return None
    return line


def seal(magic: bytes, payload: bytes, index: int) -> int:
    """The word of a line: its kind, and a checksum of what it says and where."""
    return zlib.crc32(magic + payload, index) | int.from_bytes(magic, "little") << 32
