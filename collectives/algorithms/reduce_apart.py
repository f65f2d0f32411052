"""Reduce, two shots in which the root folds nothing: all others fold a slice each, and the root reads their results.

A root that folds reads nearly two vectors, a slice of all ranks and all other results; here it reads one. A chunk is
folded while the next one is published, and its result follows that one, so that the root reads while all others fold.
Slices have ceil(m / (N - 1)) bytes, rounded up to whole lines. Written and read per rank: about m.
Slice k is folded in rank order by the k-th rank beside the root alone.
Source: reduce-scatter + gather (Thakur, Rabenseifner, Gropp, IJHPCA 2005) over a pool, here with nothing for the root.
"""

from dataclasses import replace

import numpy as np

from collectives.algorithms.slices import slices
from collectives.builder import STAGED, Builder
from collectives.builder.recipes import Publishes, algorithm


def _slices_and_a_result(ranks: int) -> Publishes:
    return Publishes(1)  # less than a vector of slices, and one more slice


@algorithm("reduce", variants=(replace(STAGED, name="two_shot_apart"),), publishes=_slices_and_a_result)
def reduce_apart(b: Builder) -> None:
    folders = b.ranks - 1
    stride, in_slice = slices(b, folders)
    peers = b.each_peer[b.each_peer != b.root]
    theirs, own = peers - (peers > b.root), b.rank - (b.rank > b.root)  # the slices that they fold, and this rank
    result = folders  # a rank's blocks are one for every slice, and its result
    folded = b.scratch(0 if b.is_root else stride)
    for chunks in b.rounds(stride, blocks=folders + 1, spread="ranges"):
        for chunk, before in zip([*chunks, None], [None, *chunks], strict=True):
            if chunk is not None:
                b.publish_each(chunk, theirs * stride + chunk.offset, blocks=theirs, nbytes=in_slice(theirs, chunk))
            if before is None:
                continue
            offset, nbytes = before.offset, int(in_slice(np.array([own]), before)[0])
            if b.is_root:
                b.retrieve_each(theirs * stride + offset, before, peers, block=result, nbytes=in_slice(theirs, before))
            elif nbytes:
                part, mine = b.part(before, nbytes), b.input(own * stride + offset)
                b.fold(folded.at(offset), part, mine, block=own, republish=result)
