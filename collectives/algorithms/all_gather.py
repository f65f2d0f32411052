"""All-gather: every rank publishes its block once, every rank reads the N - 1 others.

Rounds: ceil(m / P), where m is a rank's block and P what fits a slot. Written per rank: m. Read per rank: (N - 1) m.
Source: CCCL (arXiv 2602.22457), N-to-N placement: every rank writes to cards of its own, readers start staggered.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("all_gather")
def all_gather(b: Builder) -> None:
    b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, spread="ranges", alike=b.nbytes):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset))
        for chunk in chunks:
            b.retrieve_each(b.each_peer * b.nbytes + chunk.offset, chunk, b.each_peer)
