"""A plan: for every rank a few ordered streams of small instructions. Immutable, and built a rank at a time.

The call fixes which rank writes where and which rank waits for which doorbell, so an algorithm is a pure function from
(call, layout, rank) to that rank's part, and everything else (engines, proofs, faults, printing) consumes plans.
"""

from __future__ import annotations

import binascii
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import PlanError, PlanRuleError
from cxlemu.plan.address import AddressMap
from cxlemu.plan.instructions import GROUP_DTYPE, REGION_DTYPE, Instruction, Records, decode
from cxlemu.plan.layout import Layout

Ints = NDArray[np.int64]

KEPT_RANKS = 128  # parts of larger worlds, hundreds of MB, are not kept for those who need them one after another


@dataclass(frozen=True, slots=True)
class InHeap:
    """Where a call's arrays lie in every rank's strip of the heap: the input of rank k from ``input + k * step`` on.

    ``input``: None where inputs lie elsewhere, and peers write the result of each rank that gives its own up to them.
    ``output``: the result also lies in the heap, and may be published from there; in place it is the input.
    ``told``: they lie anywhere in their ranks' strips, and doorbells tell where; the places here stand for all others.
    ``in_process``: likewise, and each rank's strip is no part of the pool, but its own process's memory (`berths`).
    """

    input: int | None
    step: int = 0  # in place the input is block k of a larger output
    output: int | None = None
    in_process: bool = False
    told: bool = False

    @property
    def is_told(self) -> bool:
        """Whether doorbells carry the places of each rank's arrays (`Flag.PLACES`)."""
        return self.told or self.in_process

    def places(self, rank: int) -> tuple[int, int]:
        """Return where the plan places a rank's input and output in its strip, -1 for an output that is elsewhere."""
        source = -1 if self.input is None else self.input + rank * self.step
        return source, -1 if self.output is None else self.output

    @property
    def is_written_by_peers(self) -> bool:
        """Whether peers write the result, and the input lies elsewhere."""
        return self.input is None

    def __str__(self) -> str:
        if self.input is None:
            return "result in the heap" if self.told else f"result at heap+{self.output}"
        if self.told:
            return "in the heap, with its result" if self.output is not None else "in the heap"
        words = [f"{'process' if self.in_process else 'heap'}+{self.input}"] + [f"+{self.step} a rank"] * (
            self.step != 0
        )
        return " ".join(
            words + [f"to +{self.output}" if self.in_process else f"to heap+{self.output}"] * (self.output is not None)
        )


@dataclass(frozen=True, slots=True)
class Gemm:
    """A matrix product that is fused with a collective: A is m x k, B is k x n, as they are before ranks share them.

    Ranks exchange ``comm_tile_rows`` rows at once, where 0 stands for as many as a chunk of a collective takes, and
    multiply tiles of ``tile_rows`` x ``tile_cols``; ``order`` and ``transport`` are those of collectives/fused.
    """

    m: int
    n: int
    k: int
    comm_tile_rows: int = 0
    tile_rows: int = 0
    tile_cols: int = 0
    order: str = "shifted"
    transport: str = "pull"

    def __str__(self) -> str:
        words = [f"{self.m}x{self.n}x{self.k}", f"tile {self.tile_rows}x{self.tile_cols}"]
        words += [f"rows {self.comm_tile_rows}"] if self.comm_tile_rows else []
        return " ".join([*words, self.order, self.transport])


# How an algorithm combines contributions: from the left in rank order, so that all algorithms give the same bits; or in
# an order or tree of its own, which is the same on every rank that holds the result.
RANK_ORDER, UNIFORM_ORDER = FOLD_ORDERS = ("rank", "uniform")


