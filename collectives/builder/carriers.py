"""Carriers take blocks from rank to rank. A variant declares its carrier's properties; only `carrier_of` reads them.

SlotCarrier  in a round's slot: WRITE, FLUSH, FENCE, SIGNAL, and on the other side WAIT, INVALIDATE, READ
LineCarrier  in the doorbells' own lines, up to 56 bytes in each: SIGNAL_DATA, and on the other side WAIT_DATA
StagingCarrier  in a slot as well; what is folded is read into scratch memory first, so that ranks read staggered
HeapCarrier  nowhere: the array lies in the pool's heap, where peers read it. The plan still says WRITE, which
             brings a private array to its place, and which is nothing for an array that lives there
PushCarrier  nowhere either: a rank writes to its peers' results, which lie in the heap
checked      either with a checksum in the doorbell's line: COMPUTE, SIGNAL_DATA; WAIT_DATA, COMPUTE
"""

from collections.abc import Iterable, Sequence

from collectives import contracts
from collectives.builder.part import SCRATCH, PartBuilder, VariantSpec
from collectives.builder.slots import Areas, Chunk, Loop, Operands, RegionIds, SlotCarrier, in_strip, place
from collectives.in_heap import gives_up
from cxlemu.errors import BuilderError, DeclinedError
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import DTYPES, Call, Flag, Kernel, Kind, Op, Operand
from cxlemu.plan.checksums import CHECKSUM_BYTES
from cxlemu.rounding import round_down, round_up

# Where checksums lie in scratch memory, a line each: what each stream computes last, and what came with a doorbell.
CHECKSUM_AT = {"publish": 0, "retrieve": LINE_BYTES}
CAME_AT = 2 * LINE_BYTES
CHECKSUMS_BYTES = 3 * LINE_BYTES
IN_PROCESS_CHUNK_BYTES = 1 << 20  # at least: each chunk is another call of the kernel, and nothing is stored meanwhile


