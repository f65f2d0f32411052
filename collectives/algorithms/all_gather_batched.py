"""All-gather in batches: every rank publishes its block once, every rank reads those of many peers in one copy.

Rounds: ceil(m / P), where m is a rank's block and P what fits a slot. Written per rank: m. Read per rank: (N - 1) m, in
about N / B + 1 copies of B blocks, from the batch behind this rank's own on.
Source: CCCL (arXiv 2602.22457), all_gather, here with blocks that lie one after another, over all cards.
"""

from collectives.builder import SIDE_BY_SIDE, Batches
from collectives.builder.recipes import algorithm


@algorithm("all_gather", name="batched", builder=Batches)
def all_gather_batched(b: Batches) -> None:
    b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    batches = b.batches()
    own = next(batch.number for batch in batches if b.rank in batch.ranks)
    for chunks in b.rounds(b.nbytes, spread=SIDE_BY_SIDE):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset))
        for chunk in chunks:
            b.retrieve_batches(batches[own + 1 :] + batches[: own + 1], chunk)
