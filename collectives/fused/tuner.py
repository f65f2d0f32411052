"""Which tiles, order and transport a fused operator runs fastest with, found by running it.

One dimension after another, the one that matters most first; each keeps the best so far of those before. What was found
is kept in a file, with the machine it was found on: for another machine it says nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from collectives.fused.shapes import ORDERS, TRANSPORTS
from collectives.fused.virtual import Choice, Operator
from cxlemu.gemm import TILES

COMM_TILE_ROWS = (2048, 1024, 512, 256, 128, 64, 32, 16)
COMM_TILES_MAX = 32  # of a shard: more cost more than they hide
TRIED_MAX = 64
FILE_BYTES_MAX = 1 << 22
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best of ``tried`` choices, and its time."""

    choice: Choice
    fused_ns: int
    tried: int


def tune(operator: Operator, ranks: int, measure: Callable[[Choice], int]) -> Tuned:
    """``measure`` gives the time of a choice in ns. Raises ArgumentError where no choice is possible."""
    seen: dict[Choice, int] = {}

    def ns(choice: Choice) -> int:
        if choice not in seen:
            seen[choice] = measure(choice)
        return seen[choice]

    best = Choice(transport=TRANSPORTS[operator.kind][0])
    for candidates in _dimensions(operator, ranks):
        best = min([best, *candidates(best)], key=ns)
    return Tuned(best, ns(best), len(seen))


def _dimensions(operator: Operator, ranks: int) -> Iterator[Callable[[Choice], list[Choice]]]:
    rows = max(operator.m // ranks, 1)
    columns = operator.n // ranks if operator.kind == "all_gather_gemm" else operator.n
    comm = [its for its in COMM_TILE_ROWS if its < rows and rows <= its * COMM_TILES_MAX]
    tiles = dict.fromkeys((min(rows, its[0]), min(columns, its[1])) for its in TILES)
    yield lambda best: [replace(best, compute_tile=tile) for tile in tiles]
    yield lambda best: [replace(best, comm_tile_rows=its) for its in (rows, *comm)]
    yield lambda best: [replace(best, compute_tile=tile) for tile in tiles]
    yield lambda best: [replace(best, transport=its) for its in TRANSPORTS[operator.kind]]
    yield lambda best: [replace(best, order=its) for its in ORDERS]
