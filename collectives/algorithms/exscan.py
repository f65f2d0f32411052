"""Exclusive scan: every rank but the last publishes its vector, rank k reads those of ranks 0 to k - 1 and reduces.

Rounds: ceil(m / P). Written per rank but the last: m. Read by rank k: k m. Folded in rank order; rank 0 gets nothing.
Source: as scan.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("exscan", variants=("naive", "aggregate", "all", "line"))
def exscan(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        sent = {}
        for chunk in chunks:
            if b.rank < b.ranks - 1:
                sent[chunk] = b.publish(chunk, b.input(chunk.offset), overwritten=b.rank > 0)
        for chunk in chunks:
            result = b.output(chunk.offset)
            if b.rank == 1:
                b.retrieve(result, chunk, 0, after=sent.get(chunk))
            elif b.rank > 1:
                b.fold(result, chunk, b.input(chunk.offset), ranks=range(b.rank), after=sent.get(chunk))