@dataclass(frozen=True, slots=True)
class Call:
    """The computation of a plan. The machine does not interpret it; contracts do, and ranks compare it."""

    collective: str
    algorithm: str  # which algorithm and variant, such as "all" or "two_shot"
    ranks: int
    nbytes: int  # bytes of one block: see each contract
    dtype: str = "u8"
    redop: str = "none"
    root: int = 0
    in_place: bool = False
    heap: InHeap | None = None  # zero copy: the input is published where it lies
    cluster: int = 1  # on two levels: how many consecutive ranks exchange among themselves first, and fold apart
    gemm: Gemm | None = None  # fused with a matrix product
    fold_order: str = RANK_ORDER  # as the algorithm declares it: one of FOLD_ORDERS
    counts: tuple[int, ...] = ()  # bytes of each block where these differ: see the contracts of uneven collectives

    def tag(self) -> int:
        """Return 16 bits of this call, a checksum of its fields.

        A communicator mixes them with those of all calls before it; they travel in every doorbell word, so that ranks
        which did not call the same notice, but for 1 in 32,768, at the latest when one next waits for the other.
        ``in_place`` is not in it: one rank may call in place and its peer not.
        """
        text = "|".join(str(getattr(self, f.name)) for f in fields(self) if f.name != "in_place")
        return binascii.crc_hqx(text.encode(), 0)

    def __str__(self) -> str:
        words = [self.collective, self.algorithm, f"{self.nbytes} B", self.dtype]
        words += [self.redop] if self.redop != "none" else []
        words += [f"root {self.root}"] if self.root else []
        words += [f"blocks of {_some(self.counts)} B"] if self.counts else []
        words += ["in place"] if self.in_place else []
        words += [str(part) for part in (self.heap, self.gemm) if part]
        words += [f"clusters of {self.cluster}"] if self.cluster > 1 else []
        words += [f"{self.fold_order} fold order"] if self.fold_order != RANK_ORDER else []
        return " ".join(words)


def _some(counts: tuple[int, ...], most: int = 8) -> str:
    return ", ".join(map(str, counts[:most])) + (f", ... ({len(counts)} in all)" if len(counts) > most else "")


@dataclass(frozen=True, slots=True)
class Buffer:
    """Local memory of one rank. ``inside`` names the buffer whose bytes from ``at`` on these are (in place)."""

    name: str
    nbytes: int
    inside: str = ""
    at: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """Where some bytes lie; the same row for every rank. Logical offset 0 is ``start`` in its map.

    They lie in the round's slot or, with ``heap``, at a fixed place in the heap, where a round (``seq``) means nothing.
    In the heap the rank whose strip it is writes them. With ``writer_bytes``, it has given them up to its peers for the
    call: block k of so many bytes is written by rank ``first_writer + k``.
    """

    first_card: int
    cards: int
    granularity_bytes: int
    base: int
    start: int
    nbytes: int
    heap: bool = False
    writer_bytes: int = 0
    first_writer: int = 0

    @property
    def map(self) -> AddressMap:
        """The interleaving of the region's bytes over cards."""
        return AddressMap(self.first_card, self.cards, self.granularity_bytes, self.base, self.start)


@dataclass(frozen=True, slots=True)
class DoorbellGroup:
    """``count`` doorbells that are waited for together: first, first + stride, ..."""

    first: int
    count: int
    stride: int

    @property
    def doorbells(self) -> range:
        """The doorbells' ids."""
        return range(self.first, self.first + self.count * self.stride, self.stride)


@dataclass(frozen=True, slots=True, order=True)
class Kernel:
    """A named local kernel and its integer parameters, such as ("gemm", (m, n, k))."""

    name: str
    parameters: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}({', '.join(map(str, self.parameters))})"


@dataclass(frozen=True, slots=True)
class Frame:
    """The tables that all ranks share."""

    rounds: int = 0  # how many epochs a call takes
    regions: tuple[Region, ...] = ()
    groups: tuple[DoorbellGroup, ...] = ()
    kernels: tuple[Kernel, ...] = ()


@dataclass(frozen=True)
class Stream:
    """Instructions in program order. A WAIT that is not satisfied yields to the rank's other streams."""

    name: str
    records: Records

    @cached_property
    def instructions(self) -> list[Instruction]:
        """The records as Python objects. Raises ValueError as `decode` does."""
        return decode(self.records)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Stream) and self.name == other.name and self.records.tobytes() == other.records.tobytes()
        )

    def __hash__(self) -> int:
        return hash((self.name, self.records.tobytes()))


@dataclass(frozen=True)
class RankPart:
    """The part of one rank: its buffers, its streams, and how many events these have."""

    rank: int
    buffers: tuple[Buffer, ...]
    streams: tuple[Stream, ...]
    events: int = 0

    @property
    def instruction_count(self) -> int:
        """The number of instructions of all streams."""
        return sum(len(stream.records) for stream in self.streams)

    @property
    def memory_bytes(self) -> int:
        """The bytes of the rank's buffers, all together."""
        return sum(buffer.nbytes for buffer in self.buffers if not buffer.inside)


