"""Reduce: every rank publishes its vector, the root reads all and reduces.

Rounds: ceil(m / P). Written per rank but the root: m. Read by the root: (N - 1) m. Folded in rank order.
Source: CCCL (arXiv 2602.22457), N-to-1 placement: every vector round-robin over all cards.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("reduce", variants=("naive", "aggregate", "all", "line", "zero_copy"))
def reduce(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, spread="cards"):
        for chunk in chunks:
            if b.is_root:
                b.fold(b.output(chunk.offset), chunk, b.input(chunk.offset))
            else:
                b.publish(chunk, b.input(chunk.offset))
