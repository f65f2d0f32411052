"""All-reduce, two shots crosswise: rank k reduces slice k of everyone's vector, and all slices move many in one copy.

First the slices, as blocks in reduce_scatter_crosswise; then every rank publishes its result once, and reads those of
B others in one copy, as in all_reduce_two_shot_batched. Two loops of rounds, ceil(m / (N P)) and ceil(m / (N P')).
Written per rank: about m. Read per rank: about 2 m (N - 1) / N.
Source: the direct reduce-scatter + all-gather algorithm (Thakur, Rabenseifner, Gropp, IJHPCA 2005) over a pool, here
with slices side by side.
"""

from dataclasses import replace

from collectives.algorithms.slices import fold_crosswise, gather_side_by_side, slices
from collectives.builder import STAGED, Batches
from collectives.builder.recipes import algorithm


@algorithm("all_reduce", builder=Batches, variants=(replace(STAGED, name="two_shot_crosswise"),))
def all_reduce_crosswise(b: Batches) -> None:
    stride, _ = slices(b)
    folded = fold_crosswise(b, b.output(b.rank * stride))
    gather_side_by_side(b, folded, chunk_bytes=stride)
