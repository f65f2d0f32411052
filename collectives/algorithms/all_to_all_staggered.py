"""All-to-all, read in the order in which blocks are published: from the rank before this one backwards.

In all_to_all a rank reads first what the next one publishes last. In place a block gives way to the one that came for
it, so both go in pairs there, in the steps of all_to_all_pairwise.
Rounds: ceil(m / P), where m is one block. Written per rank: (N - 1) m. Read per rank: (N - 1) m.
Source: CCCL (arXiv 2602.22457), N-to-N placement, with reads staggered as in its reduce_scatter.
"""

from dataclasses import replace

import numpy as np

from collectives.algorithms.all_to_all import exchange
from collectives.builder import ALL, Builder
from collectives.builder.recipes import algorithm


@algorithm("all_to_all", variants=(replace(ALL, name="staggered"),))
def all_to_all_staggered(b: Builder) -> None:
    own = b.rank * b.nbytes
    b.copy(b.output(own), b.input(own), b.nbytes)
    written, read = b.each_peer, b.each_peer[::-1]
    if b.call.in_place:
        partners = (np.arange(b.ranks) - b.rank) % b.ranks
        written = read = partners[partners != b.rank]
    for chunks in b.rounds(b.nbytes, blocks=b.ranks, spread="ranges", alike=b.nbytes):
        exchange(b, chunks, written, read)
