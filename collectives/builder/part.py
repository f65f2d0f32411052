"""One rank's part of a plan while it is written: streams, events between them, scratch memory and kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from collectives import contracts
from collectives.builder.variant import VariantSpec
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import (
    DTYPE_NAMES,
    NOTHING,
    Buffer,
    Call,
    DoorbellGroup,
    Frame,
    Instruction,
    Kernel,
    Kind,
    Layout,
    Op,
    Operand,
    RankPart,
    RedOp,
    Region,
    Stream,
    encode,
)
from cxlemu.plan.instructions import RECORD_DTYPE, WHOLE, Records
from cxlemu.rounding import round_up

INPUT, OUTPUT, SCRATCH = 0, 1, 2
DONE_GROUP = 0
# A member of an Enum is looked up far more slowly than a name, and plans have many instructions.
_NO_REDUCTION, _REDUCTIONS = RedOp.NONE, (Op.REDUCE, Op.REDUCE_LOCAL)

Ints: TypeAlias = NDArray[np.int64]


class Event(NamedTuple):
    """All that one of this rank's streams does up to a moment. Words return events, and wait for one (``after``)."""

    stream: str
    at: int  # how many entries of the stream come before
    free: int = -1  # a stream that waits for it knows that slots of rounds up to this one are free


@dataclass
class PartBuilder:
    """Writes one rank's part of a plan. ``nbytes`` is the call's block size; offsets are in bytes.

    Attributes:
        call: The call that the plan is for.
        layout: The ring and heap that the plan lies in.
        spec: How words become instructions.
        rank: The rank whose part this is.
        foreign: The algorithm is not one of ours: its words check their arguments.
    """

    takes_clusters: ClassVar[bool] = False  # words for two levels, inside clusters of ranks and across them
    carries_checksums: ClassVar[bool] = True  # what its words send can be checked

    call: Call
    layout: Layout
    spec: VariantSpec
    rank: int
    foreign: bool = False  # the algorithm is not one of ours, and may publish what no rank retrieves
    _streams: dict[str, list[Instruction | Records]] = field(init=False)
    _regions: list[Region] = field(init=False, default_factory=list)
    _groups: list[DoorbellGroup] = field(init=False)
    _rounds: int = field(init=False, default=0)
    _awaited: dict[tuple[str, int], int] = field(init=False, default_factory=dict)  # moments, and their event's number
    _follows: dict[tuple[str, str], int] = field(init=False, default_factory=dict)  # a stream, and how far of another
    _free: dict[str, int] = field(init=False, default_factory=dict)  # up to which round a stream knows slots are free
    _kernels: dict[Kernel, int] = field(init=False, default_factory=dict)
    _scratch_bytes: int = field(init=False, default=0)
    _rows_at: tuple[int, int] = field(
        init=False, default=(0, 0)
    )  # the folds' part of scratch memory: from where, and how much

    def __post_init__(self) -> None:
        names = ("publish", "retrieve") if self.spec.overlap else ("main",)
        self._streams = {name: [] for name in names}
        self._groups = [DoorbellGroup(self.layout.done(0), self.ranks, 1)]

    # --- what an algorithm asks -------------------------------------------------------------------------------

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.call.ranks

    @property
    def nbytes(self) -> int:
        """The size of one block of the call in bytes."""
        return self.call.nbytes

    @property
    def root(self) -> int:
        """The root's rank."""
        return self.call.root

    @property
    def is_root(self) -> bool:
        """Whether this rank is the root."""
        return self.rank == self.call.root

    @property
    def peers(self) -> list[int]:
        """All other ranks, the next one first: staggered starts, so that not all turn to the same card at once."""
        return [(self.rank + step) % self.ranks for step in range(1, self.ranks)]

    @property
    def each_peer(self) -> Ints:
        """The peers in the same order, shape (ranks - 1,), for words that take many at once."""
        return (self.rank + np.arange(1, self.ranks)) % self.ranks

    @cached_property
    def sent(self) -> Ints:
        """The bytes of each block of an uneven call's input: of one block, or of one for each rank."""
        return contracts.sent_sizes(self.call, self.rank)

    @cached_property
    def received(self) -> Ints:
        """The bytes of each block of an uneven call's output: of one block, or of one from each rank."""
        return contracts.received_sizes(self.call, self.rank)

    def input(self, offset: int = 0) -> Operand:
        """Name this rank's input from ``offset`` on, in bytes, as an operand of words."""
        return Operand(Kind.BUFFER, INPUT, 0, offset)

    def output(self, offset: int = 0) -> Operand:
        """Name this rank's output from ``offset`` on, in bytes, as an operand of words."""
        return Operand(Kind.BUFFER, OUTPUT, 0, offset)

    # --- streams ----------------------------------------------------------------------------------------------

    def _stream_name(self, name: str) -> str:
        """Return the stream's name; without overlapping there is one stream, "main"."""
        return name if self.spec.overlap else "main"

    def _instructions(self, name: str) -> list[Instruction | Records]:
        return self._streams[self._stream_name(name)]

    def _emit(
        self,
        stream: str,
        op: Op,
        *,
        arg: int = 0,
        value: int = 0,
        nbytes: int = 0,
        flags: int = 0,
        dst: Operand = NOTHING,
        dst2: Operand = NOTHING,
        sources: list[Operand] | None = None,
        a: Operand = NOTHING,
    ) -> None:
        dtype, redop = 0, _NO_REDUCTION
        if op in _REDUCTIONS:
            dtype, redop = DTYPE_NAMES.index(self.call.dtype), RedOp[self.call.redop.upper()]
        operands = (*sources, NOTHING, NOTHING)[:3] if sources else (a, NOTHING, NOTHING)
        self._instructions(stream).append(
            Instruction(op, dtype, redop, flags, arg, value, nbytes, dst, dst2, *operands)
        )

    def _record(self, stream: str = "publish") -> Event:
        """Return an event that follows all of the stream so far. It costs nothing until a stream waits for it."""
        name = self._stream_name(stream)
        return Event(name, len(self._streams[name]), self._free.get(name, -1))

    def _order(self, event: Event | None, stream: str = "retrieve") -> None:
        """Let the stream go on only after the event; nothing where program order or an earlier wait implies it."""
        name = self._stream_name(stream)
        if event is None or event.stream == name:
            return
        self._free[name] = max(self._free.get(name, -1), event.free)
        if event.at > self._follows.get((name, event.stream), 0):
            self._follows[name, event.stream] = event.at
            number = self._awaited.setdefault((event.stream, event.at), len(self._awaited))
            self._emit(stream, Op.AWAIT, arg=number)

    def _with_records(self, name: str) -> list[Instruction | Records]:
        """Return a stream, and in it a RECORD of every event that another stream waits for."""
        items = self._streams[name]
        here = sorted((at, number) for (stream, at), number in self._awaited.items() if stream == name)
        for at, number in reversed(here):
            items.insert(at, Instruction(Op.RECORD, arg=number))
        return items

    def _rows(self, stream: str, times: int, emit: Callable[[], None]) -> Records:
        """Add ``times`` times what ``emit`` would add to the stream, and return the rows to fill in where they differ.

        Instructions are tuples, which are pleasant to write and slow to make: a world of a thousand ranks needs ten
        million. So a few are written once, and what differs from peer to peer is filled in as columns.
        """
        its = self._instructions(stream)
        before = len(its)
        emit()
        rows = repeated([i for i in its[before:] if isinstance(i, Instruction)], times)
        its[before:] = [rows]
        return rows

    def _knows_free(self, seq: int) -> None:
        """Note that a peer has stored to this round's slot, and so knew that all are done with the one before."""
        name = self._stream_name("retrieve")
        self._free[name] = max(self._free.get(name, -1), seq)

    # --- memory -----------------------------------------------------------------------------------------------

    def scratch(self, nbytes: int) -> Operand:
        """Reserve ``nbytes`` bytes of private memory of this rank for the whole call.

        Ask once, before the rounds: every call of this word takes more. Raises ArgumentError where ``nbytes`` is no
        whole number of 0 or more.
        """
        if not isinstance(nbytes, int) or nbytes < 0:
            raise ArgumentError(f"{self.call}: scratch takes a number of bytes, not {nbytes!r}")
        place = Operand(Kind.BUFFER, SCRATCH, 0, self._scratch_bytes)
        self._scratch_bytes += round_up(nbytes, LINE_BYTES)
        return place

    def _scratch(self, nbytes: int, row: int = 0) -> Operand:
        """Return a row of ``nbytes`` bytes that one word needs for itself, and that the next one may use again."""
        stride = round_up(nbytes, LINE_BYTES)
        at, size = self._rows_at
        if (row + 1) * stride > size:
            at = at if at + size == self._scratch_bytes else self._scratch_bytes  # it grows, or moves to the end
            self._rows_at = at, (row + 1) * stride
            self._scratch_bytes = at + (row + 1) * stride
        return Operand(Kind.BUFFER, SCRATCH, 0, at + row * stride)

    @cached_property
    def _buffers(self) -> tuple[Buffer, Buffer]:
        return contracts.buffers(self.call, self.rank)

    def _resolve(self, operand: Operand) -> tuple[str, int]:
        """Return the buffer in which a local operand really lies, in place or not, and its offset there."""
        if operand.id == SCRATCH:
            return "scratch", operand.offset
        buffer = self._buffers[operand.id]
        return (buffer.inside, buffer.at + operand.offset) if buffer.inside else (buffer.name, operand.offset)

    # --- the whole --------------------------------------------------------------------------------------------

    def finish(self) -> tuple[Frame, RankPart]:
        """Return what all ranks' parts share, and this rank's part, its streams encoded. Call it once, at the end."""
        kernels = sorted(self._kernels)  # ranks met them in other orders
        place = {self._kernels[kernel]: number for number, kernel in enumerate(kernels)}
        streams = tuple(
            Stream(name, concatenated(self._numbered(item, place) for item in self._with_records(name)))
            for name in self._streams
        )
        for items in self._streams.values():
            items.clear()  # this object is part of a cycle, and would keep the rows as long as it lives
        buffers = (*self._buffers, Buffer("scratch", self._scratch_bytes))
        frame = Frame(self._rounds, tuple(self._regions), tuple(self._groups), tuple(kernels))
        return frame, RankPart(self.rank, buffers, streams, len(self._awaited))

    @staticmethod
    def _numbered(item: Instruction | Records, place: dict[int, int]) -> Instruction | Records:
        """Fill in a COMPUTE's kernel number. Rows that stand for many are all COMPUTEs of one kernel, or hold none."""
        if isinstance(item, Instruction):
            return item._replace(arg=place[item.arg]) if item.op == Op.COMPUTE else item
        if item.size and item.flat[0]["op"] == Op.COMPUTE:
            item["arg"] = place[int(item.flat[0]["arg"])]
        return item


def repeated(template: list[Instruction], times: int) -> Records:
    """Encode a few instructions many times over.

    Args:
        template: The instructions of one row.
        times: How many rows.

    Returns:
        Records of shape (times, len(template)), to be filled in.
    """
    return np.tile(encode(template).view(WHOLE), (times, 1)).view(RECORD_DTYPE)


def concatenated(items: Iterable[Instruction | Records]) -> Records:
    """Join instructions, and records of any shape, in order. The result is 1-D and read-only."""
    pieces: list[Records] = []
    waiting: list[Instruction] = []
    for item in items:
        if isinstance(item, Instruction):
            waiting.append(item)
            continue
        pieces += [encode(waiting).view(WHOLE)] if waiting else []
        pieces.append(item.reshape(-1).view(WHOLE))
        waiting = []
    pieces += [encode(waiting).view(WHOLE)] if waiting or not pieces else []
    records = (np.concatenate(pieces) if len(pieces) > 1 else pieces[0]).view(RECORD_DTYPE)
    records.flags.writeable = False
    return records
