"""Barrier: every rank rings its doorbell and waits for everyone's.

Rounds: 1. Written and read per rank: no data, one doorbell rung, N looked at.
"""

from collectives.builder import Builder
from collectives.builder.recipes import algorithm


@algorithm("barrier", variants=("line",))
def barrier(b: Builder) -> None:
    b.meet()
