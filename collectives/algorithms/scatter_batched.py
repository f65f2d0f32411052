"""Scatter in batches: the root publishes the blocks of many ranks in one copy, each reads its own.

Rounds: ceil(m / P). Written by the root: (N - 1) m, in about N / B copies of B blocks. Read per rank but the root: m.
Source: CCCL (arXiv 2602.22457), scatter, here with blocks that lie one after another, over all cards.
"""

from collectives.builder import SIDE_BY_SIDE, Batches
from collectives.builder.recipes import algorithm


@algorithm("scatter", name="batched", builder=Batches)
def scatter_batched(b: Batches) -> None:
    if b.is_root:
        b.copy(b.output(), b.input(b.root * b.nbytes), b.nbytes)
    batches = b.batches(left_out=b.root)
    for chunks in b.rounds(b.nbytes, writers=[b.root], blocks=b.ranks, bells=len(batches), spread=SIDE_BY_SIDE):
        for chunk in chunks:
            for batch in batches:
                if b.is_root:
                    b.publish_batch(batch, chunk)
                elif b.rank in batch.ranks:
                    b.retrieve(b.output(chunk.offset), chunk, b.root, block=b.rank, bell=batch.number)
