"""All-reduce, two shots in batches: rank k reduces slice k of everyone's vector, and the results move many in one copy.

As all_reduce_two_shot up to the fold, staged; then every rank publishes its result once, and reads those of B others in
one copy. Two loops of rounds, ceil(m / (N P)) and ceil(m / (N P')), where P' is larger: all slots are for results.
Written per rank: about m. Read per rank: about 2 m (N - 1) / N, in N - 1 copies of slices and N / B + 1 of results.
Source: the direct reduce-scatter + all-gather algorithm (Thakur, Rabenseifner, Gropp, IJHPCA 2005) over a pool, here
with results side by side.
"""

from dataclasses import replace

import numpy as np

from collectives.algorithms.slices import slices
from collectives.builder import SIDE_BY_SIDE, STAGED, Batches
from collectives.builder.recipes import algorithm


@algorithm("all_reduce", builder=Batches, variants=(replace(STAGED, name="two_shot_batched"),))
def all_reduce_two_shot_batched(b: Batches) -> None:
    stride, in_slice = slices(b)
    peers, me, own = b.each_peer, np.array([b.rank]), b.rank * stride
    folded, sliced = None, -(-b.nbytes // stride) if stride else 0  # the ranks that have a slice
    for chunks in b.rounds(stride, blocks=b.ranks, spread="ranges"):
        for chunk in chunks:
            b.publish_each(chunk, peers * stride + chunk.offset, blocks=peers, nbytes=in_slice(peers, chunk))
        for chunk in chunks:
            nbytes = int(in_slice(me, chunk)[0])
            if nbytes:
                at = own + chunk.offset
                folded = b.fold(b.output(at), b.part(chunk, nbytes), b.input(at), block=b.rank)
    batches = b.batches(end=sliced)
    behind = sum(its.ranks.start <= b.rank for its in batches)  # the batch behind this rank's own comes first
    for chunks in b.rounds(stride, spread=SIDE_BY_SIDE):
        for chunk in chunks if b.rank < sliced else ():
            part = b.part(chunk, int(in_slice(me, chunk)[0]))
            b.publish(part, b.output(own + chunk.offset), after=folded)
        for chunk in chunks:
            for batch in batches[behind:] + batches[:behind]:
                b.retrieve_batch(batch, chunk)
