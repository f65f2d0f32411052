"""Gather: every rank publishes its block, the root reads the N - 1 others.

Rounds: ceil(m / P). Written per rank but the root: m. Read by the root: (N - 1) m.
Source: CCCL (arXiv 2602.22457), N-to-1 placement: every block round-robin over all cards.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("gather")
def gather(b: Builder) -> None:
    if b.is_root:
        b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, spread="cards"):
        for chunk in chunks:
            if not b.is_root:
                b.publish(chunk, b.input(chunk.offset))
                continue
            for peer in b.peers:
                b.retrieve(b.output(peer * b.nbytes + chunk.offset), chunk, peer)