Builder = Callable[[int], tuple[Frame, RankPart]]


@dataclass(frozen=True, eq=False)
class Plan:
    """For each rank the instructions of one call, built when they are first asked for. Equal digests, equal plans."""

    call: Call
    layout: Layout
    build: Builder = field(repr=False)
    _parts: dict[int, RankPart] = field(default_factory=dict, repr=False)
    _frames: list[Frame] = field(default_factory=list, repr=False)

    def part(self, rank: int) -> RankPart:
        """Return one rank's part, built when it is first asked for."""
        if rank not in self._parts:
            self._parts[rank] = self._built(rank)
        return self._parts[rank]

    def _built(self, rank: int) -> RankPart:
        frame, part = self.build(rank)
        if self._frames and frame != self._frames[0]:
            raise PlanRuleError(
                f"{self.call}: rank {rank} builds other tables (regions, groups, rounds) than its peers"
            )
        if not self._frames:
            self._frames.append(frame)
        return part

    @property
    def frame(self) -> Frame:
        """The shared tables; builds rank 0's part when no part was built yet."""
        if not self._frames:
            self.part(0)
        return self._frames[0]

    @property
    def ranks(self) -> int:
        return self.call.ranks

    @property
    def parts(self) -> list[RankPart]:
        """The parts of all ranks, by rank; builds those that were not built yet."""
        return [self.part(rank) for rank in range(self.ranks)]

    def each_part(self) -> Iterator[RankPart]:
        """Yield the parts of all ranks, by rank; those of more than KEPT_RANKS ranks are built for this once."""
        keep = self.ranks <= KEPT_RANKS
        for rank in range(self.ranks):
            yield self.part(rank) if keep or rank in self._parts else self._built(rank)

    @property
    def rounds(self) -> int:
        """How many epochs the call takes."""
        return self.frame.rounds

    @property
    def digest(self) -> str:
        """The SHA-256 of the whole plan, all ranks, in hexadecimal digits: equal digests, equal plans."""
        state = hashlib.sha256(repr((self.call, self.layout, self.frame)).encode())
        for part in self.parts:
            state.update(repr((part.rank, part.buffers, part.events)).encode())
            for stream in part.streams:
                state.update(stream.name.encode() + b"\0" + stream.records.tobytes())
        return state.hexdigest()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Plan)
            and (self.call, self.layout) == (other.call, other.layout)
            and (self.digest == other.digest)
        )

    def __hash__(self) -> int:
        return hash((self.call, self.layout))

    def with_part(self, part: RankPart) -> Plan:
        """Return a copy in which the rank of ``part`` does something else: how faults and tests mutate plans."""
        return Plan(self.call, self.layout, lambda rank: (self.frame, part if rank == part.rank else self.part(rank)))


def berths(frame: Frame, layout: Layout, heap: InHeap) -> Ints:
    """Find which arrays the regions of a call are parts of whose ranks tell where these lie."""
    strips = {(strip.card, strip.offset): rank for rank in range(layout.ranks) for strip in (layout.heap_strip(rank),)}
    found = np.full((len(frame.regions), 3), (-1, 0, 0), np.int64)
    for number, region in enumerate(frame.regions):
        if region.heap:
            owner = strips.get((region.first_card, region.base), -1)
            if owner < 0 or region.cards != 1:
                raise PlanError(f"region {number} in the heap is not part of a rank's strip")
            if heap.output is not None and region.start >= heap.output:
                found[number] = owner, 1, region.start - heap.output
            else:
                assert heap.input is not None  # where peers write results, these are all that lies there
                found[number] = owner, 0, region.start - heap.input - owner * heap.step
    return found


def region_table(regions: tuple[Region, ...]) -> Records:
    """Return regions as C reads them: an array of REGION_DTYPE."""
    rows = [
        (r.first_card, r.cards, r.granularity_bytes, r.base, r.start, r.nbytes, r.heap + (r.writer_bytes > 0))
        for r in regions
    ]
    return np.array(rows, dtype=REGION_DTYPE)


def group_table(groups: tuple[DoorbellGroup, ...]) -> Records:
    """Return doorbell groups as C reads them: an array of GROUP_DTYPE."""
    return np.array([(g.first, g.count, g.stride) for g in groups], dtype=GROUP_DTYPE)
