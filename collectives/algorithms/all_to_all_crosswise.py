"""All-to-all crosswise: every rank publishes its blocks for many peers in one copy, and reads those of many in one.

Blocks lie so that those of one writer and those for one reader are both side by side. Steps: as many as the variant has
chunks, but of ranks: in step k the ranks of two batches whose numbers add up to k, modulo their number, exchange their
blocks for each other, as single ranks do in all_to_all_pairwise. Rounds: ceil(m / P), where m is one block. Written and
read per rank: (N - 1) m. In place blocks give way to those that came for them in the same step.
Source: CCCL (arXiv 2602.22457), all_to_all, here with all of a writer's and of a reader's blocks side by side.
"""

from dataclasses import replace

from collectives.builder import CROSSWISE, STAGED, Batches
from collectives.builder.recipes import algorithm


@algorithm("all_to_all", builder=Batches, variants=(replace(STAGED, name="crosswise"),))
def all_to_all_crosswise(b: Batches) -> None:
    own = b.rank * b.nbytes
    b.copy(b.output(own), b.input(own), b.nbytes)
    batches = b.batches_in_pairs()
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, bells=len(batches), spread=CROSSWISE):
        for chunk in chunks:
            for batch in batches:
                sent = b.publish_batch(batch, chunk)
                b.retrieve_batch(batch, chunk, after=sent)
