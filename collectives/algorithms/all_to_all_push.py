"""All-to-all into the heap: every rank writes its block for a peer to that peer's result.

Rounds: 1. Written per rank: (N - 1) m, where m is one block. Read per rank: nothing, the result lies where it is
written; behind an emulated cache, (N - 1) m.
"""

from collectives.algorithms.all_to_all import exchange
from collectives.builder import PUSH, Builder
from collectives.builder.recipes import algorithm


@algorithm("all_to_all", variants=(PUSH,))
def all_to_all_push(b: Builder) -> None:
    own = b.rank * b.nbytes
    b.copy(b.output(own), b.input(own), b.nbytes)
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, spread="ranges"):
        exchange(b, chunks, b.each_peer, b.each_peer)
