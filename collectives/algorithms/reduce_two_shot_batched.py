"""Reduce, two shots in batches: rank k reduces slice k of everyone's vector, the root reads many results in one copy.

As reduce_two_shot up to the fold; then every rank but the root publishes its result once, and the root reads those of B
ranks in one copy. Two loops of rounds, as in all_reduce_two_shot_batched.
Written per rank: about m. Read per rank: m (N - 1) / N, by the root twice as much, in N - 1 copies and about N / B + 1.
Source: reduce-scatter + gather (Thakur, Rabenseifner, Gropp, IJHPCA 2005) over a pool, here with results side by side.
"""

from dataclasses import replace

import numpy as np

from collectives.algorithms.slices import slices
from collectives.builder import SIDE_BY_SIDE, STAGED, Batches
from collectives.builder.recipes import algorithm


@algorithm("reduce", builder=Batches, variants=(replace(STAGED, name="two_shot_batched"),))
def reduce_two_shot_batched(b: Batches) -> None:
    stride, in_slice = slices(b)
    peers, me, own = b.each_peer, np.array([b.rank]), b.rank * stride
    folded, sliced = None, -(-b.nbytes // stride) if stride else 0  # the ranks that have a slice
    result = b.output(own) if b.is_root else b.scratch(stride)
    for chunks in b.rounds(stride, blocks=b.ranks, spread="ranges"):
        for chunk in chunks:
            b.publish_each(chunk, peers * stride + chunk.offset, blocks=peers, nbytes=in_slice(peers, chunk))
        for chunk in chunks:
            nbytes = int(in_slice(me, chunk)[0])
            if nbytes:
                offset = chunk.offset
                folded = b.fold(result.at(offset), b.part(chunk, nbytes), b.input(own + offset), block=b.rank)
    batches = b.batches(left_out=b.root, end=sliced)
    for chunks in b.rounds(stride, spread=SIDE_BY_SIDE):
        for chunk in chunks:
            if not b.is_root and b.rank < sliced:
                b.publish(b.part(chunk, int(in_slice(me, chunk)[0])), result.at(chunk.offset), after=folded)
            b.retrieve_batches(batches if b.is_root else (), chunk)
