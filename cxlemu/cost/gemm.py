"""How long a GEMM takes on an accelerator: tiles, waves of them, and the memory that feeds them.

C (m x n) = A (m x k) B (k x n) is cut into tiles of rows x columns, each computed by one multiprocessor:

    tile_ns = 2 rows columns k / (peak / multiprocessors * efficiency(rows, columns)) + what a tile costs beside that

As many tiles run at once as there are multiprocessors, a wave; 109 tiles on 108 of them take two. Small tiles fill the
last wave better and compute more slowly, as they load more per product: a tile reaches I / (I + H) of an endless
one's rate, where I = rows columns / (rows + columns) and H is that of the accelerator's half-rate tile. The library is
taken to have the tiles of TILES and to choose the best, as a tuned one does. Meanwhile a GEMM also moves its
operands and its result through memory. Tiles of one wave share what they load; the next wave loads anew. Where that
takes longer than the products (few rows), it is what a GEMM takes.

Not modelled: split k and stream-k, clocks that fall under load, caches that hold operands from wave to wave; and copies
that take memory's bandwidth meanwhile, which slows neither but where rows are few (docs/published.md, FLUX).
"""

import math
from dataclasses import dataclass, replace

from cxlemu.plan import DTYPES
from cxlemu.topology import Accelerator

TILES = ((256, 128), (128, 256), (128, 128), (64, 256), (128, 64), (64, 128), (64, 64))  # rows, columns
FULL_TILE = (128, 256)  # the tile to which `gemm_efficiency` refers


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product C = A B."""

    m: int  # rows of A and C
    n: int  # columns of B and C
    k: int  # columns of A, rows of B
    dtype: str = "bf16"  # the elements' type, a name in `DTYPES`

    @property
    def flops(self) -> int:
        """Floating-point operations: a multiplication and an addition per element and step of ``k``."""
        return 2 * self.m * self.n * self.k

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class GemmTiling:
    rows: int
    columns: int
    tiles: int
    tile_ns: int  # how long one multiprocessor computes a tile, in nanoseconds

    def ns(self, multiprocessors: int) -> int:
        """Return the nanoseconds from the first tile's begin to the last one's end, where nothing else runs."""
        return -(-self.tiles // multiprocessors) * self.tile_ns


def fastest(accelerator: Accelerator, product: Product) -> GemmTiling:
    """Choose the tiling that takes least time where the product runs alone, the largest tile among equals."""
    tilings = []
    for rows, columns in TILES:
        tiling = _tiling(accelerator, product, rows, columns)
        floor_ns = moved_bytes(product, tiling, accelerator.multiprocessors) / accelerator.memory_bytes_per_s * 1e9
        tilings.append(slowed(tiling, floor_ns, tiling.tiles, accelerator.multiprocessors))
    return min(tilings, key=lambda tiling: (tiling.ns(accelerator.multiprocessors), -tiling.rows * tiling.columns))


def in_company(accelerator: Accelerator, product: Product, times: int) -> GemmTiling:
    """Choose the tiling with which ``times`` equal products end soonest; the largest tile among equals."""
    tilings = [_tiling(accelerator, product, rows, columns) for rows, columns in TILES]

    def wanted(tiling: GemmTiling) -> tuple[int, int]:
        waves = -(-tiling.tiles * times // accelerator.multiprocessors)
        return waves * tiling.tile_ns, -tiling.rows * tiling.columns

    return min(tilings, key=wanted)


def slowed(tiling: GemmTiling, floor_ns: float, all_tiles: int, multiprocessors: int) -> GemmTiling:
    """Lengthen a tiling's tiles so that memory, which moves the bytes of all tiles in ``floor_ns``, can feed them."""
    return replace(
        tiling, tile_ns=max(tiling.tile_ns, math.ceil(floor_ns * min(all_tiles, multiprocessors) / all_tiles))
    )


def moved_bytes(product: Product, tiling: GemmTiling, multiprocessors: int) -> int:
    """Count the bytes that one product moves through memory: what each wave loads, and the result.

    A wave computes a block of tiles that is as square as possible.
    """
    down, across = -(-product.m // tiling.rows), -(-product.n // tiling.columns)
    side = math.sqrt(multiprocessors * tiling.rows * tiling.columns)  # of a wave's block, in elements
    high = min(max(round(side / tiling.rows), -(-multiprocessors // across), 1), down)
    wide = min(-(-multiprocessors // high), across)
    waves_down, waves_across = -(-down // high), -(-across // wide)
    loaded = waves_across * product.m * product.k + waves_down * product.k * product.n
    return (loaded + product.m * product.n) * product.itemsize


def _tiling(accelerator: Accelerator, product: Product, rows: int, columns: int) -> GemmTiling:
    tiles = -(-product.m // rows) * -(-product.n // columns)
    return GemmTiling(rows, columns, tiles, math.ceil(tile_ns(accelerator, rows, columns, product.k, product.dtype)))


def tile_ns(accelerator: Accelerator, rows: int, columns: int, k: int, dtype: str) -> float:
    """Compute how long one tile takes on one multiprocessor where memory does not delay it, in nanoseconds."""
    rate = accelerator.peak_flop_per_s(dtype) / accelerator.multiprocessors * efficiency(accelerator, rows, columns)
    return 2 * rows * columns * k / rate * 1e9 + accelerator.tile_ns


def efficiency(accelerator: Accelerator, rows: int, columns: int) -> float:
    """Compute the share of the peak that tiles of a shape reach, above 0 and at most 1."""
    half = accelerator.half_rate_tile / 2

    def share(rows: int, columns: int) -> float:
        intensity = rows * columns / (rows + columns)
        return intensity / (intensity + half)

    return min(accelerator.gemm_efficiency * share(rows, columns) / share(*FULL_TILE), 1.0)
