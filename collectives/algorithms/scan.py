"""Scan: every rank but the last publishes its vector, rank k reads those of ranks 0 to k - 1 and reduces, its own last.

Rounds: ceil(m / P). Written per rank but the last: m. Read by rank k: k m. Folded in rank order. Source: as all_reduce
in one shot, of which each rank takes a part: the fewest steps.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("scan", variants=("naive", "aggregate", "all", "line"))
def scan(b: Builder) -> None:
    if b.rank == 0:
        b.copy(b.output(), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        sent = {}
        for chunk in chunks:
            if b.rank < b.ranks - 1:
                sent[chunk] = b.publish(chunk, b.input(chunk.offset), overwritten=b.rank > 0)
        for chunk in chunks:
            if b.rank > 0:
                own, upto = b.input(chunk.offset), range(b.rank + 1)
                b.fold(b.output(chunk.offset), chunk, own, ranks=upto, after=sent.get(chunk))
