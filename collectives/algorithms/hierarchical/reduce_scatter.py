"""Reduce-scatter on two levels: what is for a position is folded inside, and what comes of that is folded across.

Rank (k, i) folds its cluster's blocks for all ranks at position i, publishes C - 1 of the C results to them, and
folds its own with theirs. Per rank: (C - 1) m written to the pool and as much read from it, not (N - 1) m;
(G - 1) C m read inside. Each cluster is folded in rank order, then the clusters in theirs.
"""

from collectives.algorithms.hierarchical.levels import HIERARCHICAL, Levels
from collectives.builder.recipes import algorithm


@algorithm("reduce_scatter", name=HIERARCHICAL, builder=Levels)
def reduce_scatter(b: Levels) -> None:
    for chunks in b.levels(b.nbytes, inside=[b.all(b.ranks)], across=[b.all(b.clusters)]):
        for chunk in chunks:
            targets, _, _ = b.targets([*b.away, b.home], b.inside.each_peer)
            b.inside.publish_each(chunk, targets * b.nbytes + chunk.offset, targets)
        folded = []
        for chunk in chunks:
            for cluster in b.away:
                target, on = b.at(cluster, b.position), b.across.block(cluster)
                own = b.input(target * b.nbytes + chunk.offset)
                b.inside.fold(b.room("passing"), chunk, own, target, stream="inside", last=False, to=on)
            own = b.input(b.rank * b.nbytes + chunk.offset)
            b.inside.fold(b.output(chunk.offset), chunk, own, b.rank, stream="inside", last=False)
            folded.append(b.record("inside"))
        for chunk, event in zip(chunks, folded, strict=True):
            b.order(event, "retrieve")
            place = b.output(chunk.offset)
            b.across.fold(place, chunk, place, b.home, stream="retrieve", last=True)
