"""Gather in batches: every rank publishes its block, the root reads those of many peers in one copy.

Rounds: ceil(m / P). Written per rank but the root: m. Read by the root: (N - 1) m, in about N / B copies of B blocks.
Source: CCCL (arXiv 2602.22457), gather, here with blocks that lie one after another, over all cards.
"""

from collectives.builder import SIDE_BY_SIDE, Batches
from collectives.builder.recipes import algorithm


@algorithm("gather", name="batched", builder=Batches)
def gather_batched(b: Batches) -> None:
    if b.is_root:
        b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    batches = b.batches(left_out=b.root)
    for chunks in b.rounds(b.nbytes, spread=SIDE_BY_SIDE):
        for chunk in chunks:
            if not b.is_root:
                b.publish(chunk, b.input(chunk.offset))
                continue
            b.retrieve_batches(batches, chunk)
