"""All-reduce, two shots: rank k reduces slice k of everyone's vector and publishes the result, which all others read.

Slices have ceil(m / N) bytes, rounded up to whole lines. For m much larger than N lines, rounds: ceil(m / (N P)).
Written per rank: about m (N - 1) / N for its peers and m / N of result. Read per rank: about 2 m (N - 1) / N, the
least there is for private buffers. Of fewer bytes the first ranks have a whole line each, the last ones none.
Slice k is folded in rank order by rank k alone, so all ranks get the same bits.
Zero copy: slices are read where the vectors lie, and the result, where it lies in the heap as well. That is right in
place: rank k overwrites slice j after j has published its result, and so has read everyone's slice j.
Staged, the first half ends on all ranks at the same time, and the second one begins staggered as well. Folded where
they lie, slices are ready one rank after another, and all ranks follow that wave from card to card.
Source: the direct reduce-scatter + all-gather algorithm (Thakur, Rabenseifner, Gropp, IJHPCA 2005) over a pool.
"""

from dataclasses import replace

import numpy as np

from collectives.algorithms.slices import slices
from collectives.builder import STAGED, Builder
from collectives.builder.recipes import algorithm


@algorithm("all_reduce", name="two_shot", variants=("zero_copy", replace(STAGED, name="two_shot_staged")))
def all_reduce_two_shot(b: Builder) -> None:
    stride, in_slice = slices(b)
    peers, own = b.each_peer, b.rank * stride
    result = b.ranks  # a rank's blocks are one for every rank's slice, and its result
    whole = max(b.nbytes - stride * (b.ranks - 1), 0)  # of the last slice; no other one is shorter
    for chunks in b.rounds(stride, blocks=b.ranks + 1, spread="ranges", answered=True, alike=whole):
        for chunk in chunks:
            b.publish_each(chunk, peers * stride + chunk.offset, blocks=peers, nbytes=in_slice(peers, chunk))
        for chunk in chunks:
            nbytes = int(in_slice(np.array([b.rank]), chunk)[0])
            if nbytes:
                offset = own + chunk.offset
                b.fold(b.output(offset), b.part(chunk, nbytes), b.input(offset), block=b.rank, republish=result)
        for chunk in chunks:
            b.retrieve_each(peers * stride + chunk.offset, chunk, peers, block=result, nbytes=in_slice(peers, chunk))
