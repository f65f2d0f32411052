"""Reduce on two levels: each cluster folds slice i at position i, the root's folds these, and the root collects.

Each rank elsewhere writes m / G to the pool, each rank of the root's cluster reads (C - 1) / G m from it; inside,
every rank reads about (G - 1) / G m, and the root as much again. Each cluster is folded in rank order, then the
clusters in theirs.
"""

import numpy as np

from collectives.algorithms.hierarchical.levels import HIERARCHICAL, Levels
from collectives.algorithms.hierarchical.regions import Writers
from collectives.builder.recipes import algorithm


@algorithm("reduce", name=HIERARCHICAL, builder=Levels)
def reduce(b: Levels) -> None:
    result, own = b.size, b.position * b.stride
    across = [Writers(b.elsewhere, 1)]
    for chunks in b.levels(b.stride, inside=[b.all(b.size + 1)], across=across):
        for chunk in chunks:
            positions = b.inside.each_peer % b.size
            sizes = b.sizes_of(positions, chunk)
            b.inside.publish_each(chunk, positions * b.stride + chunk.offset, positions, nbytes=sizes)
        mine = [chunk for chunk in (b.slice_of(b.position, chunk) for chunk in chunks) if chunk.nbytes]
        folded = []
        for chunk in mine:
            vector, to = b.input(own + chunk.offset), None if b.at_roots else b.across.block(0)
            place = b.kept(chunk) if b.at_roots else b.room("passing")
            b.inside.fold(place, chunk, vector, b.position, stream="inside", last=False, to=to)
            if b.at_roots:
                folded.append(b.record("inside"))
        if not b.at_roots:
            continue
        for chunk, event in zip(mine, folded, strict=True):
            b.order(event, "across")
            place, to = (b.output(own + chunk.offset), None) if b.is_root else (b.room("sum"), b.inside.block(result))
            b.across.fold(place, chunk, b.kept(chunk), stream="across", last=True, to=to)
        if not b.is_root:
            continue
        if mine:
            b.order(b.record("across"), "retrieve")
        for chunk in chunks:
            peers = b.inside.each_peer
            places, sizes = peers % b.size * b.stride + chunk.offset, b.sizes_of(peers % b.size, chunk)
            b.inside.retrieve_each(places, chunk, peers, np.full(len(peers), result), nbytes=sizes)
