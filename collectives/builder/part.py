"""One rank's part of a plan: what an algorithm asks of its call, and how words become instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from collectives import contracts
from collectives.builder.variant import VariantSpec
from collectives.builder.written import Event, Written, repeated
from cxlemu.errors import ArgumentError
from cxlemu.plan import (
    DTYPE_NAMES,
    NOTHING,
    Buffer,
    Call,
    DoorbellGroup,
    Frame,
    Instruction,
    Kind,
    Layout,
    Op,
    Operand,
    RankPart,
    RedOp,
)
from cxlemu.plan.instructions import Records

INPUT, OUTPUT, SCRATCH = 0, 1, 2
DONE_GROUP = 0
# A member of an Enum is looked up far more slowly than a name, and plans have many instructions.
_NO_REDUCTION, _REDUCTIONS = RedOp.NONE, (Op.REDUCE, Op.REDUCE_LOCAL)

Ints: TypeAlias = NDArray[np.int64]


@dataclass
class PartBuilder:
    """Writes one rank's part of a plan. ``nbytes`` is the call's block size; offsets are in bytes.

    Attributes:
        call: The call that the plan is for.
        layout: The ring and heap that the plan lies in.
        spec: How words become instructions.
        rank: The rank whose part this is.
        foreign: The algorithm is not one of ours: its words check their arguments.
        written: What is written of the part so far.
    """

    takes_clusters: ClassVar[bool] = False  # words for two levels, inside clusters of ranks and across them
    carries_checksums: ClassVar[bool] = True  # what its words send can be checked

    call: Call
    layout: Layout
    spec: VariantSpec
    rank: int
    foreign: bool = False  # the algorithm is not one of ours, and may publish what no rank retrieves
    written: Written = field(init=False)

    def __post_init__(self) -> None:
        names = ("publish", "retrieve") if self.spec.overlap else ("main",)
        everyone = DoorbellGroup(self.layout.done(0), self.ranks, 1)
        self.written = Written({name: [] for name in names}, [everyone])

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
        return self.written.streams[self._stream_name(name)]

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
        return self.written.record(self._stream_name(stream))

    def _order(self, event: Event | None, stream: str = "retrieve") -> None:
        """Let the stream go on only after the event; nothing where program order or an earlier wait implies it."""
        number = self.written.awaits(self._stream_name(stream), event)
        if number is not None:
            self._emit(stream, Op.AWAIT, arg=number)

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
        self.written.knows_free(self._stream_name("retrieve"), seq)

    # --- memory -----------------------------------------------------------------------------------------------

    def scratch(self, nbytes: int) -> Operand:
        """Reserve ``nbytes`` bytes of private memory of this rank for the whole call.

        Ask once, before the rounds: every call of this word takes more. Raises ArgumentError where ``nbytes`` is no
        whole number of 0 or more.
        """
        if not isinstance(nbytes, int) or nbytes < 0:
            raise ArgumentError(f"{self.call}: scratch takes a number of bytes, not {nbytes!r}")
        return Operand(Kind.BUFFER, SCRATCH, 0, self.written.scratch(nbytes))

    def _scratch(self, nbytes: int, row: int = 0) -> Operand:
        """Return a row of ``nbytes`` bytes that one word needs for itself, and that the next one may use again."""
        return Operand(Kind.BUFFER, SCRATCH, 0, self.written.scratch_row(nbytes, row))

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
        frame, streams = self.written.finish()
        buffers = (*self._buffers, Buffer("scratch", self.written.scratch_bytes))
        return frame, RankPart(self.rank, buffers, streams, len(self.written.awaited))
