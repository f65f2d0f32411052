"""Scatter into the heap: the root writes the block for each rank to that rank's result.

Rounds: 1. Written by the root: (N - 1) m. Read per rank: nothing, the result lies where it is written; behind an
emulated cache, m per rank but the root.
"""

from collectives.algorithms.scatter import scatter
from collectives.builder import PUSH, Builder
from collectives.builder.recipes import algorithm


@algorithm("scatter", variants=(PUSH,))
def scatter_push(b: Builder) -> None:
    scatter(b)
