"""Ring all-gather: every rank forwards what its left neighbour published, until each block has gone round.

Steps: N - 1. Written per rank: (N - 1) m. Read per rank: (N - 1) m, where m is a rank's block.
Source: Chan, Heimlich, Purkayastha, van de Geijn, Collective communication: theory, practice, and experience, 2007.

cxlemu run --algorithm examples/algorithms/ring_all_gather.py:ring_all_gather
"""

from collectives import Builder, algorithm


@algorithm("all_gather")
def ring_all_gather(b: Builder) -> None:
    left, steps = (b.rank - 1) % b.ranks, b.ranks - 1
    b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, blocks=steps, spread="ranges"):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset), block=0)
        for step in range(steps):
            origin = (left - step) % b.ranks
            for chunk in chunks:
                result = b.output(origin * b.nbytes + chunk.offset)
                came = b.retrieve(result, chunk, left, block=step)
                if step + 1 < steps:
                    b.publish(chunk, result, block=step + 1, after=came)
