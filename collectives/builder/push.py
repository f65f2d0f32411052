"""Results that peers write where they lie, in the heap: one copy, from a rank's array to its peer's result.

A rank whose result peers write first gives it up. Its host's cache may hold lines of it, and a dirty one that is
evicted later would replace what a peer has written: so the rank invalidates the lines before it rings. The plan says
WRITE before that. It brings to the pool what the user stored to a private array, and does nothing for an array that
lives there, whose user's stores were the same stores. The bell tells where in the rank's strip the result lies. A rank
that has heard it writes there, and rings its own; the peer invalidates once more, and reads: from the array to itself,
or to a private one.
"""

from __future__ import annotations

from collections.abc import Sequence

from collectives import contracts
from collectives.builder.slots import Areas, Chunk, Loop, Operands, RegionIds, SlotCarrier, in_strip
from collectives.in_heap import gives_up
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Call, Flag, Kind, Op, Operand

IN_PLACE = "has peers write the result, in which the input lies: pass out"


def refusal(call: Call, at: int = 0) -> str | None:
    """Say why peers cannot write a call's results, as the end of a sentence; None where they can.

    Args:
        call: The call.
        at: Where in its rank's strip of the heap a result begins, in bytes.
    """
    if call.in_place:
        return IN_PLACE
    if call.nbytes % LINE_BYTES or at % LINE_BYTES:
        where = f" from byte {at} of the heap on" if at % LINE_BYTES else ""
        return (
            f"has peers write whole lines of {LINE_BYTES} bytes, and blocks of {call.nbytes} bytes{where} are none: "
            f"take another variant"
        )
    return None


class PushCarrier(SlotCarrier):
    """Writes blocks of a rank to the results of the ranks that they are for.

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
            raise ArgumentError(f"{b.call.collective} {b.call.algorithm} {why}")
        ranks = [rank for rank in range(b.ranks) if gives_up(b.call, rank)]
        if loop.blocks != b.ranks and (loop.blocks, len(ranks)) != (1, 1):
            raise ArgumentError(f"{b.call}: each rank's result has its block: rounds(..., blocks={b.ranks})")
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
        """Return False: nothing lies in slots."""
        return False

    takes_slot = folds_into = in_slot

    def area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        """Return where a chunk of a writer's block lies: in the result of the rank that the block is for."""
        at = (writer - self._first_writer) * self.areas.nbytes + chunk.offset
        return Operand(Kind.REGION, self.areas.region_of[block], 0, at)

    def begin(self, chunks: Sequence[Chunk]) -> None:
        """Give this rank's result up, but for its own block, and ring; nothing where peers write no result of it."""
        b, each = self.b, self.areas.nbytes
        self._first, self._heard = chunks[0], set[int]()
        if b.rank not in self._own:
            return
        result, end = Operand(Kind.REGION, self._own[b.rank]), contracts.buffers(b.call, b.rank)[1].nbytes
        mine = (b.rank - self._first_writer) * each
        mine = mine if 0 <= mine < end else end
        given = [(at, to - at) for at, to in ((0, mine), (mine + each, end)) if at < to]
        for at, nbytes in given:
            b._emit("publish", Op.WRITE, dst=result.at(at), a=b.output(at), nbytes=nbytes)
        for at, nbytes in given:
            b._emit("publish", Op.INVALIDATE, a=result.at(at), nbytes=nbytes)
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
