"""All-to-all: every rank publishes a block for every other, and reads the N - 1 blocks meant for it.

Rounds: ceil(m / P), where m is one block. Written per rank: (N - 1) m. Read per rank: (N - 1) m.
Source: CCCL (arXiv 2602.22457), N-to-N placement: every rank writes to cards of its own, starts staggered.
"""

from collectives.builder import Builder, Chunk, Ints
from collectives.builder.recipes import algorithm


@algorithm("all_to_all")
def all_to_all(b: Builder) -> None:
    own = b.rank * b.nbytes
    b.copy(b.output(own), b.input(own), b.nbytes)
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, spread="ranges", alike=b.nbytes):
        exchange(b, chunks, b.each_peer, b.each_peer)


def exchange(b: Builder, chunks: list[Chunk], written: Ints, read: Ints) -> None:
    """Publish a round's chunks for peers in the order ``written``; read those for this rank in the order ``read``."""
    if not b.call.in_place:  # no block has to be sent before another comes to its place
        for chunk in chunks:
            b.publish_each(chunk, written * b.nbytes + chunk.offset, blocks=written)
        for chunk in chunks:
            b.retrieve_each(read * b.nbytes + chunk.offset, chunk, read, block=b.rank)
        return
    sent = {}
    for chunk in chunks:
        for peer in written.tolist():
            offset = peer * b.nbytes + chunk.offset
            sent[chunk.number, peer] = b.publish(chunk, b.input(offset), block=peer, overwritten=True)
    for chunk in chunks:
        for peer in read.tolist():
            offset = peer * b.nbytes + chunk.offset
            b.retrieve(b.output(offset), chunk, peer, block=b.rank, after=sent[chunk.number, peer])
