"""One rank's part of a plan while it is written: streams, events between them, scratch memory and kernels."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from collectives import contracts
from collectives.builder.style import Style
from collectives.rows import Ints, concatenated
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import (
    DTYPE_NAMES,
    NOTHING,
    Buffer,
    Call,
    Frame,
    Group,
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
)
from cxlemu.plan.instructions import Records
from cxlemu.rounding import round_up

INPUT, OUTPUT, SCRATCH = 0, 1, 2
DONE_GROUP = 0


@dataclass
class Part:
    """``nbytes`` is the call's block size; offsets are in bytes."""

    call: Call
    layout: Layout
    style: Style
    rank: int
    foreign: bool = False  # the algorithm is not one of ours, and may publish what nobody retrieves
    _streams: dict[str, list[Instruction | Records]] = field(init=False)
    _regions: list[Region] = field(init=False, default_factory=list)
    _groups: list[Group] = field(init=False)
    _rounds: int = field(init=False, default=0)
    _events: int = field(init=False, default=0)
    _kernels: dict[Kernel, int] = field(init=False, default_factory=dict)
    _scratch_bytes: int = field(init=False, default=0)
    _reserved: int = field(init=False, default=0)  # bytes of scratch memory that folds leave alone

    def __post_init__(self) -> None:
        names = ("publish", "retrieve") if self.style.overlap else ("main",)
        self._streams = {name: [] for name in names}
        self._groups = [Group(self.layout.done(0), self.ranks, 1)]

    # --- what an algorithm asks -------------------------------------------------------------------------------

    @property
    def ranks(self) -> int:
        return self.call.ranks

    @property
    def nbytes(self) -> int:
        return self.call.nbytes

    @property
    def root(self) -> int:
        return self.call.root

    @property
    def is_root(self) -> bool:
        return self.rank == self.call.root

    @property
    def peers(self) -> list[int]:
        """Everyone else, the next rank first: staggered starts, so that not all turn to the same card at once."""
        return [(self.rank + step) % self.ranks for step in range(1, self.ranks)]

    @property
    def each_peer(self) -> Ints:
        """The same, for words that take many at once."""
        return (self.rank + np.arange(1, self.ranks)) % self.ranks

    def input(self, offset: int = 0) -> Operand:
        return Operand(Kind.BUFFER, INPUT, 0, offset)

    def output(self, offset: int = 0) -> Operand:
        return Operand(Kind.BUFFER, OUTPUT, 0, offset)

    # --- streams ----------------------------------------------------------------------------------------------

    def _instructions(self, name: str) -> list[Instruction | Records]:
        """Where overlapping is not asked for, there is one."""
        return self._streams[name if self.style.overlap else "main"]

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
        dtype, redop = 0, RedOp.NONE
        if op is Op.REDUCE or op is Op.REDUCE_LOCAL:
            dtype, redop = DTYPE_NAMES.index(self.call.dtype), RedOp[self.call.redop.upper()]
        operands = (*sources, NOTHING, NOTHING)[:3] if sources else (a, NOTHING, NOTHING)
        self._instructions(stream).append(
            Instruction(op, dtype, redop, flags, arg, value, nbytes, dst, dst2, *operands)
        )

    def _record(self, stream: str = "publish") -> int | None:
        """An event that follows all of the stream so far; with one stream, program order says as much."""
        if not self.style.overlap:
            return None
        self._events += 1
        self._emit(stream, Op.RECORD, arg=self._events - 1)
        return self._events - 1

    def _order(self, event: int | None, stream: str = "retrieve") -> None:
        if event is not None:
            self._emit(stream, Op.AWAIT, arg=event)

    # --- memory -----------------------------------------------------------------------------------------------

    def _scratch(self, nbytes: int, row: int = 0) -> Operand:
        stride = round_up(nbytes, LINE_BYTES)
        self._scratch_bytes = max(self._scratch_bytes, self._reserved + (row + 1) * stride)
        return Operand(Kind.BUFFER, SCRATCH, 0, self._reserved + row * stride)

    def _reserve(self, nbytes: int) -> Operand:
        """Scratch memory for the whole call, before anything is folded."""
        place = Operand(Kind.BUFFER, SCRATCH, 0, self._reserved)
        self._reserved += round_up(nbytes, LINE_BYTES)
        self._scratch_bytes = max(self._scratch_bytes, self._reserved)
        return place

    @cached_property
    def _buffers(self) -> tuple[Buffer, Buffer]:
        return contracts.buffers(self.call, self.rank)

    def _resolve(self, operand: Operand) -> tuple[str, int]:
        """The memory that a local operand really is, in place or not."""
        buffer = self._buffers[operand.id]
        return (buffer.inside, buffer.at + operand.offset) if buffer.inside else (buffer.name, operand.offset)

    # --- the whole --------------------------------------------------------------------------------------------

    def finish(self) -> tuple[Frame, RankPart]:
        kernels = sorted(self._kernels)  # ranks met them in other orders
        place = {self._kernels[kernel]: number for number, kernel in enumerate(kernels)}
        streams = tuple(
            Stream(name, concatenated(self._numbered(item, place) for item in items))
            for name, items in self._streams.items()
        )
        buffers = (*self._buffers, Buffer("scratch", self._scratch_bytes))
        frame = Frame(self._rounds, tuple(self._regions), tuple(self._groups), tuple(kernels))
        return frame, RankPart(self.rank, buffers, streams, self._events)

    @staticmethod
    def _numbered(item: Instruction | Records, place: dict[int, int]) -> Instruction | Records:
        """With a kernel's number in the table. Rows that stand for many are all COMPUTEs of one kernel, or none."""
        if isinstance(item, Instruction):
            return item._replace(arg=place[item.arg]) if item.op == Op.COMPUTE else item
        if item.size and item.flat[0]["op"] == Op.COMPUTE:
            item["arg"] = place[int(item.flat[0]["arg"])]
        return item
