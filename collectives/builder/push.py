"""Results that peers write where they lie, in the heap: one copy, from a rank's array to its peer's result.

Every rank first gives its result up. Its host's cache may hold lines of it, and a dirty one that is evicted later would
replace what a peer has written: so the rank invalidates the lines before it rings. The plan says WRITE before that. It
brings to the pool what the user stored to a private array, and does nothing for an array that lives there, whose user's
stores were the same stores. A rank that has heard a peer's bell writes to its result, and rings its own; the peer
invalidates once more, and reads: from the array to itself, or to a private one.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectives import contracts
from collectives.builder.slots import Areas, Chunk, Loop, Operands, RegionIds, SlotCarrier, in_strip
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, Kind, Op, Operand

IN_PLACE = "has peers write the result, in which the input lies: pass out"


def refusal(call: Call) -> str | None:
    """Say why peers cannot write a call's results, as the end of a sentence; None where they can."""
    if call.in_place:
        return IN_PLACE
    at = call.heap.output or 0 if call.heap is not None else 0
    if call.nbytes % LINE_BYTES or at % LINE_BYTES:
        where = f" from byte {at} of the heap on" if at % LINE_BYTES else ""
        return (
            f"has peers write whole lines of {LINE_BYTES} bytes, and blocks of {call.nbytes} bytes{where} are none: "
            f"take another variant"
        )
    return None


class PushCarrier(SlotCarrier):
    """Writes block k of a rank to the result of rank k, as the block of the rank that writes it.

    A rank's own block has no chunks under way: its doorbell says that the rank's result is given up.
    """

    in_columns = False
    reads_in_place = True  # in place, peers would still have to be sent what they replace
    _own = RegionIds()

    def _placed(self, loop: Loop, placement: str, doorbells: int) -> tuple[int, int, Areas]:
        b, heap, nbytes = self.b, self.b.call.heap, loop.nbytes
        assert heap is not None and heap.output is not None  # catalog.build sees to it
        if (why := refusal(b.call)) is not None:
            raise ArgumentError(f"{b.call.collective} {b.call.algorithm} {why}")
        sizes = [(rank, heap.output, contracts.buffers(b.call, rank)[1].nbytes) for rank in range(b.ranks)]
        ranks = list(range(b.ranks))
        self._own = self._table(ranks, [in_strip(b, *where) for where in sizes])
        results = self._table(ranks, [in_strip(b, *where, writer_bytes=nbytes) for where in sizes])
        return nbytes, 0, Areas(results, nbytes, min(b.spec.chunks, doorbells), nbytes)

    def in_slot(self, block: int) -> bool:
        """Return False: nothing lies in slots."""
        return False

    takes_slot = folds_into = in_slot

    def area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        """Return where a chunk of a writer's block lies: in the result of the rank that the block is for."""
        return Operand(Kind.REGION, self.areas.region_of[block], 0, writer * self.areas.nbytes + chunk.offset)

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """Give the result up, but for this rank's own block, and ring."""
        b, each = self.b, self.areas.nbytes
        self._heard: set[int] = set()
        own = Operand(Kind.REGION, self._own[b.rank])
        before, after = (0, b.rank * each), ((b.rank + 1) * each, (b.ranks - b.rank - 1) * each)
        given = [(at, nbytes) for at, nbytes in (before, after) if nbytes]
        for at, nbytes in given:
            b._emit("publish", Op.WRITE, dst=own.at(at), a=b.output(at), nbytes=nbytes)
        for at, nbytes in given:
            b._emit("publish", Op.INVALIDATE, a=own.at(at), nbytes=nbytes)
        self._first = chunks[0]
        b._emit("publish", Op.SIGNAL, arg=self.doorbell(self._first, b.rank, b.rank), value=self._first.seq)

    def push(
        self, stream: str, chunk: Chunk, sources: Operands, block: int, written: bool = False, bell: int | None = None
    ) -> None:
        """Write a chunk to the result of rank ``block``, once that has given it up; arguments as in slots."""
        if block not in self._heard:
            self.b._emit(stream, Op.WAIT, arg=self.doorbell(self._first, block, block), value=chunk.seq)
            self._heard.add(block)
        super().push(stream, chunk, sources, block, written, bell)
