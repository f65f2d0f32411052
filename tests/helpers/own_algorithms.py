"""Algorithms of users' own, as the text of a file that a test writes."""

# A broadcast after which one rank has the block, and nobody else.
TO_ONE_RANK = """
from pathlib import Path
from collectives.builder.recipes import algorithm

@algorithm("broadcast")
def mine(b):
    for chunks in b.rounds(b.nbytes, blocks=1, spread="cards"):
        for chunk in chunks:
            if b.rank == b.root:
                b.publish(chunk, b.input(chunk.offset), block=0)
                b.copy(b.output(chunk.offset), b.input(chunk.offset), chunk.nbytes)
            elif b.rank == (b.root + 1) % b.ranks:
                b.retrieve(b.output(chunk.offset), chunk, b.root, block=0)
"""
