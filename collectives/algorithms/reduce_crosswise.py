"""Reduce, two shots crosswise: rank k reduces slice k of everyone's vector, and all slices move many in one copy.

First the slices, as blocks in reduce_scatter_crosswise; then every rank but the root publishes its result once, and the
root reads those of B ranks in one copy. Two loops of rounds, as in all_reduce_crosswise.
Written per rank: about m. Read per rank: m (N - 1) / N, by the root twice as much.
Source: reduce-scatter + gather (Thakur, Rabenseifner, Gropp, IJHPCA 2005) over a pool, here with slices side by side.
"""

from dataclasses import replace

import numpy as np

from collectives.algorithms.slices import fold_crosswise, slices
from collectives.builder import SIDE_BY_SIDE, STAGED, Batches
from collectives.builder.recipes import algorithm


@algorithm("reduce", builder=Batches, variants=(replace(STAGED, name="two_shot_crosswise"),))
def reduce_crosswise(b: Batches) -> None:
    stride, in_slice = slices(b)
    me, own, sliced = np.array([b.rank]), b.rank * stride, -(-b.nbytes // stride) if stride else 0
    result = b.output(own) if b.is_root else b.scratch(stride)
    folded = fold_crosswise(b, result)
    batches = b.batches(left_out=b.root, end=sliced)
    for chunks in b.rounds(stride, spread=SIDE_BY_SIDE, chunk_bytes=stride):
        for chunk in chunks:
            if not b.is_root and b.rank < sliced:
                b.publish(b.part(chunk, int(in_slice(me, chunk)[0])), result.at(chunk.offset), after=folded)
            b.retrieve_batches(batches if b.is_root else (), chunk)
