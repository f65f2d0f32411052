"""All-gather into the heap: every rank writes its block to the results of its peers.

Rounds: 1. Written per rank: (N - 1) m, where m is a rank's block. Read per rank: nothing, the result lies where it is
written; behind an emulated cache, (N - 1) m.
"""

from collectives.builder import PUSH, Builder
from collectives.builder.recipes import algorithm


@algorithm("all_gather", variants=(PUSH,))
def all_gather_push(b: Builder) -> None:
    b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, spread="ranges"):
        for chunk in chunks:
            for peer in b.peers:
                b.publish(chunk, b.input(chunk.offset), block=peer)
        for chunk in chunks:
            b.retrieve_each(b.each_peer * b.nbytes + chunk.offset, chunk, b.each_peer, block=b.rank)
