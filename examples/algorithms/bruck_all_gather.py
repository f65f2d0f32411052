"""Bruck all-gather: in step k every rank gets all that the rank 2^k further on has, and so has twice as much.

Steps: ceil(log2 N), for every N. Read per rank: (N - 1) m, where m is a rank's block. Written per rank: m for every
block that somebody reads here, the most of min(2^k, N - 2^k): N / 2 where N is a power of two. Each is written once,
where a network would send it in every step: peers read what lies in the pool already.
Source: Bruck, Ho, Kipnis, Upfal, Weathersby, Efficient algorithms for all-to-all communications, IEEE TPDS 1997.

cxlemu run --algorithm examples/algorithms/bruck_all_gather.py:bruck_all_gather
"""

from collectives import Builder, algorithm
from collectives.builder import Chunk
from cxlemu.plan import Operand


@algorithm("all_gather")
def bruck_all_gather(b: Builder) -> None:
    steps = (b.ranks - 1).bit_length()
    counts = [min(1 << step, b.ranks - (1 << step)) for step in range(steps)]  # blocks that a step brings
    shared = max(counts)  # of this rank's blocks so many are read by others

    def places(chunk: Chunk, blocks: range) -> list[Operand]:
        """Block k is that of the rank k further on."""
        return [b.output((b.rank + block) % b.ranks * b.nbytes + chunk.offset) for block in blocks]

    b.copy(b.output(b.rank * b.nbytes), b.input(), b.nbytes)
    for chunks in b.rounds(b.nbytes, blocks=shared, bells=steps, spread="ranges"):
        for chunk in chunks:
            b.publish(chunk, b.input(chunk.offset), bell=0)
        for step, count in enumerate(counts):
            first, peer = 1 << step, (b.rank + (1 << step)) % b.ranks
            newest = (count - 1).bit_length()  # the bell under which the last of them was published
            for chunk in chunks:
                came = b.retrieve(places(chunk, range(first, first + count)), chunk, peer, bell=newest)
                if first < shared:
                    passed_on = places(chunk, range(first, min(first + count, shared)))
                    b.publish(chunk, passed_on, block=first, bell=step + 1, after=came)
