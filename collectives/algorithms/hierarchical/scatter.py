"""Scatter on two levels: the root hands its neighbours what is for their positions, and they pass it on to the pool.

Of the N - G blocks that cross the pool, each rank of the root's cluster writes C - 1, and each rank elsewhere reads
its own. The root writes (G - 1) C blocks inside.
"""

from collectives.algorithms.hierarchical.levels import HIERARCHICAL, Levels
from collectives.algorithms.hierarchical.regions import Writers
from collectives.builder.recipes import algorithm


@algorithm("scatter", name=HIERARCHICAL, builder=Levels)
def scatter(b: Levels) -> None:
    if b.is_root:
        b.copy(b.output(), b.input(b.root * b.nbytes), b.nbytes)
    inside = [Writers((b.root,), b.ranks)]
    for chunks in b.levels(b.nbytes, inside=inside, across=[Writers(b.at_home, b.clusters)]):
        for chunk in chunks if b.is_root else ():
            for cluster in [*b.away, b.home]:
                for peer in b.inside.peers:
                    target = b.at(cluster, peer % b.size)
                    b.inside.publish(chunk, b.input(target * b.nbytes + chunk.offset), target)
                if cluster != b.home:
                    target = b.at(cluster, b.position)
                    b.across.publish(chunk, b.input(target * b.nbytes + chunk.offset), cluster)
        for chunk in chunks if b.at_roots and not b.is_root else ():
            for cluster in b.away:
                target = b.at(cluster, b.position)
                b.inside.forward(b.room("passing"), chunk, b.root, target, stream="inside", to=b.across.block(cluster))
        for chunk in chunks if not b.is_root else ():
            if b.at_roots:
                b.inside.retrieve(b.output(chunk.offset), chunk, b.root, b.rank)
            else:
                b.across.retrieve(b.output(chunk.offset), chunk, b.column_root, b.home)
