"""From rank to rank: what it takes to publish a chunk, and to retrieve it.

A checksum lies in scratch memory until it travels in its doorbell's line, and there again when it came.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from collectives.builder import misuse
from collectives.builder.areas import Chunk
from collectives.builder.part import SCRATCH, Event
from collectives.builder.signals import Signals
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import Kernel, Kind, Op, Operand
from cxlemu.plan.checksums import CHECKSUM_BYTES

# Where checksums lie in scratch memory, a line each: what each stream computes last, and what came with a doorbell.
CHECKSUM_AT = {"publish": 0, "retrieve": LINE_BYTES}
CAME_AT = 2 * LINE_BYTES
CHECKSUMS_BYTES = 3 * LINE_BYTES


def _several(places: Operand | Sequence[Operand]) -> list[Operand]:
    """An operand is a sequence, too."""
    return list(places) if isinstance(places, Sequence) and not isinstance(places, Operand) else [places]


@dataclass
class Transfers(Signals):
    """Publishes and retrieves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spec.checked:
            self.scratch(CHECKSUMS_BYTES)

    def publish(
        self,
        chunk: Chunk,
        src: Operand | Sequence[Operand],
        *,
        block: int = 0,
        bell: int | None = None,
        overwritten: bool = False,
        after: Event | None = None,
    ) -> Event | None:
        """Put a chunk of one of this rank's blocks, or of several from ``block`` on, where its peers find it.

        ``src``: local memory, or a list of it, one for each block. ``bell``: which of the loop's ``bells`` says so; by
        default the first block's own. ``after``: what has to happen first, as when a block is forwarded. Gives the
        event after which ``src`` may be overwritten; with ``overwritten`` (the result will replace ``src``, if only in
        place) None where this call is not in place. An empty chunk is only signalled.
        """
        sources = _several(src)
        if self.foreign:
            misuse.check_place(self, "publish", chunk, self.rank, block, len(sources), bell)
            misuse.check_local(self, "publish", *sources)
            misuse.check_event(self, "publish", after)
        if self.spec.zero_copy and overwritten and self.call.in_place:
            raise ArgumentError(f"{self.call}: peers still read what the result would replace: pass out, or copy")
        if not self.spec.zero_copy or self.spec.checked or self._in_slot(block):  # a checksum always lies in the slot
            self._enter(chunk.seq, "publish", after)
        self._order(after, "publish")
        self._push("publish", chunk, sources, block, written=False, bell=bell)
        return self._record() if self.call.in_place or not overwritten else None

    def retrieve(
        self,
        dst: Operand | Sequence[Operand],
        chunk: Chunk,
        peer: int,
        *,
        block: int = 0,
        bell: int | None = None,
        after: Event | None = None,
    ) -> Event:
        """Get a chunk of one of a peer's blocks, or of several from ``block`` on, once ``bell`` says they are there.

        ``dst``: local memory, or a list of it, one for each block. ``after``: what has to happen first. Gives the event
        after which the bytes are there. Of an empty chunk only the signal is waited for.
        """
        targets = _several(dst)
        if self.foreign:
            misuse.check_peer(self, "retrieve", peer)
            misuse.check_place(self, "retrieve", chunk, peer, block, len(targets), bell)
            misuse.check_local(self, "retrieve", *targets)
            misuse.check_event(self, "retrieve", after)
        self._order(after)
        self._take(targets, chunk, peer, block, bell)
        return self._record("retrieve")

    # --- publishing -------------------------------------------------------------------------------------------

    def _push(
        self,
        stream: str,
        chunk: Chunk,
        sources: Sequence[Operand],
        block: int,
        *,
        written: bool,
        bell: int | None = None,
    ) -> None:
        """Make a chunk visible and say so. ``written``: its bytes are in the slot already, in this host's cache."""
        if self.spec.in_lines:
            for number, src in enumerate(sources, block):
                for line, at in enumerate(range(0, chunk.nbytes, PAYLOAD_BYTES), chunk.slot_offset // PAYLOAD_BYTES):
                    doorbell = self._doorbell(chunk, self.rank, number, line)
                    size = min(PAYLOAD_BYTES, chunk.nbytes - at)
                    self._emit(stream, Op.SIGNAL_DATA, arg=doorbell, value=chunk.seq, a=src.at(at), nbytes=size)
            return
        doorbell = self._bell_of(chunk, self.rank, block, bell, len(sources))
        areas = [self._area(chunk, self.rank, block + number) for number in range(len(sources) if chunk.nbytes else 0)]
        for number, (area, src) in enumerate(zip(areas, sources, strict=False), block):
            if self.spec.zero_copy and not self._in_slot(number):
                self._check_in_place(chunk, src, number)
            if not written:
                self._emit(stream, Op.WRITE, dst=area, a=src, nbytes=chunk.nbytes)
        for area in areas:
            self._emit(stream, Op.FLUSH, a=area, nbytes=chunk.nbytes)
        if areas:
            self._emit(stream, Op.FENCE)
        if not self.spec.checked or not areas:
            self._emit(stream, Op.SIGNAL, arg=doorbell, value=chunk.seq)
            return
        checksum = Operand(Kind.BUFFER, SCRATCH, 0, CHECKSUM_AT[stream])
        self._checksum(stream, "crc32c", checksum, chunk, [sources[0]])
        self._emit(stream, Op.SIGNAL_DATA, arg=doorbell, value=chunk.seq, a=checksum, nbytes=CHECKSUM_BYTES)

    def _bell_of(self, chunk: Chunk, writer: int, block: int, bell: int | None, blocks: int = 1) -> int:
        """The doorbell that is rung for blocks from this one on."""
        if self.spec.checked and (bell is not None or blocks > 1):
            raise ArgumentError(f"{self.call}: a checksum is of one block and its own doorbell: publish each by itself")
        return self._doorbell(chunk, writer, block) if bell is None else self._flag(chunk, writer, bell)

    def _check_in_place(self, chunk: Chunk, src: Operand, block: int) -> None:
        """Peers will read this block where the array lies: there it must be."""
        areas = self._areas
        lies = self.input(block * areas.nbytes + chunk.offset)
        if block >= areas.placed_in_heap:
            lies = self.output(self.rank * areas.nbytes + chunk.offset)
        if src != lies:
            raise ArgumentError(f"{self.call}: zero copy publishes parts of the input, block after block, not others")
        self._read_in_place |= block >= areas.placed_in_heap or not self._answered

    # --- retrieving -------------------------------------------------------------------------------------------

    def _take(self, targets: Sequence[Operand], chunk: Chunk, peer: int, block: int, bell: int | None) -> None:
        """Everything that it takes to have blocks in local memory."""
        if self.spec.in_lines:
            for number, dst in enumerate(targets, block):
                self._take_lines(dst, chunk, peer, number)
        elif self.spec.checked and chunk.nbytes:
            self._bell_of(chunk, peer, block, bell, len(targets))
            self._read(targets[0], chunk, peer, block)
        else:
            self._await_bell(chunk, peer, block, bell)
            for number, dst in enumerate(targets if chunk.nbytes else (), block):
                area = self._area(chunk, peer, number)
                self._emit("retrieve", Op.INVALIDATE, a=area, nbytes=chunk.nbytes)
                self._emit("retrieve", Op.READ, dst=dst, a=area, nbytes=chunk.nbytes)

    def _await_bell(self, chunk: Chunk, peer: int, block: int, bell: int | None) -> None:
        self._emit("retrieve", Op.WAIT, arg=self._bell_of(chunk, peer, block, bell), value=chunk.seq)
        if self._in_slot(block) and chunk.nbytes:
            self._knows_free(chunk.seq)

    def _await_chunk(self, chunk: Chunk, peer: int, block: int, bell: int | None = None) -> Operand:
        area = self._area(chunk, peer, block)
        if self.spec.checked:
            came, doorbell = Operand(Kind.BUFFER, SCRATCH, 0, CAME_AT), self._bell_of(chunk, peer, block, bell)
            self._emit("retrieve", Op.WAIT_DATA, arg=doorbell, value=chunk.seq, dst=came, nbytes=CHECKSUM_BYTES)
            self._knows_free(chunk.seq)
        else:
            self._await_bell(chunk, peer, block, bell)
        self._emit("retrieve", Op.INVALIDATE, a=area, nbytes=chunk.nbytes)
        return area

    def _knows_free(self, seq: int) -> None:
        """A peer has stored to this round's slot, and so knew that all are done with the one before."""
        name = self._stream_name("retrieve")
        self._free[name] = max(self._free.get(name, -1), seq)

    def _read(self, dst: Operand, chunk: Chunk, peer: int, block: int) -> None:
        area = self._await_chunk(chunk, peer, block)
        self._emit("retrieve", Op.READ, dst=dst, a=area, nbytes=chunk.nbytes)
        if self.spec.checked:
            computed, came = (Operand(Kind.BUFFER, SCRATCH, 0, at) for at in (CHECKSUM_AT["retrieve"], CAME_AT))
            self._checksum("retrieve", "crc32c_check", computed, chunk, [dst, came])

    def _take_lines(self, dst: Operand, chunk: Chunk, peer: int, block: int) -> None:
        for line, at in enumerate(range(0, chunk.nbytes, PAYLOAD_BYTES), chunk.slot_offset // PAYLOAD_BYTES):
            doorbell = self._doorbell(chunk, peer, block, line)
            size = min(PAYLOAD_BYTES, chunk.nbytes - at)
            self._emit("retrieve", Op.WAIT_DATA, arg=doorbell, value=chunk.seq, dst=dst.at(at), nbytes=size)
            self._knows_free(chunk.seq)

    def _checksum(self, stream: str, kernel: str, dst: Operand, chunk: Chunk, sources: list[Operand]) -> None:
        number = self._kernels.get(Kernel(kernel, (chunk.nbytes,)))
        if number is None:
            raise ArgumentError(f"{self.call}: with checksums a part of a chunk is made by the builder's part()")
        self._emit(stream, Op.COMPUTE, arg=number, nbytes=CHECKSUM_BYTES, dst=dst, sources=sources)
