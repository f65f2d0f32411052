"""All-reduce by Rabenseifner: a reduce-scatter by recursive halving, and then an all-gather by recursive doubling.

P is the largest power of two up to N. Of the first 2 (N - P) ranks the even ones give their vectors to the next rank,
which takes part for both, and get the result from there.
Steps: 2 log2 P, and 2 where N is no power of two. Read by a rank that takes part: 2 m (P - 1) / P, where m is the
vector. Written: m (P - 1) / P and, of the result, m / 2: each part once, where a network would send it in every step.
Odd ones of the pairs read m and write m / 2 more; the even ones write m and read m.
Each part of the result is folded by one rank alone, so that all get the same bits.
Source: Rabenseifner, Optimization of collective reduction operations, ICCS 2004.
"""

from collectives.builder import Builder, Chunk
from collectives.builder.recipes import Publishes, algorithm

GIVEN, RESULT = 0, 1  # blocks: parts of the vector that peers fold, parts of the result that they get


def published(ranks: int) -> Publishes:
    """A rank publishes two blocks; the parts of each step have a bell."""
    steps = ranks.bit_length() - 1
    return Publishes(2, bells=2 * steps + (ranks > 1 << steps), slices=1 << steps)


@algorithm("all_reduce", name="rabenseifner", fold_order="uniform", publishes=published)
def all_reduce_rabenseifner(b: Builder) -> None:
    steps = b.ranks.bit_length() - 1
    slices = 1 << steps
    pairs = b.ranks - slices  # of which one rank takes part for both
    paired = b.rank < 2 * pairs
    place = b.rank // 2 if paired else b.rank - pairs  # among the ranks that take part

    def rank_of(place: int) -> int:
        return 2 * place + 1 if place < pairs else place + pairs

    def part(chunk: Chunk, first: int, count: int) -> Chunk:
        """So many of its slices, which are whole lines: the last ones may be short or empty."""
        stride = -(-chunk.nbytes // (slices * b.grain)) * b.grain
        return b.part(chunk, count * stride, first * stride)

    for chunks in b.rounds(b.nbytes, blocks=2, bells=2 * steps + (pairs > 0), spread="ranges"):
        if paired and b.rank % 2 == 0:
            for chunk in chunks:
                b.publish(chunk, b.input(chunk.offset), bell=0)
            for chunk in chunks:  # a result in place of its vector comes from the rank that has read the vector
                b.retrieve(b.output(chunk.offset), chunk, b.rank + 1, block=RESULT, bell=2 * steps)
            continue
        mine, came = b.input(), dict.fromkeys(chunks)
        if paired:
            for chunk in chunks:
                came[chunk] = b.combine(b.output(chunk.offset), chunk, b.rank - 1, b.input(chunk.offset), bell=0)
            mine = b.output()
        first, count = 0, slices
        for step in range(steps):  # halving: keep the half that this rank's slice is in, and give the other
            count //= 2
            peer = rank_of(place ^ count)
            first, given = (first + count, first) if place & count else (first, first + count)
            for chunk in chunks:
                give, keep = part(chunk, given, count), part(chunk, first, count)
                b.publish(give, mine.at(give.offset), block=GIVEN, bell=step, after=came[chunk])
                result, own, last = b.output(keep.offset), mine.at(keep.offset), step == steps - 1
                came[chunk] = b.combine(
                    result, keep, peer, own, block=GIVEN, bell=step, peer_left=peer < b.rank, last=last
                )
            mine = b.output()
        newest = first, count
        for step in range(steps, 2 * steps):  # doubling: publish what came last, get what the peer has by then
            peer, theirs = rank_of(place ^ count), first ^ count
            for chunk in chunks:
                new, other = part(chunk, *newest), part(chunk, theirs, count)
                b.publish(new, b.output(new.offset), block=RESULT, bell=step, after=came[chunk])
                came[chunk] = b.retrieve(b.output(other.offset), other, peer, block=RESULT, bell=step)
            newest, first, count = (theirs, count), min(first, theirs), 2 * count
        if paired:
            for chunk in chunks:
                new = part(chunk, *newest)
                b.publish(new, b.output(new.offset), block=RESULT, bell=2 * steps, after=came[chunk])
