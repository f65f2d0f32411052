"""Bruck all-to-all: in step k every block that has bit k of its way before it moves 2^k ranks on, all in one message.

Steps: ceil(log2 N). Written and read per rank: m for every bit that is set in 1 .. N - 1, (N / 2) log2 N for a power of
two, where m is one block: more bytes than pairwise, in fewer messages. Block w is on a way of w ranks.
Source: Bruck, Ho, Kipnis, Upfal, Weathersby, Efficient algorithms for all-to-all communications, IEEE TPDS 1997.

cxlemu run --algorithm examples/algorithms/bruck_all_to_all.py:bruck_all_to_all
"""

from collectives import Builder, algorithm


@algorithm("all_to_all")
def bruck_all_to_all(b: Builder) -> None:
    steps = (b.ranks - 1).bit_length()
    moved = [[way for way in range(b.ranks) if way >> step & 1] for step in range(steps)]
    first = [sum(map(len, moved[:step])) for step in range(steps + 1)]  # where a step's blocks lie in the slot
    held = b.scratch(b.ranks * b.nbytes)
    for way in range(1, b.ranks):
        packed = b.copy(held.at(way * b.nbytes), b.input((b.rank + way) % b.ranks * b.nbytes), b.nbytes)
    b.copy(b.output(b.rank * b.nbytes), b.input(b.rank * b.nbytes), b.nbytes)
    for chunks in b.rounds(b.nbytes, blocks=first[steps], bells=steps, spread="ranges"):
        came = dict.fromkeys(chunks, packed)
        for step, ways in enumerate(moved):
            peer = (b.rank - (1 << step)) % b.ranks
            for chunk in chunks:
                places = [held.at(way * b.nbytes + chunk.offset) for way in ways]
                sent = b.publish(chunk, places, block=first[step], bell=step, after=came[chunk])
                came[chunk] = b.retrieve(places, chunk, peer, block=first[step], bell=step, after=sent)
        for chunk in chunks:
            for way in range(1, b.ranks):
                result = b.output((b.rank - way) % b.ranks * b.nbytes + chunk.offset)
                b.copy(result, held.at(way * b.nbytes + chunk.offset), chunk.nbytes)
