"""Scatter: the root publishes a block for every other rank, each reads its own.

Rounds: ceil(m / P). Written by the root: (N - 1) m. Read per rank but the root: m.
Source: CCCL (arXiv 2602.22457), 1-to-N placement: blocks round-robin over all cards.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("scatter")
def scatter(b: Builder) -> None:
    if b.is_root:
        b.copy(b.output(), b.input(b.root * b.nbytes), b.nbytes)
    for chunks in b.rounds(b.nbytes, writers=[b.root], blocks=b.ranks, spread="cards"):
        for chunk in chunks:
            if not b.is_root:
                b.retrieve(b.output(chunk.offset), chunk, b.root, block=b.rank)
                continue
            for peer in b.peers:
                b.publish(chunk, b.input(peer * b.nbytes + chunk.offset), block=peer)
