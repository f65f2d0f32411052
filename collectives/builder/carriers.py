"""Carriers take blocks from rank to rank. A variant declares its carrier's properties; only `carrier_of` reads them.

SlotCarrier  in a round's slot: WRITE, FLUSH, FENCE, SIGNAL, and on the other side WAIT, INVALIDATE, READ
LineCarrier  in the doorbells' own lines, up to 56 bytes in each: SIGNAL_DATA, and on the other side WAIT_DATA
StagingCarrier  in a slot as well; what is folded is read into scratch memory first, so that ranks read staggered
HeapCarrier  nowhere: the array lies in the pool's heap, where peers read it. The plan still says WRITE, which
             brings a private array to its place, and which is nothing for an array that lives there
PushCarrier  nowhere either: a rank writes to its peers' results, which lie in the heap (push.py)
checked      either with a checksum in the doorbell's line: COMPUTE, SIGNAL_DATA; WAIT_DATA, COMPUTE
"""

from __future__ import annotations

from collections.abc import Iterable

from collectives import contracts
from collectives.builder.part import SCRATCH, PartBuilder
from collectives.builder.push import PushCarrier
from collectives.builder.slots import Areas, Chunk, Loop, Operands, RegionIds, SlotCarrier, in_strip, place
from collectives.builder.variant import VariantSpec
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import DTYPES, Flag, Kernel, Kind, Op, Operand
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

    def folds_into(self, block: int) -> bool:
        """Return False: a fold's result lies in local memory until it is published."""
        return False

    def push(
        self, stream: str, chunk: Chunk, sources: Operands, block: int, written: bool = False, bell: int | None = None
    ) -> None:
        """Send each line of each block with its doorbell. ``written`` and ``bell`` do not matter here."""
        for number, src in enumerate(sources, block):
            for doorbell, at, size in self._lines(chunk, self.b.rank, number):
                self.b._emit(stream, Op.SIGNAL_DATA, arg=doorbell, value=chunk.seq, a=src.at(at), nbytes=size)

    def take(self, targets: Operands, chunk: Chunk, peer: int, block: int, bell: int | None = None) -> None:
        """Wait for each line of each block, and copy its payload. ``bell`` does not matter here."""
        for number, dst in enumerate(targets, block):
            for doorbell, at, size in self._lines(chunk, peer, number):
                self.b._emit("retrieve", Op.WAIT_DATA, arg=doorbell, value=chunk.seq, dst=dst.at(at), nbytes=size)
                self.b._knows_free(chunk.seq)

    def _lines(self, chunk: Chunk, writer: int, block: int) -> Iterable[tuple[int, int, int]]:
        """Yield each line's doorbell, and which bytes of the chunk it carries: from where on, and how many."""
        for line, at in enumerate(range(0, chunk.nbytes, PAYLOAD_BYTES), chunk.slot_offset // PAYLOAD_BYTES):
            yield self.doorbell(chunk, writer, block, line), at, min(PAYLOAD_BYTES, chunk.nbytes - at)


class StagingCarrier(SlotCarrier):
    """Carries blocks in slots; what is folded is brought to scratch memory first.

    A fold where blocks lie in the pool reads them in rank order, every rank from the same cards at the same time.
    Brought to scratch memory, they are read from the rank before this one backwards, in the order in which they are
    published, and folded in rank order once all are there. CCCL's ranks read so, by asynchronous copies.
    """

    fetches = True

    def folds_into(self, block: int) -> bool:
        """Return False: a fold's result lies in local memory until it is published."""
        return False


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
        input_of = self._table(writers, [in_strip(b, w, *at) for w, at in zip(writers, inputs, strict=True)])
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

    folds_into = in_slot

    def takes_slot(self, block: int) -> bool:
        """Whether publishing this block stores to what a slot's last user may still read: to data, or to a payload."""
        return self.in_slot(block) or self._tells_in(self.b.written.rounds)

    def flags(self, chunk: Chunk) -> int:
        """Return Flag.PLACES where doorbells tell where arrays lie: in a loop's first round, with what is not empty."""
        return Flag.PLACES if chunk.nbytes and self._tells_in(chunk.seq) else 0

    def _tells_in(self, seq: int) -> bool:
        """Whether a round's doorbells tell: those of a loop's first one, in which every rank hears from all that it
        hears from in the loop. An algorithm that is not one of ours may do otherwise.
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
        """Check that a block is published from where its array lies in the heap, as peers will read it there.

        Args:
            chunk: The chunk of the block.
            src: The local memory that is published.
            block: The block's number.

        Raises:
            ArgumentError: ``src`` is not that block of the input, nor of the output.
        """
        if self.in_slot(block):
            return
        b, areas, result = self.b, self.areas, block >= self.areas.placed_in_heap
        at = (b.rank if result else block) * areas.nbytes + chunk.offset
        if src != (b.output(at) if result else b.input(at)):
            raise ArgumentError(f"{b.call}: zero copy publishes parts of the input, block after block, not others")
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

    def folds_into(self, block: int) -> bool:
        """Return False: a fold's result lies in local memory until it is published."""
        return False

    def bell_of(self, chunk: Chunk, writer: int, block: int, bell: int | None, blocks: int = 1) -> int:
        """Return the block's own doorbell. Raises ArgumentError for a bell, or for several blocks at once."""
        if bell is not None or blocks > 1:
            call = self.b.call
            raise ArgumentError(f"{call}: a checksum is of one block and its own doorbell: publish each by itself")
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
        computed, came = (Operand(Kind.BUFFER, SCRATCH, 0, at) for at in (CHECKSUM_AT["retrieve"], CAME_AT))
        flags = self.flags(chunk)
        b._emit("retrieve", Op.WAIT_DATA, arg=doorbell, value=chunk.seq, flags=flags, dst=came, nbytes=CHECKSUM_BYTES)
        b._knows_free(chunk.seq)
        b._emit("retrieve", Op.INVALIDATE, a=area, nbytes=chunk.nbytes)
        b._emit("retrieve", Op.READ, dst=targets[0], a=area, nbytes=chunk.nbytes)
        self._compute("retrieve", "crc32c_check", computed, chunk, [targets[0], came])

    def _compute(self, stream: str, kernel: str, dst: Operand, chunk: Chunk, sources: list[Operand]) -> None:
        number = self.b.written.kernels.get(Kernel(kernel, (chunk.nbytes,)))
        if number is None:
            raise ArgumentError(f"{self.b.call}: with checksums a part of a chunk is made by the builder's part()")
        self.b._emit(stream, Op.COMPUTE, arg=number, nbytes=CHECKSUM_BYTES, dst=dst, sources=sources)


class CheckedHeapCarrier(CheckedCarrier, HeapCarrier):
    """Lets peers read arrays where they lie in the heap, and compares what they read with a checksum."""


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
