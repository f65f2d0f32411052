"""Binomial gather: every rank collects the blocks of its subtree, and publishes them all for its parent.

Steps: ceil(log2 N). Written by a rank but the root: s m, where m is a block and s how many ranks its subtree has. Read:
(s - 1) m. Counted from the root on, the parent of place p is p without its lowest bit, its subtree are the places from
p on.
Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, IJHPCA 2005.

cxlemu run --algorithm examples/algorithms/binomial_gather.py:binomial_gather
"""

from collectives import Builder, algorithm


def subtree(place: int, ranks: int) -> int:
    """How many places its subtree has."""
    return min((place & -place) or ranks, ranks - place)


@algorithm("gather")
def binomial_gather(b: Builder) -> None:
    place = (b.rank - b.root) % b.ranks
    size = subtree(place, b.ranks)
    largest = max(subtree(place, b.ranks) for place in range(1, b.ranks))
    writers = [rank for rank in range(b.ranks) if rank != b.root]
    if b.is_root:
        own = b.rank * b.nbytes
        b.copy(b.output(own), b.input(), b.nbytes)
        lies = [b.output((b.root + p) % b.ranks * b.nbytes) for p in range(size)]  # blocks of its subtree
    else:
        room = b.scratch((size - 1) * b.nbytes)
        lies = [b.input(), *(room.at(p * b.nbytes) for p in range(size - 1))]
    for chunks in b.rounds(b.nbytes, writers=writers, blocks=largest, bells=1, spread="ranges"):
        for chunk in chunks:
            places, came = [block.at(chunk.offset) for block in lies], None
            step = 1
            while step < size:
                below = subtree(place + step, b.ranks)
                came = b.retrieve(places[step : step + below], chunk, (b.rank + step) % b.ranks, bell=0)
                step *= 2
            if not b.is_root:
                b.publish(chunk, places, bell=0, after=came)
