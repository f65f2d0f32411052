"""Binomial broadcast: whoever has the block publishes it for its children, so that twice as many have it in each step.

Steps: floor(log2 N), as all children of a rank read at once. Written: m by every rank that has children, once for all
of them. Read: m by every rank but the root, where m is the block. Counted from the root on, the parent of place p is p
without its lowest bit.
Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, IJHPCA 2005.

cxlemu run broadcast --algorithm examples/algorithms/binomial_broadcast.py:binomial_broadcast
"""

from collectives import Builder, algorithm


@algorithm("broadcast")
def binomial_broadcast(b: Builder) -> None:
    place = (b.rank - b.root) % b.ranks
    parent = ((place & (place - 1)) + b.root) % b.ranks
    inner = [p for p in range(b.ranks) if p + 1 < b.ranks and p % 2 == 0]  # the first child of p is p + 1
    writers = sorted((p + b.root) % b.ranks for p in inner)
    if b.is_root:
        b.copy(b.output(), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, writers=writers, spread="ranges"):
        for chunk in chunks:
            if b.is_root:
                b.publish(chunk, b.input(chunk.offset))
                continue
            result = b.output(chunk.offset)
            came = b.retrieve(result, chunk, parent)
            if place in inner:
                b.publish(chunk, result, after=came)
