"""Gather on two levels: ranks of the root's cluster fetch from the pool for their positions, and pass it on inside.

Written: m to the pool by each rank elsewhere. Of the N - G blocks that cross the pool, each rank of the root's
cluster reads C - 1; the root reads (G - 1) C blocks inside.
"""

from collectives.algorithms.hierarchical.levels import HIERARCHICAL, Levels
from collectives.algorithms.hierarchical.regions import Writers
from collectives.builder.recipes import algorithm


@algorithm("gather", name=HIERARCHICAL, builder=Levels)
def gather(b: Levels) -> None:
    if b.is_root:
        b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    inside = [Writers(b.at_home, b.clusters)]
    for chunks in b.levels(b.nbytes, inside=inside, across=[Writers(b.elsewhere, 1)]):
        for chunk in chunks:
            if not b.at_roots:
                b.across.publish(chunk, b.input(chunk.offset))
            elif not b.is_root:
                b.inside.publish(chunk, b.input(chunk.offset), b.home)
        for chunk in chunks if b.at_roots else ():
            for cluster in b.away:
                source = b.at(cluster, b.position)
                if b.is_root:
                    place = b.output(source * b.nbytes + chunk.offset)
                    b.across.retrieve(place, chunk, source, stream="across")
                else:
                    on = b.inside.block(cluster)
                    b.across.forward(b.room("passing"), chunk, source, stream="across", to=on)
        for chunk in chunks if b.is_root else ():
            sources, peers, clusters = b.targets([b.home, *b.away], b.inside.each_peer)
            b.inside.retrieve_each(sources * b.nbytes + chunk.offset, chunk, peers, clusters)
