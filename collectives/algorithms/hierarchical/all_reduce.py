"""All-reduce on two levels: reduce-scatter inside, all-reduce of each slice across, all-gather inside.

Rank (k, i) folds slice i of its cluster's vectors, 1/G of them. Of each chunk of that it then folds share k of what
the C ranks at position i have, publishes it to them, retrieves theirs, and passes the whole chunk on to its
neighbours. Per rank: about 2 (C - 1) / C m / G written to the pool and as much read from it, and 2 (G - 1) / G m read
inside. Each cluster is folded in rank order, then the clusters in theirs; every byte by one rank alone, so all ranks
get the same bits.
"""

import numpy as np

from collectives.algorithms.hierarchical.levels import HIERARCHICAL, Levels
from collectives.builder.recipes import algorithm

PARTIAL, TOTAL = 0, 1  # blocks across


@algorithm("all_reduce", name=HIERARCHICAL, builder=Levels)
def all_reduce(b: Levels) -> None:
    result, own = b.size, b.position * b.stride  # a block inside for each position's slice, and the result
    for chunks in b.levels(b.stride, inside=[b.all(b.size + 1)], across=[b.all(2)]):
        for chunk in chunks:
            positions = b.inside.each_peer % b.size
            sizes = b.sizes_of(positions, chunk)
            b.inside.publish_each(chunk, positions * b.stride + chunk.offset, positions, nbytes=sizes)
        mine = [chunk for chunk in (b.slice_of(b.position, chunk) for chunk in chunks) if chunk.nbytes]
        folded = []
        for chunk in mine:
            offset = own + chunk.offset
            b.inside.fold(b.output(offset), chunk, b.input(offset), b.position, stream="inside", last=False)
            shares = [share for share in (b.share_of(cluster, chunk) for cluster in sorted(b.away)) if share.nbytes]
            for share in shares:
                b.across.store(share, b.output(own + share.offset), PARTIAL, stream="inside")
            if shares:
                b.across.send(chunk, PARTIAL, stream="inside", parts=shares)
            folded.append(b.record("inside"))
        for chunk, event in zip(mine, folded, strict=True):
            b.order(event, "across")
            share = b.share_of(b.home, chunk)
            place = b.output(own + share.offset)
            b.across.fold(place, share, place, PARTIAL, stream="across", last=True, to=b.across.block(TOTAL))
        for chunk in mine:
            share = b.share_of(b.home, chunk)
            b.inside.store(share, b.output(own + share.offset), result, stream="across")
            for cluster in b.away:
                share = b.share_of(cluster, chunk)
                place, peer = b.output(own + share.offset), b.at(cluster, b.position)
                b.across.retrieve(place, share, peer, TOTAL, stream="across", to=b.inside.block(result))
            b.inside.send(chunk, result, stream="across")
        for chunk in chunks:
            peers = b.inside.each_peer
            places, sizes = peers % b.size * b.stride + chunk.offset, b.sizes_of(peers % b.size, chunk)
            b.inside.retrieve_each(places, chunk, peers, np.full(len(peers), result), nbytes=sizes)