class LineCarrier(SlotCarrier):
    """Carries blocks in the doorbells' lines, each with its own flag and up to 56 bytes; a round is one chunk."""

    grain = PAYLOAD_BYTES
    in_columns = False
    fetches = True

    def plan(self, loop: Loop) -> tuple[int, int, Areas]:
        """Place blocks in lines: a round takes as much of each block as its doorbells carry. Raises as in slots."""
        blocks, bells = loop.blocks, loop.bells
        doorbells = self.doorbells_of(blocks + bells, "blocks and bells" if bells else "blocks")
        piece = round_down(doorbells * PAYLOAD_BYTES, DTYPES[self.b.call.dtype].itemsize)
        first_bell = blocks if bells else 0
        return (
            piece,
            piece,
            Areas(RegionIds(), 0, doorbells, blocks=blocks, bells=bells or blocks, first_bell=first_bell),
        )

    def in_slot(self, block: int) -> bool:
        """Return False: nothing lies in the data of slots."""
        return False

    def push(
        self, stream: str, chunk: Chunk, sources: Operands, block: int, written: bool = False, bell: int | None = None
    ) -> None:
        """Send each line of each block with its doorbell. ``written`` and ``bell`` do not matter here."""
        for number, src in enumerate(sources, block):
            for doorbell, offset, size in self._lines(chunk, self.b.rank, number):
                self.b._emit(stream, Op.SIGNAL_DATA, arg=doorbell, value=chunk.seq, a=src.at(offset), nbytes=size)

    def take(self, targets: Operands, chunk: Chunk, peer: int, block: int, bell: int | None = None) -> None:
        """Wait for each line of each block, and copy its payload. ``bell`` does not matter here."""
        for number, dst in enumerate(targets, block):
            for doorbell, offset, size in self._lines(chunk, peer, number):
                self.b._emit("retrieve", Op.WAIT_DATA, arg=doorbell, value=chunk.seq, dst=dst.at(offset), nbytes=size)
                self.b._knows_free(chunk.seq)

    def _lines(self, chunk: Chunk, writer: int, block: int) -> Iterable[tuple[int, int, int]]:
        """Yield each line's doorbell, and which bytes of the chunk it carries: from where on, and how many."""
        for line, index in enumerate(range(0, chunk.nbytes, PAYLOAD_BYTES), chunk.slot_offset // PAYLOAD_BYTES):
            yield self.doorbell(chunk, writer, block, line), index, min(PAYLOAD_BYTES, chunk.nbytes - index)


class StagingCarrier(SlotCarrier):
    """Carries blocks in slots; what is folded is brought to scratch memory first.

    A fold where blocks lie in the pool reads them in rank order, every rank from the same cards at the same time.
    Brought to scratch memory, they are read from the rank before this one backwards, in the order in which they are
    published, and folded in rank order once all are there. CCCL's ranks read so, by asynchronous copies.
    """

    fetches = True


class HeapCarrier(SlotCarrier):
    """Lets peers read blocks that are parts of an array in the heap there; others lie in slots, or in the output."""

    in_columns = False
    reads_in_place = True
    first_round = 0  # of the loop

    def _placed(self, loop: Loop, placement: str, doorbells: int) -> tuple[int, int, Areas]:
        b, heap, writers, nbytes = self.b, self.b.call.heap, loop.writers, loop.nbytes
        assert heap is not None and heap.input is not None  # catalog.build sees to it
        self.first_round = b.written.rounds
        chunks = min(b.spec.chunks, doorbells)
        if heap.in_process:
            chunks = min(chunks, max(nbytes // IN_PROCESS_CHUNK_BYTES, 1))
        inputs = [(heap.input + w * heap.step, contracts.buffers(b.call, w)[0].nbytes) for w in writers]
        input_of = self._table(writers, [in_strip(b, w, *offset) for w, offset in zip(writers, inputs, strict=True)])
        placed = min(loop.blocks, max(-(-size // nbytes) for _, size in inputs))
        piece = round_up(nbytes, LINE_BYTES)
        if placed == loop.blocks:
            return piece, 0, Areas(RegionIds(), 0, chunks, nbytes, placed, input_of)
        if heap.output is not None:
            outputs = [in_strip(b, w, heap.output, contracts.buffers(b.call, w)[1].nbytes) for w in writers]
            return piece, 0, Areas(RegionIds(), 0, chunks, nbytes, placed, input_of, self._table(writers, outputs))
        regions, piece = place(b.layout, len(writers), loop.blocks - placed, nbytes, placement)
        return piece, 0, Areas(self._table(writers, regions), piece, chunks, nbytes, placed, input_of)

    def in_slot(self, block: int) -> bool:
        """Whether this block lies in the round's slot: neither a part of the input nor the result in the heap."""
        return block >= self.areas.placed_in_heap and not self.areas.output_of

    def takes_slot(self, block: int) -> bool:
        """Whether publishing this block stores to what a slot's last user may still read: to data, or to a payload."""
        return self.in_slot(block) or self._tells_in(self.b.written.rounds)

    def flags(self, chunk: Chunk) -> int:
        """Return Flag.PLACES where doorbells tell where arrays lie: in a loop's first round, with what is not empty."""
        return Flag.PLACES if chunk.nbytes and self._tells_in(chunk.seq) else 0

    def _tells_in(self, seq: int) -> bool:
        """True in the first round of a loop, in which every rank hears from each peer that it reads in the loop. A
        user's algorithm may do otherwise.
        """
        heap = self.b.call.heap
        return heap is not None and heap.is_told and (self.b.foreign or seq == self.first_round)

    def area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        """Return where a chunk of a writer's block lies: in its input, in its output, or in the slot."""
        areas = self.areas
        if block < areas.placed_in_heap:
            return Operand(Kind.REGION, areas.input_of[writer], 0, block * areas.nbytes + chunk.offset)
        if areas.output_of:
            return Operand(Kind.REGION, areas.output_of[writer], 0, writer * areas.nbytes + chunk.offset)
        return super().area(chunk, writer, block - areas.placed_in_heap)

    def check_source(self, chunk: Chunk, src: Operand, block: int) -> None:
        """Check that a block is published from where its array lies in the heap, as peers will read it there."""
        if self.in_slot(block):
            return
        b, areas, result = self.b, self.areas, block >= self.areas.placed_in_heap
        offset = (b.rank if result else block) * areas.nbytes + chunk.offset
        if src != (b.output(offset) if result else b.input(offset)):
            raise BuilderError(f"{b.call}: zero copy publishes parts of the input only, block after block")
        self.awaits_readers |= result or not self.answered


class CheckedCarrier(SlotCarrier):
    """Carries blocks in slots, and a checksum with each chunk in its doorbell's line.

    The checksum lies in scratch memory before it travels, and again when it has come.
    """

    in_columns = False
    fetches = True

    def __init__(self, b: PartBuilder) -> None:
        super().__init__(b)
        b.scratch(CHECKSUMS_BYTES)

    def takes_slot(self, block: int) -> bool:
        """Return True: every chunk has a checksum in its doorbell's line."""
        return True  # a checksum's line is used again in every lap

    def bell_of(self, chunk: Chunk, writer: int, block: int, bell: int | None, blocks: int = 1) -> int:
        """Return the block's own doorbell. Raises DeclinedError for a bell, or for several blocks at once."""
        if bell is not None or blocks > 1:
            call = self.b.call
            raise DeclinedError(f"{call}: a checksum covers one block and its doorbell: publish each separately")
        return self.doorbell(chunk, writer, block)

    def prepare(self, nbytes: int) -> None:
        """Add the kernels that compute and compare a checksum of ``nbytes`` bytes to the plan."""
        for name in ("crc32c", "crc32c_check"):
            self.b.written.kernel(Kernel(name, (nbytes,)))

    def ring(self, stream: str, chunk: Chunk, doorbell: int, src: Operand | None) -> None:
        """Compute the checksum of ``src`` and send it with the doorbell; an empty chunk is only signalled."""
        if src is None:
            super().ring(stream, chunk, doorbell, src)
            return
        checksum = Operand(Kind.BUFFER, SCRATCH, 0, CHECKSUM_AT[stream])
        self._compute(stream, "crc32c", checksum, chunk, [src])
        flags, carried = self.flags(chunk), CHECKSUM_BYTES
        self.b._emit(stream, Op.SIGNAL_DATA, arg=doorbell, value=chunk.seq, flags=flags, a=checksum, nbytes=carried)

    def take(self, targets: Operands, chunk: Chunk, peer: int, block: int, bell: int | None = None) -> None:
        """Wait for a chunk and its checksum, read the chunk, and compare. Raises as `bell_of`."""
        if not chunk.nbytes:
            super().take(targets, chunk, peer, block, bell)
            return
        b, doorbell, area = self.b, self.bell_of(chunk, peer, block, bell, len(targets)), self.area(chunk, peer, block)
        computed, came = (Operand(Kind.BUFFER, SCRATCH, 0, offset) for offset in (CHECKSUM_AT["retrieve"], CAME_AT))
        flags = self.flags(chunk)
        b._emit("retrieve", Op.WAIT_DATA, arg=doorbell, value=chunk.seq, flags=flags, dst=came, nbytes=CHECKSUM_BYTES)
        b._knows_free(chunk.seq)
        b._emit("retrieve", Op.INVALIDATE, a=area, nbytes=chunk.nbytes)
        b._emit("retrieve", Op.READ, dst=targets[0], a=area, nbytes=chunk.nbytes)
        self._compute("retrieve", "crc32c_check", computed, chunk, [targets[0], came])

    def _compute(self, stream: str, kernel: str, dst: Operand, chunk: Chunk, sources: list[Operand]) -> None:
        number = self.b.written.kernels.get(Kernel(kernel, (chunk.nbytes,)))
        if number is None:
            raise BuilderError(f"{self.b.call}: with checksums, make a part of a chunk with the builder's part()")
        self.b._emit(stream, Op.COMPUTE, arg=number, nbytes=CHECKSUM_BYTES, dst=dst, sources=sources)


class CheckedHeapCarrier(CheckedCarrier, HeapCarrier):
    """Lets peers read arrays where they lie in the heap, and compares what they read with a checksum."""


# --- results that peers write where they lie ----------------------------------------------------------------------

IN_PLACE = "has peers write the result, in which the input lies: pass out"


def refusal(call: Call, offset: int = 0) -> str | None:
    """Say why peers cannot write a call's results at byte ``at`` of the strip, as a sentence's end; or None."""
    if call.in_place:
        return IN_PLACE
    if call.nbytes % LINE_BYTES or offset % LINE_BYTES:
        where = f" from byte {offset} of the heap on" if offset % LINE_BYTES else ""
        return (
            f"has peers write whole lines of {LINE_BYTES} bytes, and blocks of {call.nbytes} bytes{where} are not "
            "whole lines: take another variant"
        )
    return None


class PushCarrier(SlotCarrier):
    """Writes blocks of a rank to the results of the ranks that they are for.

    A rank whose result peers write first gives it up. Its host's cache may hold lines of it, and a dirty one that
    is evicted later would replace what a peer has written: so the rank invalidates the lines before it rings. The
    plan says WRITE before that. It brings to the pool what the user stored to a private array, and does nothing for
    an array that lives there, whose user's stores were the same stores. The bell tells where in the rank's strip
    the result lies. A rank that has heard it writes there, and rings its own; the peer invalidates once more, and
    reads: from the array to itself, or to a private one.

    Block k is for rank k or, where one rank alone gets a result, for that one. It has no chunks under way on that rank
    itself: the doorbell of a rank's own block says that its result is given up, and tells where it lies.
    """

    in_columns = False
    reads_in_place = True  # in place, peers would still have to be sent what they replace
    _for: dict[int, int]  # block -> the rank that it is for, which gives its result up
    _own = RegionIds()  # by rank
    _first_writer = 0  # of the block at a result's begin

    def _placed(self, loop: Loop, placement: str, doorbells: int) -> tuple[int, int, Areas]:
        b, heap, nbytes = self.b, self.b.call.heap, loop.nbytes
        assert heap is not None and heap.output is not None  # catalog.build sees to it
        if (why := refusal(b.call, heap.output)) is not None:
            raise DeclinedError(f"{b.call.collective} {b.call.algorithm} {why}")
        ranks = [rank for rank in range(b.ranks) if gives_up(b.call, rank)]
        if loop.blocks != b.ranks and (loop.blocks, len(ranks)) != (1, 1):
            raise BuilderError(f"{b.call}: each rank's result has its block: rounds(..., blocks={b.ranks})")
        self._for = {0: ranks[0]} if loop.blocks == 1 else {rank: rank for rank in ranks}
        self._first_writer = first = loop.writers[0]
        sizes = [(rank, heap.output, contracts.buffers(b.call, rank)[1].nbytes) for rank in ranks]
        self._own = self._table(ranks, [in_strip(b, *where) for where in sizes])
        written = [in_strip(b, *where, writer_bytes=nbytes, first_writer=first) for where in sizes]
        results = self._table(list(self._for), written)
        return nbytes, 0, Areas(results, nbytes, min(b.spec.chunks, doorbells), nbytes)

    @property
    def tells(self) -> bool:
        """Whether this rank's doorbell tells, when a round begins, where its result lies."""
        heap = self.b.call.heap
        return heap is not None and heap.is_told and self.b.rank in self._own

    def in_slot(self, block: int) -> bool:
        return False

    takes_slot = in_slot

    def area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        """Return where a chunk of a writer's block lies: in the result of the rank that the block is for."""
        offset = (writer - self._first_writer) * self.areas.nbytes + chunk.offset
        return Operand(Kind.REGION, self.areas.region_of[block], 0, offset)

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """Give this rank's result up, but for its own block, and ring; nothing where peers write no result of it."""
        b, each = self.b, self.areas.nbytes
        self._first, self._heard = chunks[0], set[int]()
        if b.rank not in self._own:
            return
        result, end = Operand(Kind.REGION, self._own[b.rank]), contracts.buffers(b.call, b.rank)[1].nbytes
        mine = (b.rank - self._first_writer) * each
        mine = mine if 0 <= mine < end else end
        given = [(offset, to - offset) for offset, to in ((0, mine), (mine + each, end)) if offset < to]
        for offset, nbytes in given:
            b._emit("publish", Op.WRITE, dst=result.at(offset), a=b.output(offset), nbytes=nbytes)
        for offset, nbytes in given:
            b._emit("publish", Op.INVALIDATE, a=result.at(offset), nbytes=nbytes)
        self._given_up("publish", Op.SIGNAL, next(block for block, rank in self._for.items() if rank == b.rank))

    def push(
        self, stream: str, chunk: Chunk, sources: Operands, block: int, written: bool = False, bell: int | None = None
    ) -> None:
        """Write a chunk to the result that its block is for, once that is given up; arguments as in slots."""
        if block not in self._heard:
            self._given_up(stream, Op.WAIT, block)
            self._heard.add(block)
        super().push(stream, chunk, sources, block, written, bell)

    def _given_up(self, stream: str, op: Op, block: int) -> None:
        """Ring the doorbell which says that the result that a block is for is given up, or wait for it."""
        heap, first = self.b.call.heap, self._first
        flags = Flag.PLACES if heap is not None and heap.is_told else 0
        self.b._emit(stream, op, arg=self.doorbell(first, self._for[block], block), value=first.seq, flags=flags)


def carrier_of(spec: VariantSpec) -> type[SlotCarrier]:
    """Return the class of carrier that a variant declares. A payload in a doorbell's line needs no checksum."""
    if spec.in_lines:
        return LineCarrier
    if spec.pushes:
        return PushCarrier
    if spec.zero_copy:
        return CheckedHeapCarrier if spec.checked else HeapCarrier
    if spec.checked:
        return CheckedCarrier
    return StagingCarrier if spec.staged else SlotCarrier
