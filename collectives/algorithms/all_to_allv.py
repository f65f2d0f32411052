"""All-to-all of uneven blocks: every rank publishes one for every other that gets any, and reads those meant for it.

Rounds: ceil(m / P), where m is the largest block and P what fits a slot. Written per rank: all blocks but its own. Read
per rank: its block of every other. Source: as all_to_all, CCCL (arXiv 2602.22457), N-to-N placement.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm
from collectives.contracts import begins


@algorithm("all_to_allv", variants=("naive", "aggregate", "all", "line"))
def all_to_allv(b: Builder) -> None:
    source, target = begins(b.sent).tolist(), begins(b.received).tolist()
    b.copy(b.output(target[b.rank]), b.input(source[b.rank]), int(b.sent[b.rank]))
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, spread="ranges"):
        sent = {}
        for chunk in chunks:
            for peer, part in zip(range(b.ranks), b.cut(chunk, b.sent), strict=True):
                if peer != b.rank and part.nbytes:
                    offset = b.input(source[peer] + chunk.offset)
                    sent[chunk.number, peer] = b.publish(part, offset, block=peer, overwritten=True)
        for chunk in chunks:
            parts = b.cut(chunk, b.received)
            for peer in b.peers:
                if parts[peer].nbytes:
                    offset, after = b.output(target[peer] + chunk.offset), sent.get((chunk.number, peer))
                    b.retrieve(offset, parts[peer], peer, block=b.rank, after=after)
