"""All-reduce, one shot: every rank publishes its vector, everyone reads all the others and reduces locally.

Rounds: ceil(m / P). Written per rank: m. Read per rank: (N - 1) m. Folded in rank order on every rank, so that all
ranks get the same bits. Source: CCCL (arXiv 2602.22457), N-to-N placement. The fewest steps; for large vectors the
two-shot algorithm reads less.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("all_reduce", variants=("naive", "aggregate", "all", "line", "staged"))
def all_reduce(b: Builder) -> None:
    for chunks in b.rounds(b.nbytes, spread="ranges"):
        sent = [b.publish(chunk, b.input(chunk.offset), overwritten=True) for chunk in chunks]
        for chunk, event in zip(chunks, sent, strict=True):
            b.fold(b.output(chunk.offset), chunk, b.input(chunk.offset), after=event)
