"""All-gather of uneven blocks: every rank publishes its block once, every rank reads the others that are not empty.

Rounds: ceil(m / P), where m is the largest block and P what fits a slot. Written per rank: its block. Read per rank:
all others. Source: as all_gather, CCCL (arXiv 2602.22457), N-to-N placement; a writer has room for the largest block.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm
from collectives.contracts import begins


@algorithm("all_gatherv", variants=("naive", "aggregate", "all", "line"))
def all_gatherv(b: Builder) -> None:
    sizes, offset, peers = b.received, begins(b.received), b.each_peer
    b.copy(b.output(int(offset[b.rank])), b.input(), int(sizes[b.rank]))
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        for chunk in chunks:
            mine = b.cut(chunk, sizes)[b.rank]
            if mine.nbytes:
                b.publish(mine, b.input(chunk.offset))
        for chunk in chunks:
            b.retrieve_each(offset[peers] + chunk.offset, chunk, peers, nbytes=b.within(sizes[peers], chunk))
