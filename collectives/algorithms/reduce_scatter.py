"""Reduce-scatter: every rank publishes a block for every other, each reads the blocks meant for it and reduces them.

Rounds: ceil(m / P), where m is a rank's result. Written per rank: (N - 1) m. Read per rank: (N - 1) m.
Source: CCCL (arXiv 2602.22457), N-to-N placement. Folded in rank order.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("reduce_scatter")
def reduce_scatter(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, spread="ranges", alike=b.nbytes):
        for chunk in chunks:
            b.publish_each(chunk, b.each_peer * b.nbytes + chunk.offset, blocks=b.each_peer)
        for chunk in chunks:
            b.fold(b.output(chunk.offset), chunk, b.input(b.rank * b.nbytes + chunk.offset), block=b.rank)
