"""Reduce on two levels: each cluster folds slice i at position i, the root's folds these, and the root collects.

Each rank elsewhere writes m / G to the pool, each rank of the root's cluster reads (C - 1) / G m from it; inside,
every rank reads about (G - 1) / G m, and the root as much again. Each cluster is folded in rank order, then the
clusters in theirs.
"""

from collectives.hierarchical.levels import Levels, Writers
from collectives.recipes import algorithm


@algorithm("reduce", levels=True)
def reduce(b: Levels) -> None:
    result, own = b.size, b.position * b.stride
    across = [Writers(b.elsewhere, 1)]
    for chunks in b.levels(b.stride, inside=[b.all(b.size + 1)], across=across):
        for chunk in chunks:
            for peer in b.inside.peers:
                position = peer % b.size
                b.inside.publish(b.slice_of(position, chunk), b.input(position * b.stride + chunk.offset), position)
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
            for peer in b.inside.peers:
                position = peer % b.size
                place = b.output(position * b.stride + chunk.offset)
                b.inside.retrieve(place, b.slice_of(position, chunk), peer, result)
