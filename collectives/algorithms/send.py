"""Send: the root publishes its block over all cards, and the rank after it reads it. The other ranks do nothing.

A message between two ranks is a call of two ranks: one doorbell line that says what comes, and for more than that line
holds, slots (collectives/communicator/messages).

Rounds: ceil(m / P). Written: m by the root. Read: m by one rank.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("send", variants=("naive", "aggregate", "all", "line"))
def send(b: Builder) -> None:
    reader = (b.root + 1) % b.ranks
    for chunks in b.rounds(b.nbytes, writers=[b.root], spread="ranges"):
        for chunk in chunks:
            if b.is_root:
                b.publish(chunk, b.input(chunk.offset))
            elif b.rank == reader:
                b.retrieve(b.output(chunk.offset), chunk, b.root)
