"""Binomial reduce: every rank folds its children's vectors with its own, and publishes the result for its parent.

Steps: ceil(log2 N). Written: m by every rank but the root. Read: m for each child, ceil(log2 N) by the root, where m is
the vector. Counted from the root on, the parent of place p is p without its lowest bit. The root alone has the result.
Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, IJHPCA 2005.

cxlemu run --algorithm examples/algorithms/binomial_reduce.py:binomial_reduce
"""

from collectives import Builder, algorithm


@algorithm("reduce", fold_order="uniform")
def binomial_reduce(b: Builder) -> None:
    place = (b.rank - b.root) % b.ranks
    below = (place & -place) or b.ranks  # places in its subtree, from place on; fewer where ranks end
    steps = [1 << k for k in range(b.ranks.bit_length()) if 1 << k < below and place + (1 << k) < b.ranks]
    children = [(b.rank + step) % b.ranks for step in steps]
    writers = [rank for rank in range(b.ranks) if rank != b.root]
    partial = b.output() if b.is_root else b.scratch(b.nbytes if children else 0)
    for chunks in b.rounds(b.nbytes, writers=writers, spread="ranges"):
        for chunk in chunks:
            mine, came = b.input(chunk.offset), None
            for child in children:
                folded = partial.at(chunk.offset)
                last = b.is_root and child == children[-1]
                came = b.combine(folded, chunk, child, mine, peer_left=False, last=last)
                mine = folded
            if not b.is_root:
                b.publish(chunk, mine, after=came)
