"""Gather into the heap: every rank writes its block to the root's result.

Rounds: 1. Written per rank but the root: m. Read by the root: nothing, the result lies where it is written; behind an
emulated cache, (N - 1) m.
"""

from collectives.algorithms.gather import gather
from collectives.builder import PUSH, Builder
from collectives.builder.recipes import algorithm


@algorithm("gather", variants=(PUSH,))
def gather_push(b: Builder) -> None:
    gather(b)
