"""Binomial scatter: every rank gets the blocks of its subtree from its parent, and publishes each child's share.

Steps: floor(log2 N), as all children of a rank read at once. Read by a rank but the root: s m, where m is a block and s
how many ranks its subtree has. Written: (s - 1) m. Counted from the root on, the parent of place p is p without its
lowest bit, its subtree the places from p on.
Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, IJHPCA 2005.

cxlemu run --algorithm examples/algorithms/binomial_scatter.py:binomial_scatter
"""

from collectives import Builder, algorithm


def subtree(place: int, ranks: int) -> int:
    """How many places its subtree has."""
    return min((place & -place) or ranks, ranks - place)


@algorithm("scatter")
def binomial_scatter(b: Builder) -> None:
    place, steps = (b.rank - b.root) % b.ranks, (b.ranks - 1).bit_length()
    size, up = subtree(place, b.ranks), place & -place  # and how far its parent is
    inner = [rank for rank in range(b.ranks) if subtree((rank - b.root) % b.ranks, b.ranks) > 1]
    if b.is_root:
        b.copy(b.output(), b.input(b.root * b.nbytes), b.nbytes)
        lies = [b.input((b.root + p) % b.ranks * b.nbytes) for p in range(size)]  # blocks of its subtree
    else:
        room = b.scratch((size - 1) * b.nbytes)
        lies = [b.output(), *(room.at(p * b.nbytes) for p in range(size - 1))]
    for chunks in b.rounds(b.nbytes, writers=inner, blocks=b.ranks - 1, bells=steps, spread="ranges"):
        for chunk in chunks:
            places, came = [block.at(chunk.offset) for block in lies], None
            if not b.is_root:
                parent = (b.rank - up) % b.ranks
                came = b.retrieve(places, chunk, parent, block=up - 1, bell=up.bit_length() - 1)
            for bell in reversed(range((size - 1).bit_length())):  # the largest share first
                share = places[1 << bell : min(2 << bell, size)]
                b.publish(chunk, share, block=(1 << bell) - 1, bell=bell, after=came)
