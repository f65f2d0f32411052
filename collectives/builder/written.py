"""What is written of one rank's part: its streams and the events between them, scratch memory, and what ranks share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DoorbellGroup, Frame, Instruction, Kernel, Op, Region, Stream, encode
from cxlemu.plan.instructions import RECORD_DTYPE, WHOLE, Records
from cxlemu.rounding import round_up

_COMPUTE = Op.COMPUTE  # a member of an Enum is looked up far more slowly than a name


class Event(NamedTuple):
    """All that one of this rank's streams does up to a moment. Words return events, and wait for one (``after``)."""

    stream: str
    at: int  # how many entries of the stream come before
    free: int = -1  # a stream that waits for it knows that slots of rounds up to this one are free


@dataclass
class Written:
    """A rank's part of a plan, as far as it is written.

    Attributes:
        streams: The entries of each stream: instructions, and records that stand for many.
        groups: The groups of doorbells that ranks wait for at once.
        regions: The regions of the ring in which blocks lie.
        kernels: What is computed, numbered as this rank met it.
        rounds: How many rounds there are.
        awaited: The moments that a stream waits for (a stream, and how many of its entries come before), and the number
            of their event.
        follows: How far a stream has waited for another: (the one that waits, the other), and entries of the other.
        free: Up to which round each stream knows that slots are free.
        scratch_bytes: The size of scratch memory.
        rows_at: The folds' part of scratch memory: from where, and how much.
    """

    streams: dict[str, list[Instruction | Records]]
    groups: list[DoorbellGroup]
    regions: list[Region] = field(default_factory=list)
    kernels: dict[Kernel, int] = field(default_factory=dict)
    rounds: int = 0
    awaited: dict[tuple[str, int], int] = field(default_factory=dict)
    follows: dict[tuple[str, str], int] = field(default_factory=dict)
    free: dict[str, int] = field(default_factory=dict)
    scratch_bytes: int = 0
    rows_at: tuple[int, int] = (0, 0)

    def record(self, stream: str) -> Event:
        """Return an event that follows all of the stream so far. It costs nothing until a stream waits for it."""
        return Event(stream, len(self.streams[stream]), self.free.get(stream, -1))

    def awaits(self, stream: str, event: Event | None) -> int | None:
        """Let the stream follow an event.

        Args:
            stream: The stream that goes on only after the event.
            event: An event of any stream, or None.

        Returns:
            The number of the event that an AWAIT must name; None where program order or an earlier wait implies it.
        """
        if event is None or event.stream == stream:
            return None
        self.knows_free(stream, event.free)
        if event.at <= self.follows.get((stream, event.stream), 0):
            return None
        self.follows[stream, event.stream] = event.at
        return self.awaited.setdefault((event.stream, event.at), len(self.awaited))

    def knows_free(self, stream: str, seq: int) -> None:
        """Note that the stream knows that slots of rounds up to ``seq`` are free."""
        self.free[stream] = max(self.free.get(stream, -1), seq)

    def kernel(self, kernel: Kernel) -> int:
        """Return the kernel's number, which is new where the kernel is."""
        return self.kernels.setdefault(kernel, len(self.kernels))

    def add_regions(self, regions: Iterable[Region]) -> int:
        """Add regions, and return the id of the first; the others follow it."""
        first = len(self.regions)
        self.regions.extend(regions)
        return first

    def scratch(self, nbytes: int) -> int:
        """Reserve scratch memory for the whole call, and return the offset at which it begins."""
        at = self.scratch_bytes
        self.scratch_bytes += round_up(nbytes, LINE_BYTES)
        return at

    def scratch_row(self, nbytes: int, row: int = 0) -> int:
        """Return the offset of a row of ``nbytes`` bytes that one word needs, and that the next may use again."""
        stride = round_up(nbytes, LINE_BYTES)
        at, size = self.rows_at
        if (row + 1) * stride > size:
            at = at if at + size == self.scratch_bytes else self.scratch_bytes  # it grows, or moves to the end
            self.rows_at = at, (row + 1) * stride
            self.scratch_bytes = at + (row + 1) * stride
        return at + row * stride

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
        here = sorted((at, number) for (stream, at), number in self.awaited.items() if stream == name)
        for at, number in reversed(here):
            items.insert(at, Instruction(Op.RECORD, arg=number))
        return items


def _numbered(records: Records, place: NDArray[np.int64]) -> Records:
    """Name the kernels of COMPUTEs by their places among those of all ranks, instead of in the order in which this rank
    met them."""
    if not len(place):
        return records
    its = records.copy()
    computes = its["op"] == _COMPUTE
    its["arg"][computes] = place[its["arg"][computes]]
    its.flags.writeable = False
    return its


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
