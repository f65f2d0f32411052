"""A vector cut into one slice per rank, for algorithms that fold each slice on one rank."""

from collections.abc import Callable

import numpy as np

from collectives.builder import CROSSWISE, SIDE_BY_SIDE, Batches, Builder, Chunk, Event, Ints
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Operand


def slices(b: Builder, count: int | None = None) -> tuple[int, Callable[[Ints, Chunk], Ints]]:
    """Cut a call's vector into ``count`` slices, or one a rank, of ceil(m / N) bytes, rounded up to whole lines.

    Of fewer bytes the first slices have a whole line each, the last ones none. Returns the distance of two slices in
    bytes, and how many bytes of a chunk lie in each of the slices of these numbers: some may be short or empty.
    """
    stride = -(-b.nbytes // ((count or b.ranks) * LINE_BYTES)) * LINE_BYTES

    def in_slice(numbers: Ints, chunk: Chunk) -> Ints:
        ends = np.minimum(stride * (numbers + 1), b.nbytes)
        return np.clip(ends - (stride * numbers + chunk.offset), 0, chunk.nbytes)

    return stride, in_slice


def fold_crosswise(b: Batches, result: Operand) -> Event | None:
    """Fold this rank's slice of everyone's vector, if it has one, and return the event; slices lie crosswise."""
    stride, in_slice = slices(b)
    folded, batches = None, b.batches_in_pairs()
    for chunks in b.rounds(stride, blocks=b.ranks, bells=len(batches), spread=CROSSWISE):
        for chunk in chunks:
            for batch in batches:
                b.publish_batch(batch, chunk)
            nbytes = int(in_slice(np.array([b.rank]), chunk)[0])
            if nbytes:
                own = b.input(b.rank * stride + chunk.offset)
                folded = b.fold_batches(result.at(chunk.offset), b.part(chunk, nbytes), own, batches)
    return folded


def gather_side_by_side(b: Batches, folded: Event | None, chunk_bytes: int = 0) -> None:
    """Publish this rank's slice of the output once it is folded, and read those of all others, many in one copy."""
    stride, in_slice = slices(b)
    me, own, sliced = np.array([b.rank]), b.rank * stride, -(-b.nbytes // stride) if stride else 0
    batches = b.batches(end=sliced)  # of the ranks that have a slice
    behind = sum(batch.ranks.start <= b.rank for batch in batches)  # the batch behind this rank's own comes first
    for chunks in b.rounds(stride, spread=SIDE_BY_SIDE, chunk_bytes=chunk_bytes):
        for chunk in chunks if b.rank < sliced else ():
            part = b.part(chunk, int(in_slice(me, chunk)[0]))
            b.publish(part, b.output(own + chunk.offset), after=folded)
        for chunk in chunks:
            b.retrieve_batches(batches[behind:] + batches[:behind], chunk)
