"""All-reduce, two shots in batches: rank k reduces slice k of everyone's vector, and the results move many in one copy.

As all_reduce_two_shot up to the fold, staged; then every rank publishes its result once, and reads those of B others in
one copy. Two loops of rounds, ceil(m / (N P)) and ceil(m / (N P')), where P' is larger: all slots are for results.
Written per rank: about m. Read per rank: about 2 m (N - 1) / N, in N - 1 copies of slices and N / B + 1 of results.
Source: the direct reduce-scatter + all-gather algorithm (Thakur, Rabenseifner, Gropp, IJHPCA 2005) over a pool, here
with results side by side.
"""

from dataclasses import replace

import numpy as np

from collectives.algorithms.slices import gather_side_by_side, slices
from collectives.builder import STAGED, Batches
from collectives.builder.recipes import algorithm


@algorithm("all_reduce", builder=Batches, variants=(replace(STAGED, name="two_shot_batched"),))
def all_reduce_two_shot_batched(b: Batches) -> None:
    stride, in_slice = slices(b)
    peers, me, own = b.each_peer, np.array([b.rank]), b.rank * stride
    folded = None
    for chunks in b.rounds(stride, blocks=b.ranks, spread="ranges"):
        for chunk in chunks:
            b.publish_each(chunk, peers * stride + chunk.offset, blocks=peers, nbytes=in_slice(peers, chunk))
        for chunk in chunks:
            nbytes = int(in_slice(me, chunk)[0])
            if nbytes:
                offset = own + chunk.offset
                folded = b.fold(b.output(offset), b.part(chunk, nbytes), b.input(offset), block=b.rank)
    gather_side_by_side(b, folded)
