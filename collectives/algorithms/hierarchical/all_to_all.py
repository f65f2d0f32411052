"""All-to-all on two levels: a neighbour bundles the blocks for each other cluster.

Rank (k, i) reads inside what its neighbours have for position i, and publishes a bundle of G blocks for each of the
C - 1 ranks at its position elsewhere. As many bytes cross the pool as without levels, (N - G) m written and read per
rank, but under C - 1 doorbells, not N - G; inside go (G - 1) C m more.
"""

from collectives.algorithms.hierarchical.levels import HIERARCHICAL, Levels
from collectives.builder.recipes import algorithm


@algorithm("all_to_all", name=HIERARCHICAL, builder=Levels)
def all_to_all(b: Levels) -> None:
    own = b.rank * b.nbytes
    b.copy(b.output(own), b.input(own), b.nbytes)
    for chunks in b.levels(b.nbytes, inside=[b.all(b.ranks)], across=[b.all(b.ranks)]):
        sent = []
        for chunk in chunks:
            targets, _, _ = b.targets([*b.away, b.home], b.inside.each_peer)
            b.inside.publish_each(chunk, targets * b.nbytes + chunk.offset, targets)
            sent.append(b.overwritten("publish"))
        bundled = []
        for chunk in chunks:
            for cluster in b.away:
                target, first = b.at(cluster, b.position), b.at(cluster, 0)
                mine = b.input(target * b.nbytes + chunk.offset)
                for peer in b.inside.peers:
                    on = b.across.block(first + peer % b.size)
                    b.inside.retrieve(b.room("passing"), chunk, peer, target, stream="inside", to=on)
                b.across.store(chunk, mine, first + b.position, stream="inside")
                b.across.send(chunk, *range(first, first + b.size), stream="inside")
            bundled.append(b.overwritten("inside"))
        for chunk, event in zip(chunks, sent, strict=True):
            b.order(event, "retrieve")
            for peer in b.inside.peers:
                b.inside.retrieve(b.output(peer * b.nbytes + chunk.offset), chunk, peer, b.rank)
        for chunk, event in zip(chunks, bundled, strict=True):
            b.order(event, "retrieve")
            for cluster in b.away:
                places = [b.output(b.at(cluster, position) * b.nbytes + chunk.offset) for position in range(b.size)]
                first = b.at(b.home, 0)
                b.across.retrieve_bundle(places, chunk, b.at(cluster, b.position), first)
