"""One rank's part of a plan: what its variant declares, what is written, and how words become instructions."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from collectives import contracts
from cxlemu.errors import BuilderError, DeclinedError
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
from cxlemu.units import counted

INPUT, OUTPUT, SCRATCH = 0, 1, 2
DONE_GROUP = 0
# A member of an Enum is looked up far more slowly than a name, and plans have many instructions.
_NO_REDUCTION, _REDUCTIONS = RedOp.NONE, (Op.REDUCE, Op.REDUCE_LOCAL)

Ints: TypeAlias = NDArray[np.int64]


# --- what a variant declares --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VariantSpec:
    """States how a variant makes instructions of words; `carriers.carrier_of` finds the carrier that does so."""

    name: str
    interleaved: bool = True  # blocks spread over cards; otherwise allocated one after another
    chunks: int = 1  # at most this many doorbells per block
    overlap: bool = False  # publishing and retrieving are streams of their own
    in_lines: bool = False  # payload inside the doorbell's line, nothing in data slots
    zero_copy: bool = False  # the input is published where it lies in the heap
    pushes: bool = False  # ranks write to their peers' results, which lie in the heap
    checked: bool = False  # a checksum travels with every doorbell, and what is read is compared with it
    staged: bool = False  # what is folded is read into scratch memory first, from one peer after another
    finely: bool = True  # a block that all read is dealt over all cards in smaller granules than the pool's
    slice_bytes: int = 0  # the largest slice in which ranks send to each other (collectives/algorithms/nccl)

    @property
    def takes_heap(self) -> bool:
        """Whether arrays of the call lie in the heap."""
        return self.zero_copy or self.pushes


NAIVE = VariantSpec("naive", interleaved=False)
AGGREGATE = VariantSpec("aggregate")
ALL = VariantSpec("all", chunks=4, overlap=True)
LINE = VariantSpec("line", in_lines=True)
ZERO_COPY = VariantSpec("zero_copy", chunks=8, overlap=True, zero_copy=True)
STAGED = VariantSpec("staged", chunks=8, overlap=True, staged=True)
PUSH = VariantSpec("push", chunks=4, overlap=True, pushes=True)
VARIANTS = {spec.name: spec for spec in (NAIVE, AGGREGATE, ALL, LINE, ZERO_COPY, STAGED)}


# --- what is written ----------------------------------------------------------------------------------------------


_COMPUTE = Op.COMPUTE  # a member of an Enum is looked up far more slowly than a name


class Event(NamedTuple):
    """All that one of this rank's streams does up to a moment. Words return events, and wait for one (``after``)."""

    stream: str
    at: int  # how many entries of the stream come before
    free: int = -1  # a stream that waits for it knows that slots of rounds up to this one are free


