"""Broadcast: the root publishes its block over all cards, everyone else reads it.

Rounds: ceil(m / P). Written: m by the root. Read: m by every other rank.
Source: CCCL (arXiv 2602.22457), 1-to-N placement: round-robin over all cards.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("broadcast")
def broadcast(b: Builder) -> None:
    if b.is_root:
        b.copy(b.output(), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, writers=[b.root], spread="cards", alike=b.nbytes):
        for chunk in chunks:
            if b.is_root:
                b.publish(chunk, b.input(chunk.offset))
            else:
                b.retrieve(b.output(chunk.offset), chunk, b.root)
