"""Reduce-scatter crosswise: every rank publishes its blocks for many peers in one copy, and reads those of many so too.

As all_to_all_crosswise, but that what is read is folded, in rank order. Rounds: ceil(m / P), where m is a result.
Written per rank: (N - 1) m. Read per rank: (N - 1) m.
Source: CCCL (arXiv 2602.22457), reduce_scatter, here with all of a writer's and of a reader's blocks side by side.
"""

from dataclasses import replace

from collectives.builder import CROSSWISE, STAGED, Batches
from collectives.builder.recipes import algorithm


@algorithm("reduce_scatter", builder=Batches, variants=(replace(STAGED, name="crosswise"),))
def reduce_scatter_crosswise(b: Batches) -> None:
    batches = b.batches_in_pairs()
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, bells=len(batches), spread=CROSSWISE):
        for chunk in chunks:
            for batch in batches:
                b.publish_batch(batch, chunk)
            b.fold_batches(b.output(chunk.offset), chunk, b.input(b.rank * b.nbytes + chunk.offset), batches)
