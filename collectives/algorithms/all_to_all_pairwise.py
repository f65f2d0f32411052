"""All-to-all in pairs: in step k the ranks whose numbers add up to k, modulo N, exchange their blocks for each other.

Steps: N, in each of which one rank is alone and rests, or two, or none. Written and read per rank: (N - 1) m, where m
is a block. In place a block gives way to the one that came for it in the same step.
Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, IJHPCA 2005; the
pairs are those of a round-robin tournament, so that any N will do.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("all_to_all", name="pairwise")
def all_to_all_pairwise(b: Builder) -> None:
    own = b.rank * b.nbytes
    b.copy(b.output(own), b.input(own), b.nbytes)
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, spread="ranges"):
        for step in range(b.ranks):
            peer = (step - b.rank) % b.ranks
            if peer == b.rank:
                continue
            for chunk in chunks:
                offset = peer * b.nbytes + chunk.offset
                sent = b.publish(chunk, b.input(offset), block=peer, overwritten=True)
                b.retrieve(b.output(offset), chunk, peer, block=b.rank, after=sent)
