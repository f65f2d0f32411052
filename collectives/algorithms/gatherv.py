"""Gather of uneven blocks: every rank publishes its block, the root reads those of the others that are not empty.

Rounds: ceil(m / P), where m is the largest block and P what fits a slot. Written per rank but the root: its block. Read
by the root: all others. Source: as gather, CCCL (arXiv 2602.22457), N-to-1 placement.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm
from collectives.contracts import begins


@algorithm("gatherv", variants=("naive", "aggregate", "all", "line"))
def gatherv(b: Builder) -> None:
    sizes, offset = b.received, begins(b.received).tolist()
    if b.is_root:
        b.copy(b.output(offset[b.rank]), b.input(), int(sizes[b.rank]))
    for chunks in b.rounds(b.nbytes, spread="cards"):
        for chunk in chunks:
            parts = b.cut(chunk, sizes)
            if not b.is_root and parts[b.rank].nbytes:
                b.publish(parts[b.rank], b.input(chunk.offset))
            for peer in b.peers if b.is_root else ():
                if parts[peer].nbytes:
                    b.retrieve(b.output(offset[peer] + chunk.offset), parts[peer], peer)
