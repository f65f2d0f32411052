"""All-gather on two levels: a block crosses the pool once for each other cluster, and is passed on inside.

Rank (k, i) reads from the pool the blocks of the C - 1 ranks at its position elsewhere, and its G - 1 neighbours read
those, and its own, from it. Written per rank: m to the pool, C m inside. Read: (C - 1) m from the pool, (N - C) m
inside.
"""

from collectives.algorithms.hierarchical.levels import HIERARCHICAL, Levels
from collectives.builder.recipes import algorithm


@algorithm("all_gather", name=HIERARCHICAL, builder=Levels)
def all_gather(b: Levels) -> None:
    b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.levels(b.nbytes, inside=[b.all(b.clusters)], across=[b.all(1)]):
        for chunk in chunks:
            b.across.publish(chunk, b.input(chunk.offset))
            b.inside.publish(chunk, b.input(chunk.offset), b.home)
        for chunk in chunks:
            for cluster in b.away:
                source = b.at(cluster, b.position)
                place = b.output(source * b.nbytes + chunk.offset)
                b.across.forward(place, chunk, source, stream="across", to=b.inside.block(cluster))
        for chunk in chunks:
            sources, peers, clusters = b.targets([b.home, *b.away], b.inside.each_peer)
            b.inside.retrieve_each(sources * b.nbytes + chunk.offset, chunk, peers, clusters)
