"""All-reduce, two shots crosswise: rank k reduces slice k of everyone's vector, and all slices move many in one copy.

First the slices, as blocks in reduce_scatter_crosswise; then every rank publishes its result once, and reads those of
B others in one copy, as in all_reduce_two_shot_batched. Two loops of rounds, ceil(m / (N P)) and ceil(m / (N P')).
Written per rank: about m. Read per rank: about 2 m (N - 1) / N.
Source: the direct reduce-scatter + all-gather algorithm (Thakur, Rabenseifner, Gropp, IJHPCA 2005) over a pool, here
with slices side by side.
"""

from dataclasses import replace

import numpy as np

from collectives.algorithms.slices import fold_crosswise, slices
from collectives.builder import SIDE_BY_SIDE, STAGED, Batches
from collectives.builder.recipes import algorithm


@algorithm("all_reduce", builder=Batches, variants=(replace(STAGED, name="two_shot_crosswise"),))
def all_reduce_crosswise(b: Batches) -> None:
    stride, in_slice = slices(b)
    me, own, sliced = np.array([b.rank]), b.rank * stride, -(-b.nbytes // stride) if stride else 0
    folded = fold_crosswise(b, b.output(own))
    batches = b.batches(end=sliced)
    behind = sum(its.ranks.start <= b.rank for its in batches)  # the batch behind this rank's own comes first
    for chunks in b.rounds(stride, spread=SIDE_BY_SIDE, chunk_bytes=stride):
        for chunk in chunks if b.rank < sliced else ():
            part = b.part(chunk, int(in_slice(me, chunk)[0]))
            b.publish(part, b.output(own + chunk.offset), after=folded)
        for chunk in chunks:
            for batch in batches[behind:] + batches[:behind]:
                b.retrieve_batch(batch, chunk)
