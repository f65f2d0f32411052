"""Scatter of uneven blocks: the root publishes one for every other rank that gets any, each reads its own.

Rounds: ceil(m / P), where m is the largest block and P what fits a slot. Written by the root: all but its own. Read per
rank but the root: its block. Source: as scatter, CCCL (arXiv 2602.22457), 1-to-N placement.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm
from collectives.contracts import begins


@algorithm("scatterv", variants=("naive", "aggregate", "all", "line"))
def scatterv(b: Builder) -> None:
    sizes, offset = b.sent, begins(b.sent).tolist()
    if b.is_root:
        b.copy(b.output(), b.input(offset[b.root]), int(sizes[b.root]))
    for chunks in b.rounds(b.nbytes, writers=[b.root], blocks=b.ranks, spread="cards"):
        for chunk in chunks:
            parts = b.cut(chunk, sizes)
            if not b.is_root and parts[b.rank].nbytes:
                b.retrieve(b.output(chunk.offset), parts[b.rank], b.root, block=b.rank)
            for peer in b.peers if b.is_root else ():
                if parts[peer].nbytes:
                    b.publish(parts[peer], b.input(offset[peer] + chunk.offset), block=peer)
