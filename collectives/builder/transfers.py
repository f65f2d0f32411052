"""From rank to rank: what it takes to publish a chunk, and to retrieve it.

A checksum lies in scratch memory until it travels in its doorbell's line, and there again when it came.
"""

from __future__ import annotations

from dataclasses import dataclass

from collectives.builder.areas import Chunk
from collectives.builder.part import SCRATCH, Event
from collectives.builder.rounds import Rounds
from cxlemu.checksums import CHECKSUM_BYTES
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import Kernel, Kind, Op, Operand

# Where checksums lie in scratch memory, a line each: what each stream computes last, and what came with a doorbell.
CHECKSUM_AT = {"publish": 0, "retrieve": LINE_BYTES}
CAME_AT = 2 * LINE_BYTES
CHECKSUMS_BYTES = 3 * LINE_BYTES


@dataclass
class Transfers(Rounds):
    """Publishes and retrieves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.style.checked:
            self.scratch(CHECKSUMS_BYTES)

    def publish(self, chunk: Chunk, src: Operand, *, block: int = 0, overwritten: bool = False) -> Event | None:
        """Put a chunk of one of this rank's blocks where its peers find it.

        ``overwritten``: in place, the result will replace ``src``; give the returned event to whatever does so.
        """
        if self.style.heap and overwritten and self.call.in_place:
            raise ArgumentError(f"{self.call}: peers still read what the result would replace: pass out, or copy")
        if not self.style.heap or self.style.checked:  # a checksum lies in the round's slot wherever its bytes do
            self._enter(chunk.seq, "publish")
        self._push("publish", chunk, src, block, written=False)
        return self._record() if overwritten and self.call.in_place else None

    def retrieve(self, dst: Operand, chunk: Chunk, peer: int, *, block: int = 0, after: Event | None = None) -> None:
        """Get a chunk of one of a peer's blocks."""
        self._order(after)
        if self.style.line:
            self._take_lines(dst, chunk, peer, block)
        else:
            self._read(dst, chunk, peer, block)

    # --- publishing -------------------------------------------------------------------------------------------

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

    def _lend(self, chunk: Chunk, src: Operand, block: int) -> None:
        """Peers will read this block where the array lies: there it must be."""
        areas = self._areas
        lies = self.input(block * areas.nbytes + chunk.offset)
        if block >= areas.lent:
            lies = self.output(self.rank * areas.nbytes + chunk.offset)
        if src != lies:
            raise ArgumentError(f"{self.call}: zero copy publishes parts of the input, block after block, not others")
        self._lends |= block >= areas.lent or not self._answered

    # --- retrieving -------------------------------------------------------------------------------------------

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

    def _take_lines(self, dst: Operand, chunk: Chunk, peer: int, block: int) -> None:
        for line, at in enumerate(range(0, chunk.nbytes, PAYLOAD_BYTES)):
            doorbell = self._doorbell(chunk, peer, block, line)
            size = min(PAYLOAD_BYTES, chunk.nbytes - at)
            self._emit("retrieve", Op.WAIT_DATA, arg=doorbell, value=chunk.seq, dst=dst.at(at), nbytes=size)

    def _checksum(self, stream: str, kernel: str, dst: Operand, chunk: Chunk, sources: list[Operand]) -> None:
        number = self._kernels.get(Kernel(kernel, (chunk.nbytes,)))
        if number is None:
            raise ArgumentError(f"{self.call}: with checksums a part of a chunk is made by the builder's part()")
        self._emit(stream, Op.COMPUTE, arg=number, nbytes=CHECKSUM_BYTES, dst=dst, sources=sources)
