"""Which tiles, order and transport a fused operator runs fastest with, found by running it.

One dimension after another, the one that matters most first; each keeps the best so far of those before. What was found
is kept in a file, with the machine it was found on: for another machine it says nothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from collectives.choices import ORDERS
from collectives.fused.choice import Operator, Tiling
from collectives.fused.plans import COMM_TILE_ROWS, TILE_COLS, TILE_ROWS
from collectives.fused.shapes import TRANSPORTS
from cxlemu.cost.gemm import TILES

ROWS_TRIED = (2048, 1024, 512, 256, 128, 64, 32, 16)
TILES_A_SHARD_MAX = 32  # of a shard: more cost more than they hide


@dataclass(frozen=True, slots=True)
class Tuned:
    choice: Tiling
    fused_ns: int
    tried: int


def tune(
    operator: Operator,
    ranks: int,
    measure: Callable[[Tiling], int],
    least_ns: Callable[[Tiling], float] = lambda choice: 0,
) -> Tuned:
    """Find the fastest choice, dimension by dimension; one whose ``least_ns`` is not below the best is not measured."""
    seen: dict[Tiling, int] = {}

    def ns(choice: Tiling) -> int:
        if choice not in seen:
            seen[choice] = measure(choice)
        return seen[choice]

    rows, columns = max(operator.m // ranks, 1), _columns(operator, ranks)
    default = min(rows, TILE_ROWS), min(columns, TILE_COLS)
    best = Tiling(min(rows, COMM_TILE_ROWS), default, transport=TRANSPORTS[operator.kind][0])
    for candidates in _dimensions(operator, ranks):
        for choice in candidates(best):
            if least_ns(choice) < ns(best) and ns(choice) < ns(best):
                best = choice
    return Tuned(best, ns(best), len(seen))


def _dimensions(operator: Operator, ranks: int) -> Iterator[Callable[[Tiling], list[Tiling]]]:
    rows, columns = max(operator.m // ranks, 1), _columns(operator, ranks)
    comm = [tile_rows for tile_rows in ROWS_TRIED if tile_rows < rows and rows <= tile_rows * TILES_A_SHARD_MAX]
    # parts of a shard, and where shards are small, several of them
    tiles = dict.fromkeys((min(tile[0], most), min(tile[1], columns)) for tile in TILES for most in (rows, operator.m))
    yield lambda best: [replace(best, comm_tile_rows=tile_rows) for tile_rows in (rows, *comm)]
    yield lambda best: [replace(best, compute_tile=tile) for tile in tiles]
    yield lambda best: [replace(best, transport=transport) for transport in TRANSPORTS[operator.kind]]
    yield lambda best: [replace(best, order=order) for order in ORDERS]


def _columns(operator: Operator, ranks: int) -> int:
    return operator.n // ranks if operator.kind == "all_gather_gemm" else operator.n
