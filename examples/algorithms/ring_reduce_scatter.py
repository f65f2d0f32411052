"""Ring reduce-scatter: every rank folds its part into what its left neighbour published, and publishes that.

Steps: N - 1. Written and read per rank: (N - 1) m, where m is a rank's result. Block k sets out from the rank after k,
goes round and ends at rank k, which alone has the result: folded in that order.
Source: Chan, Heimlich, Purkayastha, van de Geijn, Collective communication: theory, practice, and experience, 2007.

cxlemu run --algorithm examples/algorithms/ring_reduce_scatter.py:ring_reduce_scatter
"""

from collectives import Builder, algorithm


@algorithm("reduce_scatter", fold_order="uniform")
def ring_reduce_scatter(b: Builder) -> None:
    left, steps = (b.rank - 1) % b.ranks, b.ranks - 1
    partial = b.scratch(b.nbytes)
    for chunks in b.rounds(b.nbytes, blocks=steps, spread="ranges"):
        sent = {chunk: b.publish(chunk, b.input(left * b.nbytes + chunk.offset), block=0) for chunk in chunks}
        for step in range(steps):
            block, last = (left - 1 - step) % b.ranks, step == steps - 1
            for chunk in chunks:
                own = b.input(block * b.nbytes + chunk.offset)
                if last:
                    b.combine(b.output(chunk.offset), chunk, left, own, block=step, last=True)
                    continue
                folded = partial.at(chunk.offset)
                came = b.combine(folded, chunk, left, own, block=step, after=sent[chunk] if step else None)
                sent[chunk] = b.publish(chunk, folded, block=step + 1, after=came)
