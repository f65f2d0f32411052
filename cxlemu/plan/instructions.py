"""The instruction set: what a record of a plan may say.

A record is one row of a NumPy structured array, so C reads it without conversion. Not every instruction uses every
field; ``SIGNATURES`` says which. Pool bytes are named by (region, sequence number, offset): the sequence number is the
round, relative to the epoch the call starts at, and the region says where in that round's slot the bytes lie, or where
in the heap, which knows no rounds (0).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from cxlemu.choices import DTYPE_NAMES


class Op(IntEnum):
    """The opcode of an instruction."""

    WRITE = 1  # dst region <- a buffer, through this host's cache
    WRITE_NT = 2  # dst region <- a buffer, non-temporal: posted, in the pool only after FENCE
    FLUSH = 3  # a region: start writing its lines back; complete only after FENCE
    FENCE = 4  # everything this rank flushed or wrote non-temporally is now in the pool
    SIGNAL = 5  # doorbell arg shows value; fences nothing else
    WAIT = 6  # until doorbell arg >= value
    WAIT_ALL = 7  # until every doorbell of group arg >= value
    INVALIDATE = 8  # a region: drop its lines; later reads fetch from the pool
    READ = 9  # dst buffer (and dst2 region) <- a region
    REDUCE = 10  # dst buffer (and dst2 region) <- a op b [op c], each a buffer or a region, folded from the left
    COPY = 11  # dst buffer <- a buffer
    REDUCE_LOCAL = 12  # dst buffer <- a op b [op c], all buffers
    COMPUTE = 13  # kernel arg on (dst, a, b, c) buffers
    RECORD = 14  # event arg of this rank has happened
    AWAIT = 15  # until event arg of this rank has happened
    SIGNAL_DATA = 16  # as SIGNAL, with up to 56 bytes of a buffer in the doorbell's own line
    WAIT_DATA = 17  # as WAIT, then dst buffer <- the payload


class Kind(IntEnum):
    """Kinds of memory that an operand names."""

    NONE = 0
    BUFFER = 1
    REGION = 2


class Flag(IntEnum):
    """A bit of an instruction's flags."""

    DIVIDE = 1  # REDUCE, REDUCE_LOCAL: divide the result by arg (the last step of avg)
    PLACES = 2  # SIGNAL, SIGNAL_DATA: the doorbell tells where its rank's arrays lie; WAIT, WAIT_DATA: it is told


class RedOp(IntEnum):
    """The operation that combines the operands of a reduction."""

    NONE = 0
    SUM = 1
    PROD = 2
    MIN = 3
    MAX = 4
    AVG = 5
    BAND = 6
    BOR = 7
    BXOR = 8


_SCALARS = (
    *(np.uint8, np.int8, np.int32, np.int64, np.float16, ml_dtypes.bfloat16, np.float32, np.float64),
    *(np.int16, np.uint16, np.uint32, np.uint64, np.bool_, np.complex64, np.complex128),
)
DTYPES: dict[str, np.dtype[np.generic]] = dict(zip(DTYPE_NAMES, map(np.dtype, _SCALARS), strict=True))

OPERAND_DTYPE = np.dtype([("kind", "<u2"), ("id", "<u2"), ("seq", "<i4"), ("offset", "<i8")])
OPERAND_FIELDS = ("dst", "dst2", "a", "b", "c")
RECORD_DTYPE = np.dtype(
    [("op", "u1"), ("dtype", "u1"), ("redop", "u1"), ("flags", "u1"), ("arg", "<i4")]
    + [("value", "<i8"), ("nbytes", "<i8")]
    + [(name, OPERAND_DTYPE) for name in OPERAND_FIELDS]
)
WHOLE = np.dtype((np.void, RECORD_DTYPE.itemsize))  # NumPy copies structures field by field, and bytes at once
REGION_DTYPE = np.dtype(
    [
        ("first_card", "<i4"),
        ("cards", "<i4"),
        ("granularity_bytes", "<i8"),
        ("base", "<i8"),
        ("start", "<i8"),
        ("bytes", "<i8"),
        ("heap", "<i8"),  # 0: in the round's slot, 1: in the heap, 2: there, and written by peers
    ]
)
GROUP_DTYPE = np.dtype([("first", "<i4"), ("count", "<i4"), ("stride", "<i4")])

Records = NDArray[np.void]


class Operand(NamedTuple):
    """Bytes that an instruction names.

    Attributes:
        kind: A `Kind`.
        id: Index of the buffer in the rank's buffers, or of the region in the plan's regions.
        seq: The round of a region in a slot, relative to the call's first epoch; else 0.
        offset: Bytes from the start of the buffer or region.
    """

    kind: int = Kind.NONE
    id: int = 0
    seq: int = 0
    offset: int = 0

    def at(self, offset: int) -> Operand:
        """Return the place ``offset`` bytes further on."""
        return Operand(self.kind, self.id, self.seq, self.offset + offset)


