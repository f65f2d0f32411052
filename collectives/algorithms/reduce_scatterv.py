"""Reduce-scatter of uneven blocks: every rank publishes one for every other that gets any, each reduces those for it.

Rounds: ceil(m / P), where m is the largest result and P what fits a slot. Written per rank: all blocks but its own.
Read per rank: its block of every other. Folded in rank order. Source: as reduce_scatter, CCCL (arXiv 2602.22457).
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm
from collectives.contracts import begins


@algorithm("reduce_scatterv", variants=("naive", "aggregate", "all", "line"))
def reduce_scatterv(b: Builder) -> None:
    sizes, offset, peers = b.sent, begins(b.sent), b.each_peer
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, spread="ranges"):
        for chunk in chunks:
            b.publish_each(chunk, offset[peers] + chunk.offset, blocks=peers, nbytes=b.within(sizes[peers], chunk))
        for chunk in chunks:
            mine = b.cut(chunk, sizes)[b.rank]
            if mine.nbytes:
                b.fold(b.output(chunk.offset), mine, b.input(int(offset[b.rank]) + chunk.offset), block=b.rank)
