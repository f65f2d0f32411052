"""The line in front of a message: its size, its tag, its elements' size and, where they fit, its bytes."""

from __future__ import annotations

import struct
from typing import NamedTuple

from cxlemu.errors import MismatchError
from cxlemu.memory.protocol import PAYLOAD_BYTES

_HEAD = struct.Struct("<QiI")
INLINE_BYTES = PAYLOAD_BYTES - _HEAD.size
_LINE = struct.Struct(f"<QiI{INLINE_BYTES}s")
assert _LINE.size == PAYLOAD_BYTES

TAG_MAX = 2**31 - 1
MESSAGE_BYTES_MAX = 1 << 40
ITEM_BYTES_MAX = 1 << 31


class Envelope(NamedTuple):
    """What a message is, before its bytes."""

    nbytes: int
    tag: int
    itemsize: int
    inline: bytes  # all its bytes, where they fit `INLINE_BYTES`; else nothing


# pack(nbytes, tag, itemsize, inline) -> the line's payload, zeros behind what is there
pack = _LINE.pack


def unpack(line: bytes | bytearray, source: int) -> Envelope:
    """Read the line of a message from rank ``source``. Raises MismatchError for a line that no rank writes."""
    nbytes, tag, itemsize, inline = _LINE.unpack(line)
    if nbytes > MESSAGE_BYTES_MAX or tag < 0 or itemsize > ITEM_BYTES_MAX:
        raise MismatchError(f"rank {source} sent a damaged envelope: a message of {nbytes} bytes with tag {tag}")
    return Envelope(nbytes, tag, itemsize, inline[:nbytes] if nbytes <= INLINE_BYTES else b"")