NOTHING = Operand()


class Instruction(NamedTuple):
    """A record as Python sees it; field for field the row of RECORD_DTYPE.

    `Op` says what each instruction does, ``SIGNATURES`` which fields it uses; the others are zero.
    """

    op: Op
    dtype: int = 0  # index into ``DTYPE_NAMES``
    redop: RedOp = RedOp.NONE
    flags: int = 0  # bits of `Flag`
    arg: int = 0  # the doorbell, group, event or kernel; with ``Flag.DIVIDE`` the divisor
    value: int = 0  # the epoch that a doorbell is to show or is waited for, relative to the call's first
    nbytes: int = 0  # how many bytes of each operand; for a COMPUTE, of its output
    dst: Operand = NOTHING
    dst2: Operand = NOTHING  # a second target, in the pool
    a: Operand = NOTHING  # the first source; for FLUSH and INVALIDATE the range
    b: Operand = NOTHING  # the second source
    c: Operand = NOTHING  # the third source

    @property
    def operands(self) -> tuple[Operand, ...]:
        """All operands that name something, targets first."""
        return tuple(o for o in self[7:] if o.kind)


def encode(instructions: list[Instruction]) -> Records:
    """Make records of instructions: a read-only array of RECORD_DTYPE."""
    records = np.array(instructions, dtype=RECORD_DTYPE)
    records.flags.writeable = False
    return records


def decode(records: Records) -> list[Instruction]:
    """Make instructions of records. Raises ValueError for an opcode or reduction that does not exist."""
    return [
        Instruction(Op(r[0]), r[1], RedOp(r[2]), *r[3:7], *(Operand(*operand) for operand in r[7:]))
        for r in records.tolist()
    ]


TELLING = (Op.SIGNAL, Op.SIGNAL_DATA, Op.WAIT, Op.WAIT_DATA)  # which may have Flag.PLACES


class Signature(NamedTuple):
    """What an instruction's fields mean: operand field -> allowed kinds (NONE among them: may be left out)."""

    operands: dict[str, frozenset[Kind]]
    arg: str = ""  # "doorbell", "group", "event", "kernel" or "" (unused)
    typed: bool = False  # uses dtype and redop
    sized: bool = True  # uses nbytes


_BUFFER, _REGION = frozenset({Kind.BUFFER}), frozenset({Kind.REGION})
_EITHER = _BUFFER | _REGION
_MAYBE = frozenset({Kind.NONE})
_REDUCE_FROM = {"a": _EITHER, "b": _EITHER, "c": _EITHER | _MAYBE}
_BUFFERS_FROM = {"a": _BUFFER, "b": _BUFFER, "c": _BUFFER | _MAYBE}

SIGNATURES: dict[Op, Signature] = {
    Op.WRITE: Signature({"dst": _REGION, "a": _BUFFER}),
    Op.WRITE_NT: Signature({"dst": _REGION, "a": _BUFFER}),
    Op.FLUSH: Signature({"a": _REGION}),
    Op.FENCE: Signature({}, sized=False),
    Op.SIGNAL: Signature({}, arg="doorbell", sized=False),
    Op.WAIT: Signature({}, arg="doorbell", sized=False),
    Op.WAIT_ALL: Signature({}, arg="group", sized=False),
    Op.INVALIDATE: Signature({"a": _REGION}),
    Op.READ: Signature({"dst": _BUFFER, "dst2": _REGION | _MAYBE, "a": _REGION}),
    Op.REDUCE: Signature({"dst": _BUFFER, "dst2": _REGION | _MAYBE, **_REDUCE_FROM}, typed=True),
    Op.COPY: Signature({"dst": _BUFFER, "a": _BUFFER}),
    Op.REDUCE_LOCAL: Signature({"dst": _BUFFER, **_BUFFERS_FROM}, typed=True),
    Op.COMPUTE: Signature(
        {"dst": _BUFFER, "a": _BUFFER | _MAYBE, "b": _BUFFER | _MAYBE, "c": _BUFFER | _MAYBE}, arg="kernel"
    ),
    Op.RECORD: Signature({}, arg="event", sized=False),
    Op.AWAIT: Signature({}, arg="event", sized=False),
    Op.SIGNAL_DATA: Signature({"a": _BUFFER}, arg="doorbell"),
    Op.WAIT_DATA: Signature({"dst": _BUFFER}, arg="doorbell"),
}
