"""The few words in which algorithms are written.

An algorithm says who publishes which bytes to whom, who retrieves or folds them, and where the result goes. The
builder turns each word into the instructions that make it right on a pool without coherence:

    publish    wait until the slot is free, WRITE, FLUSH, FENCE, SIGNAL
    retrieve   WAIT, INVALIDATE, READ
    fold       the same for every peer, then REDUCE in rank order

How it does so is a Style: where blocks lie, how many chunks they are cut into, and whether publishing and retrieving
are streams of their own. So one page of an algorithm gives all variants.

With checksums, for links that may lose what is written without a word, it is instead

    publish    wait until the slot is free, WRITE, FLUSH, FENCE, COMPUTE the checksum of the source, SIGNAL_DATA it
    retrieve   WAIT_DATA, INVALIDATE, READ, COMPUTE and compare
    fold       the same for every peer, then REDUCE_LOCAL in rank order

so that flag and checksum arrive together or not at all. The line style needs none: its payload is in that line.

Zero copy is a style, too: a block that is part of the input is published where it lies in the heap. Its plan still says
WRITE: that brings a private array to the pool, and is nothing at all for an array that lives there, whose user's stores
were the same stores. What is lent so must not change while peers read it: a call returns when all of them are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from collectives import contracts
from collectives.placement import place
from collectives.rows import Ints, concatenated, folded, operands, repeated
from cxlemu.checksums import CHECKSUM_BYTES
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import (
    DTYPE_NAMES,
    NOTHING,
    Buffer,
    Call,
    Flag,
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
# Where checksums lie in scratch memory, a line each: what each stream computes last, and what came with a doorbell.
CHECKSUM_AT = {"publish": 0, "retrieve": LINE_BYTES}
CAME_AT = 2 * LINE_BYTES
CHECKSUMS_BYTES = 3 * LINE_BYTES
ROUNDS_MAX = 1 << 16
FOLDED_AT_ONCE = 16  # ranks from which on a fold's records are made as columns


@dataclass(frozen=True, slots=True)
class Style:
    """How words become instructions."""

    name: str
    interleaved: bool = True  # blocks spread over cards; otherwise allocated one after another
    chunks: int = 1  # at most so many doorbells a block
    overlap: bool = False  # publishing and retrieving are streams of their own
    line: bool = False  # payload inside the doorbell's line, nothing in data slots
    heap: bool = False  # zero copy: the input is published where it lies in the heap
    levels: bool = False  # inside clusters and across them (collectives/hierarchical)
    checked: bool = False  # a checksum travels with every doorbell, and what is read is compared with it
    slice_bytes: int = 0  # not 0: ranks send slices of at most so many bytes to each other (collectives/nccl/words.py)


NAIVE = Style("naive", interleaved=False)
AGGREGATE = Style("aggregate")
ALL = Style("all", chunks=4, overlap=True)
LINE = Style("line", line=True)
ZERO_COPY = Style("zero_copy", chunks=8, overlap=True, heap=True)
HIERARCHICAL = Style("hierarchical", chunks=4, overlap=True, levels=True)
STYLES = {style.name: style for style in (NAIVE, AGGREGATE, ALL, LINE, ZERO_COPY)}


class Chunk(NamedTuple):
    """A part of every block that is published under one doorbell (one per line in the line style)."""

    seq: int  # the round, relative to the call's first epoch
    number: int  # in its round
    offset: int  # from the start of the block
    nbytes: int
    slot_offset: int  # from the start of the block's place in the slot


@dataclass(frozen=True)
class Areas:
    """Where this loop's blocks lie: a region per writer, a doorbell per (block, chunk).

    In the heap, block k is bytes [k * ``nbytes``, (k + 1) * ``nbytes``) of its writer's input; one that is no part of
    the input is the writer's slice of the output or, where that is private, has a place in the slots.
    """

    region_of: dict[int, int]  # writer -> region id, in the slots
    block_bytes: int  # a block's place in its writer's area
    doorbells_per_block: int
    nbytes: int = 0  # a whole block's, over all rounds
    lent: int = 0  # so many blocks are parts of the input
    input_of: dict[int, int] = field(default_factory=dict)  # writer -> region id, in the heap
    output_of: dict[int, int] = field(default_factory=dict)


@dataclass
class Builder:
    """Builds one rank's part. ``nbytes`` is the call's block size; offsets are in bytes."""

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
    _areas: Areas = field(init=False)
    _entered: str = field(init=False, default="")  # the stream that waited for the round's slot
    _lends: bool = field(init=False, default=False)  # and nothing else tells that it was read
    _answered: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        names = ("publish", "retrieve") if self.style.overlap else ("main",)
        self._streams = {name: [] for name in names}
        if self.style.checked:
            self._reserve(CHECKSUMS_BYTES)
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

    # --- rounds -----------------------------------------------------------------------------------------------

    def rounds(
        self,
        nbytes: int,
        *,
        writers: list[int] | None = None,
        blocks: int = 1,
        spread: str,
        answered: bool = False,
        chunk_bytes: int = 0,
    ) -> Iterator[list[Chunk]]:
        """Cut blocks of ``nbytes`` into rounds that fit a slot, and each round into chunks.

        ``writers`` (default: all ranks) publish ``blocks`` blocks each; ``spread`` is "cards" where one rank writes
        or reads everything (1-to-N, N-to-1) and "ranges" where all write and read (N-to-N). ``answered``: everyone
        who reads a rank's blocks sends it what they became, and so need not say that they were read. ``chunk_bytes``:
        chunks of that size, or smaller ones where a slot has no room, instead of as many as the style says.
        """
        if nbytes == 0:
            return
        writers = list(range(self.ranks)) if writers is None else writers
        piece, chunk_bytes, self._areas = self._plan_areas(nbytes, writers, blocks, spread, chunk_bytes)
        self._answered = answered
        if nbytes > ROUNDS_MAX * piece:
            raise ArgumentError(
                f"{self.call}: takes more than {ROUNDS_MAX} rounds of {piece} bytes a block; give the communicator a "
                f"larger region, or choose a variant that moves more in a round"
            )
        for start in range(0, nbytes, piece):
            seq, size = self._rounds, min(piece, nbytes - start)
            step = chunk_bytes or round_up(-(-size // self._areas.doorbells_per_block), LINE_BYTES)
            self._entered = ""
            chunks = [
                Chunk(seq, number, start + at, min(step, size - at), number * round_up(step, LINE_BYTES))
                for number, at in enumerate(range(0, size, step))
            ]
            for chunk in chunks:
                self.part(chunk, chunk.nbytes)
            yield chunks
            self._leave(seq)
            self._rounds += 1
        if self._lends:  # the user may change it as soon as the call returns
            self._emit("retrieve", Op.WAIT_ALL, arg=DONE_GROUP, value=self._rounds - 1)
            self._lends = False

    def _plan_areas(
        self, nbytes: int, writers: list[int], blocks: int, spread: str, chunk_bytes: int = 0
    ) -> tuple[int, int, Areas]:
        """(how much of a block fits a round, chunk size or 0 for "as many as doorbells", the areas)."""
        doorbells = self.layout.doorbells_per_rank // blocks
        if doorbells < 1:
            raise ArgumentError(
                f"{self.call}: {blocks} blocks a rank need as many doorbells, the layout has "
                f"{self.layout.doorbells_per_rank} per rank"
            )
        if self.style.line:  # every line carries its own flag and up to 56 bytes; a round is one chunk
            piece = doorbells * PAYLOAD_BYTES
            return piece, piece, Areas({}, 0, doorbells)
        placement = spread if self.style.interleaved else "sequential"
        chunks = min(self.style.chunks, doorbells)
        if not self.style.heap:
            regions, room = place(self.layout, len(writers), blocks, nbytes, placement)
            piece, step = room, min(chunk_bytes, room)
            if step:
                chunks = min(room // round_up(step, LINE_BYTES), doorbells)
                piece = chunks * step
            return piece, step, Areas(self._table(writers, regions), room, chunks)
        return self._plan_heap_areas(nbytes, writers, blocks, placement, chunks)

    def _plan_heap_areas(
        self, nbytes: int, writers: list[int], blocks: int, placement: str, chunks: int
    ) -> tuple[int, int, Areas]:
        heap = self.call.heap
        assert heap is not None  # catalog.build sees to it
        inputs = [
            (heap.input + writer * heap.step, contracts.buffers(self.call, writer)[0].nbytes) for writer in writers
        ]
        input_of = self._table(writers, [self._in_heap(w, *at) for w, at in zip(writers, inputs, strict=True)])
        lent = min(blocks, max(-(-size // nbytes) for _, size in inputs))
        piece = round_up(nbytes, LINE_BYTES)
        if lent == blocks:
            return piece, 0, Areas({}, 0, chunks, nbytes, lent, input_of)
        if heap.output is not None:
            outputs = [self._in_heap(w, heap.output, contracts.buffers(self.call, w)[1].nbytes) for w in writers]
            return piece, 0, Areas({}, 0, chunks, nbytes, lent, input_of, self._table(writers, outputs))
        regions, piece = place(self.layout, len(writers), blocks - lent, nbytes, placement)
        return piece, 0, Areas(self._table(writers, regions), piece, chunks, nbytes, lent, input_of)

    def _table(self, writers: list[int], regions: Iterable[Region]) -> dict[int, int]:
        """New regions, one for each writer: their ids."""
        first = len(self._regions)
        self._regions.extend(regions)
        return {writer: first + index for index, writer in enumerate(writers)}

    def _in_heap(self, writer: int, at: int, nbytes: int) -> Region:
        strip = self.layout.heap_strip(writer)
        if not 0 <= at <= strip.nbytes - nbytes:
            raise ArgumentError(
                f"{self.call}: {nbytes} bytes at {at} do not lie in the heap, which has {strip.nbytes} bytes a rank: "
                f"make the communicator with a larger heap_bytes"
            )
        return Region(strip.card, 1, LINE_BYTES, strip.offset, at, nbytes, heap=True)

    def _enter(self, seq: int, stream: str) -> None:
        """Before the first store of a round: everyone is done with the round that used this slot before."""
        if not self._entered:
            self._emit(stream, Op.WAIT_ALL, arg=DONE_GROUP, value=seq - self.layout.slots)
            self._entered = stream

    def _leave(self, seq: int) -> None:
        """After the last access of a round: all read, and all that was written has landed (every SIGNAL is fenced).

        What this rank publishes beside that need not be waited for where a peer retrieves it, before that peer's own
        "done": a slot is used again only when all are done.
        """
        if self._entered == "publish" and self.foreign:
            self._order(self._record())
        self._say_done(seq)

    def _say_done(self, seq: int) -> None:
        """Where nothing was accessed since the round before, this says it for both."""
        before, done = self._streams["retrieve" if self.style.overlap else "main"], self.layout.done(self.rank)
        last = before[-1] if before else None
        if isinstance(last, Instruction) and (last.op, last.arg) == (Op.SIGNAL, done):
            before.pop()
        self._emit("retrieve", Op.SIGNAL, arg=done, value=seq)

    # --- words ------------------------------------------------------------------------------------------------

    def part(self, chunk: Chunk, nbytes: int) -> Chunk:
        """The first bytes of a chunk. All ranks ask for all ranks' parts, as the table of checksums has them all."""
        if self.style.checked and nbytes:
            for name in ("crc32c", "crc32c_check"):
                self._kernels.setdefault(Kernel(name, (nbytes,)), len(self._kernels))
        return chunk._replace(nbytes=nbytes)

    def copy(self, dst: Operand, src: Operand, nbytes: int) -> None:
        """Local to local; nothing where both are the same memory (in place)."""
        if nbytes and self._resolve(dst) != self._resolve(src):
            self._emit("retrieve", Op.COPY, dst=dst, a=src, nbytes=nbytes)

    def publish(self, chunk: Chunk, src: Operand, *, block: int = 0, overwritten: bool = False) -> int | None:
        """Put a chunk of one of this rank's blocks where its peers find it.

        ``overwritten``: in place, the result will replace ``src``; give the returned event to whatever does so.
        """
        if self.style.heap and overwritten and self.call.in_place:
            raise ArgumentError(f"{self.call}: peers still read what the result would replace: pass out, or copy")
        if not self.style.heap or self.style.checked:  # a checksum lies in the round's slot wherever its bytes do
            self._enter(chunk.seq, "publish")
        self._push("publish", chunk, src, block, written=False)
        return self._record() if overwritten and self.call.in_place else None

    def publish_each(self, chunk: Chunk, at: Ints, *, blocks: Ints, nbytes: Ints | None = None) -> None:
        """``publish`` for many blocks, one after another: of the input from ``at`` on, ``nbytes`` of each (default: the
        chunk's). Blocks of no bytes are left out.
        """
        sizes = np.full(len(blocks), chunk.nbytes) if nbytes is None else nbytes
        at, blocks, sizes = at[sizes > 0], blocks[sizes > 0], sizes[sizes > 0]
        if not len(blocks):
            return
        if not self._at_once:
            for start, block, size in zip(at.tolist(), blocks.tolist(), sizes.tolist(), strict=True):
                self.publish(self.part(chunk, size), self.input(start), block=block)
            return
        self._enter(chunk.seq, "publish")
        rows = self._rows("publish", len(blocks), lambda: self._push("publish", chunk, self.input(), 0, written=False))
        write, flush, _, signal = (rows[:, column] for column in range(4))
        write["dst"]["offset"] = flush["a"]["offset"] = blocks * self._areas.block_bytes + chunk.slot_offset
        write["a"]["offset"] = at
        write["nbytes"] = flush["nbytes"] = sizes
        signal["arg"] += (blocks * self._areas.doorbells_per_block).astype(np.int32)

    def retrieve_each(self, at: Ints, chunk: Chunk, peers: Ints, *, block: int = 0, nbytes: Ints | None = None) -> None:
        """``retrieve`` from many peers, one after another: into the output from ``at`` on. As ``publish_each``."""
        sizes = np.full(len(peers), chunk.nbytes) if nbytes is None else nbytes
        at, peers, sizes = at[sizes > 0], peers[sizes > 0], sizes[sizes > 0]
        if not len(peers):
            return
        if not self._at_once:
            for start, peer, size in zip(at.tolist(), peers.tolist(), sizes.tolist(), strict=True):
                self.retrieve(self.output(start), self.part(chunk, size), peer, block=block)
            return
        first = int(peers[0])
        rows = self._rows("retrieve", len(peers), lambda: self.retrieve(self.output(), chunk, first, block=block))
        wait, drop, read = (rows[:, column] for column in range(3))
        wait["arg"] += ((peers - first) * self.layout.doorbells_per_rank).astype(np.int32)
        drop["a"]["id"] = read["a"]["id"] = self._regions_of(peers)
        read["dst"]["offset"] = at
        drop["nbytes"] = read["nbytes"] = sizes

    def retrieve(self, dst: Operand, chunk: Chunk, peer: int, *, block: int = 0, after: int | None = None) -> None:
        """Get a chunk of one of a peer's blocks."""
        self._order(after)
        if self.style.line:
            self._take_lines(dst, chunk, peer, block)
        else:
            self._read(dst, chunk, peer, block)

    def fold(
        self,
        dst: Operand,
        chunk: Chunk,
        own: Operand,
        *,
        block: int = 0,
        republish: int | None = None,
        after: int | None = None,
    ) -> None:
        """Combine this chunk of all ranks in rank order; ``own`` is this rank's. ``republish`` it as that block."""
        self._order(after)
        if self.ranks >= FOLDED_AT_ONCE and self._at_once:
            self._fold_at_once(dst, chunk, own, block, republish)
            return
        sources = []
        for peer in range(self.ranks):
            if peer == self.rank:
                sources.append(own)
            elif self.style.line:
                sources.append(self._scratch(chunk.nbytes, row=peer + 1))
                self._take_lines(sources[-1], chunk, peer, block)
            elif self.style.checked:
                sources.append(self._scratch(chunk.nbytes, row=peer + 1))
                self._read(sources[-1], chunk, peer, block)
            else:
                sources.append(self._area(chunk, peer, block))
        if self.style.heap and republish is not None and self._in_slot(republish) and chunk.seq >= self.layout.slots:
            self._enter(chunk.seq, "retrieve")  # not for rounds before the call: all peers have begun it
        self._reduce(dst, chunk, sources, block, republish)
        if republish is not None:
            self._push("retrieve", chunk, dst, republish, written=self._reduces_into(republish))

    def meet(self) -> None:
        """Nobody goes on before everybody is here."""
        self._groups.append(Group(0, self.ranks, self.layout.doorbells_per_rank))
        self._emit("publish", Op.SIGNAL, arg=self.layout.published(self.rank, 0), value=self._rounds)
        self._emit("retrieve", Op.WAIT_ALL, arg=len(self._groups) - 1, value=self._rounds)
        self._say_done(self._rounds)
        self._rounds += 1

    # --- how words become instructions ------------------------------------------------------------------------

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
        its = self._streams[stream if self.style.overlap else "main"]
        its.append(Instruction(op, dtype, redop, flags, arg, value, nbytes, dst, dst2, *operands))

    @property
    def _at_once(self) -> bool:
        """Whether words for many peers are made as columns: of what is written to slots and read from there."""
        return not (self.style.line or self.style.heap or self.style.checked)

    def _rows(self, stream: str, times: int, emit: Callable[[], None]) -> Records:
        """What ``emit`` would add to the stream, so many times, to be filled in where they differ."""
        its = self._streams[stream if self.style.overlap else "main"]
        before = len(its)
        emit()
        rows = repeated([i for i in its[before:] if isinstance(i, Instruction)], times)
        its[before:] = [rows]
        return rows

    def _regions_of(self, writers: Ints) -> Ints:
        return np.array([self._areas.region_of[writer] for writer in writers.tolist()], np.int64)

    def _area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        areas = self._areas
        if block < areas.lent:
            return Operand(Kind.REGION, areas.input_of[writer], 0, block * areas.nbytes + chunk.offset)
        if areas.output_of:
            return Operand(Kind.REGION, areas.output_of[writer], 0, writer * areas.nbytes + chunk.offset)
        offset = (block - areas.lent) * areas.block_bytes + chunk.slot_offset
        return Operand(Kind.REGION, areas.region_of[writer], chunk.seq, offset)

    def _in_slot(self, block: int) -> bool:
        return not self.style.line and block >= self._areas.lent and not self._areas.output_of

    def _lend(self, chunk: Chunk, src: Operand, block: int) -> None:
        """Peers will read this block where the array lies: there it must be."""
        areas = self._areas
        lies = self.input(block * areas.nbytes + chunk.offset)
        if block >= areas.lent:
            lies = self.output(self.rank * areas.nbytes + chunk.offset)
        if src != lies:
            raise ArgumentError(f"{self.call}: zero copy publishes parts of the input, block after block, not others")
        self._lends |= block >= areas.lent or not self._answered

    def _doorbell(self, chunk: Chunk, writer: int, block: int, line: int = 0) -> int:
        index = block * self._areas.doorbells_per_block + chunk.number + line
        return self.layout.published(writer, index)

    def _push(self, stream: str, chunk: Chunk, src: Operand, block: int, *, written: bool) -> None:
        """Make a chunk visible and say so. ``written``: its bytes are in the slot already, in this host's cache."""
        if self.style.line:
            for line, at in enumerate(range(0, chunk.nbytes, PAYLOAD_BYTES)):
                doorbell = self._doorbell(chunk, self.rank, block, line)
                size = min(PAYLOAD_BYTES, chunk.nbytes - at)
                self._emit(stream, Op.SIGNAL_DATA, arg=doorbell, value=chunk.seq, a=src.at(at), nbytes=size)
            return
        area = self._area(chunk, self.rank, block)
        if self.style.heap and not self._in_slot(block):
            self._lend(chunk, src, block)
        if not written:
            self._emit(stream, Op.WRITE, dst=area, a=src, nbytes=chunk.nbytes)
        self._emit(stream, Op.FLUSH, a=area, nbytes=chunk.nbytes)
        self._emit(stream, Op.FENCE)
        doorbell = self._doorbell(chunk, self.rank, block)
        if not self.style.checked:
            self._emit(stream, Op.SIGNAL, arg=doorbell, value=chunk.seq)
            return
        checksum = Operand(Kind.BUFFER, SCRATCH, 0, CHECKSUM_AT[stream])
        self._checksum(stream, "crc32c", checksum, chunk, [src])
        self._emit(stream, Op.SIGNAL_DATA, arg=doorbell, value=chunk.seq, a=checksum, nbytes=CHECKSUM_BYTES)

    def _await_chunk(self, chunk: Chunk, peer: int, block: int) -> Operand:
        area, doorbell = self._area(chunk, peer, block), self._doorbell(chunk, peer, block)
        if self.style.checked:
            came = Operand(Kind.BUFFER, SCRATCH, 0, CAME_AT)
            self._emit("retrieve", Op.WAIT_DATA, arg=doorbell, value=chunk.seq, dst=came, nbytes=CHECKSUM_BYTES)
        else:
            self._emit("retrieve", Op.WAIT, arg=doorbell, value=chunk.seq)
        self._emit("retrieve", Op.INVALIDATE, a=area, nbytes=chunk.nbytes)
        return area

    def _read(self, dst: Operand, chunk: Chunk, peer: int, block: int) -> None:
        area = self._await_chunk(chunk, peer, block)
        self._emit("retrieve", Op.READ, dst=dst, a=area, nbytes=chunk.nbytes)
        if self.style.checked:
            computed, came = (Operand(Kind.BUFFER, SCRATCH, 0, at) for at in (CHECKSUM_AT["retrieve"], CAME_AT))
            self._checksum("retrieve", "crc32c_check", computed, chunk, [dst, came])

    def _checksum(self, stream: str, kernel: str, dst: Operand, chunk: Chunk, sources: list[Operand]) -> None:
        number = self._kernels.get(Kernel(kernel, (chunk.nbytes,)))
        if number is None:
            raise ArgumentError(f"{self.call}: with checksums a part of a chunk is made by the builder's part()")
        self._emit(stream, Op.COMPUTE, arg=number, nbytes=CHECKSUM_BYTES, dst=dst, sources=sources)

    def _take_lines(self, dst: Operand, chunk: Chunk, peer: int, block: int) -> None:
        for line, at in enumerate(range(0, chunk.nbytes, PAYLOAD_BYTES)):
            doorbell = self._doorbell(chunk, peer, block, line)
            size = min(PAYLOAD_BYTES, chunk.nbytes - at)
            self._emit("retrieve", Op.WAIT_DATA, arg=doorbell, value=chunk.seq, dst=dst.at(at), nbytes=size)

    def _reduce(self, dst: Operand, chunk: Chunk, sources: list[Operand], block: int, republish: int | None) -> None:
        self._combine(
            dst,
            self._republished(chunk, republish),
            chunk.nbytes,
            sources,
            arrive=lambda peer: self._await_chunk(chunk, peer, block),
            divide=self.call.redop == "avg",
            stream="retrieve",
            accumulator=self._scratch(chunk.nbytes) if len(sources) > 3 else NOTHING,
        )

    def _combine(
        self,
        dst: Operand,
        dst2: Operand,
        nbytes: int,
        sources: list[Operand],
        *,
        arrive: Callable[[int], object],
        divide: bool,
        stream: str,
        accumulator: Operand,
    ) -> None:
        """Fold from the left, accumulating in scratch: in place, ``dst`` may be an operand of a later step.

        ``arrive`` emits what it takes that source number k may be read, where it lies in the pool.
        """
        op = Op.REDUCE_LOCAL if self.style.line or self.style.checked else Op.REDUCE
        todo = list(enumerate(sources))
        sum_so_far: list[Operand] = []
        while todo:
            now, todo = todo[: 3 - len(sum_so_far)], todo[3 - len(sum_so_far) :]
            for number, operand in now:
                if operand.kind == Kind.REGION:
                    arrive(number)
            last = not todo
            target = dst if last else accumulator
            self._emit(
                stream,
                op,
                arg=self.ranks if last and divide else 0,
                flags=Flag.DIVIDE if last and divide else 0,
                nbytes=nbytes,
                dst=target,
                dst2=dst2 if last else NOTHING,
                sources=sum_so_far + [operand for _, operand in now],
            )
            sum_so_far = [target]

    def _fold_at_once(self, dst: Operand, chunk: Chunk, own: Operand, block: int, republish: int | None) -> None:
        """As fold and _reduce, for sources in slots."""
        everyone = np.arange(self.ranks)
        at = np.full(self.ranks, block * self._areas.block_bytes + chunk.slot_offset)
        sources = operands(Kind.REGION, self._regions_of(everyone), chunk.seq, at)
        sources[self.rank] = own
        divide = self.call.redop == "avg"
        last = Instruction(
            Op.REDUCE,
            DTYPE_NAMES.index(self.call.dtype),
            RedOp[self.call.redop.upper()],
            Flag.DIVIDE if divide else 0,
            self.ranks if divide else 0,
            nbytes=chunk.nbytes,
            dst=dst,
            dst2=self._republished(chunk, republish),
        )
        wait = Instruction(Op.WAIT, value=chunk.seq, nbytes=chunk.nbytes)
        doorbells = everyone * self.layout.doorbells_per_rank + self._doorbell(chunk, 0, block)
        accumulator = self._scratch(chunk.nbytes)
        stream = self._streams["retrieve" if self.style.overlap else "main"]
        stream.append(folded(sources, wait, doorbells, last, accumulator, self.rank))
        if republish is not None:
            self._push("retrieve", chunk, dst, republish, written=True)

    def _republished(self, chunk: Chunk, block: int | None) -> Operand:
        return self._area(chunk, self.rank, block) if block is not None and self._reduces_into(block) else NOTHING

    def _reduces_into(self, block: int) -> bool:
        """Whether the fold itself stores its result to the slot."""
        return self._in_slot(block) and not self.style.checked

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

    @cached_property
    def _buffers(self) -> tuple[Buffer, Buffer]:
        return contracts.buffers(self.call, self.rank)

    def _resolve(self, operand: Operand) -> tuple[str, int]:
        """The memory that a local operand really is, in place or not."""
        buffer = self._buffers[operand.id]
        return (buffer.inside, buffer.at + operand.offset) if buffer.inside else (buffer.name, operand.offset)

    @staticmethod
    def _numbered(item: Instruction | Records, place: dict[int, int]) -> Instruction | Records:
        """With a kernel's number in the table. Rows that stand for many are all COMPUTEs of one kernel, or none."""
        if isinstance(item, Instruction):
            return item._replace(arg=place[item.arg]) if item.op == Op.COMPUTE else item
        if item.size and item.flat[0]["op"] == Op.COMPUTE:
            item["arg"] = place[int(item.flat[0]["arg"])]
        return item

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
