"""Reduce, two shots: rank k reduces slice k of everyone's vector and publishes the result, which the root reads.

Slices have ceil(m / N) bytes, rounded up to whole lines. Rounds: ceil(m / (N P)) for m much larger than N lines.
Written per rank: about m. Read per rank: m (N - 1) / N, by the root twice as much; a root that folds alone reads
(N - 1) m.
Slice k is folded in rank order by rank k alone.
Source: reduce-scatter + gather (Thakur, Rabenseifner, Gropp, IJHPCA 2005) over a pool, by direct reads.
"""

from dataclasses import replace

import numpy as np

from collectives.algorithms.slices import slices
from collectives.builder import STAGED, Builder
from collectives.builder.recipes import algorithm


@algorithm("reduce", variants=(replace(STAGED, name="two_shot_staged"),))
def reduce_two_shot(b: Builder) -> None:
    stride, in_slice = slices(b)
    peers, own = b.each_peer, b.rank * stride
    result = b.ranks  # a rank's blocks are one for every rank's slice, and its result
    folded = b.output(own) if b.is_root else b.scratch(stride)
    for chunks in b.rounds(stride, blocks=b.ranks + 1, spread="ranges"):
        for chunk in chunks:
            b.publish_each(chunk, peers * stride + chunk.offset, blocks=peers, nbytes=in_slice(peers, chunk))
        for chunk in chunks:
            nbytes = int(in_slice(np.array([b.rank]), chunk)[0])
            if nbytes:
                offset, part = chunk.offset, b.part(chunk, nbytes)
                b.fold(
                    folded.at(offset),
                    part,
                    b.input(own + offset),
                    block=b.rank,
                    republish=None if b.is_root else result,
                )
        for chunk in chunks if b.is_root else ():
            b.retrieve_each(peers * stride + chunk.offset, chunk, peers, block=result, nbytes=in_slice(peers, chunk))
