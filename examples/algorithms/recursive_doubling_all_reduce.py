"""Recursive doubling: in step k ranks whose numbers differ in bit k alone exchange what they have folded so far.

P is the largest power of two up to N. Of the first 2 (N - P) ranks the even ones give their vectors to the next rank,
which takes part for both, and get the result from there.
Steps: log2 P, and 2 where N is no power of two. Written and read by a rank that takes part: m log2 P, and m more for
each of the first N - P ones; by the others m, where m is the vector.
The lower ranks' part is the left operand everywhere, so that all ranks fold by one tree and get the same bits.
Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, IJHPCA 2005.

cxlemu run --algorithm examples/algorithms/recursive_doubling_all_reduce.py:recursive_doubling_all_reduce
"""

from collectives import Builder, algorithm


@algorithm("all_reduce", fold_order="uniform")
def recursive_doubling_all_reduce(b: Builder) -> None:
    steps = b.ranks.bit_length() - 1
    pairs = b.ranks - (1 << steps)  # of which one rank takes part for both
    paired = b.rank < 2 * pairs
    place = b.rank // 2 if paired else b.rank - pairs  # among the ranks that take part
    for chunks in b.rounds(b.nbytes, blocks=steps + (pairs > 0), spread="ranges"):
        if paired and b.rank % 2 == 0:
            for chunk in chunks:
                b.publish(chunk, b.input(chunk.offset))
            for chunk in chunks:  # a result in place of its vector comes from the rank that has read the vector
                b.retrieve(b.output(chunk.offset), chunk, b.rank + 1, block=steps)
            continue
        mine, came = dict.fromkeys(chunks, b.input()), dict.fromkeys(chunks)
        if paired:
            for chunk in chunks:
                result = b.output(chunk.offset)
                came[chunk] = b.combine(result, chunk, b.rank - 1, b.input(chunk.offset))
                mine[chunk] = b.output()
        for step in range(steps):
            other = place ^ 1 << step
            peer = 2 * other + 1 if other < pairs else other + pairs
            last = step == steps - 1
            for chunk in chunks:
                vector, result = mine[chunk].at(chunk.offset), b.output(chunk.offset)
                first = vector == b.input(chunk.offset)
                sent_on = b.publish(chunk, vector, block=step, overwritten=first, after=came[chunk])
                came[chunk] = b.combine(
                    result, chunk, peer, vector, block=step, peer_left=peer < b.rank, last=last, after=sent_on
                )
                mine[chunk] = b.output()
        if paired:
            for chunk in chunks:
                b.publish(chunk, b.output(chunk.offset), block=steps, after=came[chunk])