@dataclass
class Written:
    """A rank's part of a plan, as far as it is written."""

    # the entries of each stream: instructions, and records that stand for many
    streams: dict[str, list[Instruction | Records]]
    groups: list[DoorbellGroup]  # the groups of doorbells that ranks wait for at once
    regions: list[Region] = field(default_factory=list)  # the regions of the ring in which blocks lie
    kernels: dict[Kernel, int] = field(default_factory=dict)  # what is computed, numbered as this rank met it
    rounds: int = 0  # how many rounds there are
    # by awaited moment (a stream, and how many of its entries come before): the number of its event
    awaited: dict[tuple[str, int], int] = field(default_factory=dict)
    # by (waiting stream, other stream): how many entries of the other it has waited for
    follows: dict[tuple[str, str], int] = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)  # up to which round each stream knows that slots are free
    scratch_bytes: int = 0
    rows_at: tuple[int, int] = (0, 0)  # the folds' part of scratch memory: from where, and how much

    def record(self, stream: str) -> Event:
        """Return an event that follows all of the stream so far. It costs nothing until a stream waits for it."""
        return Event(stream, len(self.streams[stream]), self.free.get(stream, -1))

    def awaits(self, stream: str, event: Event | None) -> int | None:
        """Let the stream follow an event; return the event's number for an AWAIT, or None where one is needless."""
        if event is None or event.stream == stream:
            return None
        self.knows_free(stream, event.free)
        if event.at <= self.follows.get((stream, event.stream), 0):
            return None
        self.follows[stream, event.stream] = event.at
        return self.awaited.setdefault((event.stream, event.at), len(self.awaited))

    def knows_free(self, stream: str, seq: int) -> None:
        self.free[stream] = max(self.free.get(stream, -1), seq)

    def kernel(self, kernel: Kernel) -> int:
        return self.kernels.setdefault(kernel, len(self.kernels))

    def add_regions(self, regions: Iterable[Region]) -> int:
        """Add regions, and return the id of the first; the others follow it."""
        first = len(self.regions)
        self.regions.extend(regions)
        return first

    def scratch(self, nbytes: int) -> int:
        """Reserve scratch memory for the whole call, and return the offset at which it begins."""
        offset = self.scratch_bytes
        self.scratch_bytes += round_up(nbytes, LINE_BYTES)
        return offset

    def scratch_row(self, nbytes: int, row: int = 0) -> int:
        """Return the offset of a row of ``nbytes`` bytes that one word needs, and that the next may use again."""
        stride = round_up(nbytes, LINE_BYTES)
        offset, size = self.rows_at
        if (row + 1) * stride > size:
            offset = (
                offset if offset + size == self.scratch_bytes else self.scratch_bytes
            )  # it grows, or moves to the end
            self.rows_at = offset, (row + 1) * stride
            self.scratch_bytes = offset + (row + 1) * stride
        return offset + row * stride

    def finish(self) -> tuple[Frame, tuple[Stream, ...]]:
        """Return what all ranks' parts share, and this part's streams, encoded. Call it once, at the end."""
        kernels = sorted(self.kernels)  # ranks met them in other orders
        place = np.argsort([self.kernels[kernel] for kernel in kernels])
        streams = tuple(Stream(name, _numbered(concatenated(self._with_records(name)), place)) for name in self.streams)
        for items in self.streams.values():
            items.clear()  # the builder is part of a cycle, and would keep the rows as long as it lives
        return Frame(self.rounds, tuple(self.regions), tuple(self.groups), tuple(kernels)), streams

    def _with_records(self, name: str) -> list[Instruction | Records]:
        """Return a stream, and in it a RECORD of every event that another stream waits for."""
        items = self.streams[name]
        here = sorted((offset, number) for (stream, offset), number in self.awaited.items() if stream == name)
        for offset, number in reversed(here):
            items.insert(offset, Instruction(Op.RECORD, arg=number))
        return items


def _numbered(records: Records, place: NDArray[np.int64]) -> Records:
    """Name the kernels of COMPUTEs by their places among those of all ranks, instead of in the order in which this rank
    met them."""
    if not len(place):
        return records
    numbered = records.copy()
    computes = numbered["op"] == _COMPUTE
    numbered["arg"][computes] = place[numbered["arg"][computes]]
    numbered.flags.writeable = False
    return numbered


def repeated(template: list[Instruction], times: int) -> Records:
    """Encode a few instructions many times over, as records of shape (times, len(template)) to be filled in."""
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


# --- what an algorithm builds with --------------------------------------------------------------------------------


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

    def decline(self, reason: str) -> NoReturn:
        """Say that the algorithm does not take this call: it is no mistake, and nothing is proved or run.

        Args:
            reason: Why not, as the end of a sentence.

        Raises:
            DeclinedError: Always.
        """
        said = reason or "the algorithm declines it, and gives no reason"
        raise DeclinedError(f"{self.call}, {counted(self.ranks, 'rank')}: {said}")

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
        instructions = self._instructions(stream)
        before = len(instructions)
        emit()
        rows = repeated([i for i in instructions[before:] if isinstance(i, Instruction)], times)
        instructions[before:] = [rows]
        return rows

    def _knows_free(self, seq: int) -> None:
        """Note that a peer has stored to this round's slot, and so knew that all are done with the one before."""
        self.written.knows_free(self._stream_name("retrieve"), seq)

    # --- memory -----------------------------------------------------------------------------------------------

    def scratch(self, nbytes: int) -> Operand:
        """Reserve ``nbytes`` bytes of private memory of this rank for the whole call.

        Ask once, before the rounds: every call of this word takes more. Raises BuilderError where ``nbytes`` is no
        whole number of 0 or more.
        """
        if not isinstance(nbytes, int) or nbytes < 0:
            raise BuilderError(f"{self.call}: scratch takes a number of bytes, not {nbytes!r}")
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
