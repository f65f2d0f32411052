"""The fused operators of FLUX (arXiv 2406.06858), over a ring of slots in the pool.

Rows of A or of results move in communication tiles, products are made in compute tiles, and neither size depends on the
other: a compute tile waits for the communication tiles that its rows are in, a communication tile for the compute tiles
that its rows are made of. Epochs only rise and every line has one writer, so that no flag is ever reset.
"""

from collectives.builder import Chunk, Event
from collectives.fused.builder import FusedBuilder
from cxlemu.plan import Operand


def all_gather_gemm(b: FusedBuilder) -> None:
    """Multiply the rank's own rows first, then peers' in the order in which they are copied in: once, for all columns.

    Read per rank: (N - 1) shards of A. Written per rank: its shard, with ``push`` N - 1 times.
    """
    push = b.gemm.transport == "push"
    gathered = b.matrix(b.gemm.m, b.gemm.k)
    missing = {first: {shard for shard in b.shards_from(first) if shard != b.rank} for first in b.first_shards}
    if missing[b.first_shard(b.rank)] and b.shards_a_tile > 1:
        b.copy_own(gathered.at(b.rank * b.nbytes))
    else:
        for tile in b.row_tiles():
            rows = b.rows_of(b.rank, tile)
            b.multiply(_output_rows(b, rows), b.input(tile.start * b.row_bytes), len(rows))
    for chunks in b.chunked(blocks=b.ranks if push else 1):
        for reader in reversed(b.peers) if push else (0,):  # first for the peer that reads this shard first
            for chunk in chunks:
                b.publish(chunk, b.input(chunk.offset), block=reader)
        for peer in b.sources:
            for chunk in chunks:
                place = gathered.at(peer * b.nbytes + chunk.offset)
                b.retrieve(place, chunk, peer, block=b.rank if push else 0)
                if ready := _ready(b, peer, chunk, missing):
                    b.after("compute", b.ready("retrieve"))
                    for rows in ready:
                        b.multiply(_output_rows(b, rows), gathered.at(rows.start * b.row_bytes), len(rows))


def _ready(b: FusedBuilder, peer: int, chunk: Chunk, missing: dict[int, set[int]]) -> list[range]:
    """The rows of those tiles that need nothing else when this chunk is there."""
    if b.shards_a_tile == 1:
        return [b.rows_of(peer, tile) for tile in b.row_tiles() if _ends_in(chunk, tile.stop * b.row_bytes)]
    first = b.first_shard(peer)
    if _ends_in(chunk, b.nbytes):
        missing[first].discard(peer)
        if not missing[first]:
            return [b.rows_from(first)]
    return []


def _output_rows(b: FusedBuilder, rows: range) -> Operand:
    return b.output(rows.start * b.shapes.n * b.itemsize)


def _ends_in(chunk: Chunk, end: int) -> bool:
    """Whether this chunk brings the last byte before ``end``, which is one of its shard."""
    return chunk.offset < end <= chunk.offset + chunk.nbytes


def gemm_reduce_scatter(b: FusedBuilder) -> None:
    """Send every tile straight to the rank whose rows it has, which folds all ranks' tiles in rank order.

    Written per rank: N - 1 shards of the result. Read per rank: N - 1.
    """
    partials = Partials(b)
    for chunks in b.chunked(blocks=b.ranks):
        mine = partials.published(chunks)
        for chunk, event in zip(chunks, mine, strict=True):
            own = partials.place(b.rank, chunk.offset)
            b.fold(b.output(chunk.offset), chunk, own, block=b.rank, after=event)


def gemm_all_reduce(b: FusedBuilder) -> None:
    """Do as gemm_reduce_scatter; then each rank publishes the rows that it folded, so that all get the same bits.

    Written per rank: N shards of the result. Read per rank: 2 (N - 1).
    """
    partials, result = Partials(b), b.ranks
    for chunks in b.chunked(blocks=b.ranks + 1):
        mine = partials.published(chunks)
        for chunk, event in zip(chunks, mine, strict=True):
            own = partials.place(b.rank, chunk.offset)
            offset = b.rank * b.nbytes + chunk.offset
            b.fold(b.output(offset), chunk, own, block=b.rank, republish=result, after=event)
        for chunk in chunks:
            for peer in b.peers:
                b.retrieve(b.output(peer * b.nbytes + chunk.offset), chunk, peer, block=result)


class Partials:
    """This rank's summands of all ranks' rows: computed destination by destination, and published at once."""

    def __init__(self, b: FusedBuilder) -> None:
        self._b = b
        self._matrix = b.matrix(b.gemm.m, b.gemm.n)
        self._todo = {shard: b.row_tiles() for shard in range(b.ranks)}
        self._events: dict[int, Event] = {}  # first shard of a group -> what follows its tile

    def place(self, shard: int, offset: int) -> Operand:
        """Where this rank keeps its summands of a shard, in scratch memory."""
        return self._matrix.at(shard * self._b.nbytes + offset)

    def published(self, chunks: list[Chunk]) -> list[Event | None]:
        """Compute these parts of all shards, and publish other ranks'; return the event before each own part, or
        None."""
        b, mine = self._b, []
        for shard in b.order:
            for chunk in chunks:
                computed = self._computed(shard, chunk)
                if shard == b.rank:
                    mine.append(computed)
                    continue
                b.after("publish", computed)
                b.publish(chunk, self.place(shard, chunk.offset), block=shard)
        return mine

    def _computed(self, shard: int, chunk: Chunk) -> Event | None:
        """Compute this chunk's rows that are not computed yet; return an event after them, or None if it was
        awaited."""
        b, first = self._b, self._b.first_shard(shard)
        if b.shards_a_tile > 1:  # other shards' parts follow what is computed here
            if self._todo.pop(first, None):
                rows = b.rows_from(first)
                b.multiply(self.place(first, 0), b.input(rows.start * b.shapes.k * b.itemsize), len(rows))
                self._events[first] = b.ready("compute")
            return self._events[first]
        todo = self._todo[shard]
        missing = [tile for tile in todo if tile.start * b.row_bytes < chunk.offset + chunk.nbytes]
        for tile in missing:
            a = b.input(b.rows_of(shard, tile).start * b.shapes.k * b.itemsize)
            b.multiply(self.place(shard, tile.start * b.row_bytes), a, len(tile))
        del todo[: len(missing)]
        return b.ready("compute") if missing else None


OPERATORS = {
    "all_gather_gemm": all_gather_gemm,
    "gemm_reduce_scatter": gemm_reduce_scatter,
    "gemm_all_reduce": gemm_all_reduce,
}
