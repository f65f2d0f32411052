"""How long a GEMM takes on an accelerator: tiles, waves of them, and the memory that feeds them.

C (m x n) = A (m x k) B (k x n) is cut into tiles of rows x columns, each computed by one multiprocessor:

    tile_ns = 2 rows columns k / (peak / multiprocessors * efficiency(rows, columns)) + what a tile costs beside that

As many tiles run at once as there are multiprocessors, a wave; 109 tiles on 108 of them take two. Small tiles fill the
last wave better and compute more slowly, as they load more for each product: a tile reaches I / (I + H) of an endless
one's rate, where I = rows columns / (rows + columns) and H is that of the accelerator's half-rate tile. The library is
taken to have the tiles of TILES and to choose the best, as one tunes it. While so computed a GEMM also moves its
operands and its result through memory, once: where that takes longer (few rows), it is what a GEMM takes.

Not modelled: split k and stream-k, caches (operands that do not fit and are loaded again), clocks that fall under load.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from cxlemu.plan import DTYPES
from cxlemu.topology import Accelerator

TILES = ((256, 128), (128, 256), (128, 128), (64, 256), (128, 64), (64, 128), (64, 64))  # rows, columns
FULL_TILE = (128, 256)  # of which `gemm_efficiency` is said


@dataclass(frozen=True, slots=True)
class Product:
    """C = A B of m x n, over k."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def nbytes(self) -> int:
        """Of both operands and the result, each once."""
        return (self.m * self.k + self.k * self.n + self.m * self.n) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Tiling:
    """A GEMM as so many equal tiles, each ``tile_ns`` on one multiprocessor."""

    rows: int
    columns: int
    tiles: int
    tile_ns: int

    def ns(self, multiprocessors: int) -> int:
        """From the first tile's begin to the last one's end, where nothing else runs."""
        return -(-self.tiles // multiprocessors) * self.tile_ns


def fastest(accelerator: Accelerator, product: Product) -> Tiling:
    """The tiling that takes least, alone on the accelerator. Raises ArgumentError for a dtype without a rate."""
    return in_company(accelerator, product, times=1, floor_ns=product.nbytes / accelerator.memory_bytes_per_s * 1e9)


def in_company(accelerator: Accelerator, product: Product, *, times: int, floor_ns: float) -> Tiling:
    """The tiling that takes least where ``times`` of them are computed, which move through memory in ``floor_ns``."""
    found = []
    for rows, columns in TILES:
        tiles = -(-product.m // rows) * -(-product.n // columns)
        at_once = min(tiles * times, accelerator.multiprocessors)
        needs_ns = tile_ns(accelerator, rows, columns, product.k, product.dtype)
        tiling = Tiling(rows, columns, tiles, ceil(max(needs_ns, floor_ns * at_once / (tiles * times))))
        found.append((-(-tiles * times // accelerator.multiprocessors) * tiling.tile_ns, -rows * columns, tiling))
    return min(found, key=lambda candidate: candidate[:2])[2]


def tile_ns(accelerator: Accelerator, rows: int, columns: int, k: int, dtype: str) -> float:
    """One tile on one multiprocessor, fed at once."""
    rate = accelerator.peak_flop_per_s(dtype) / accelerator.multiprocessors * efficiency(accelerator, rows, columns)
    return 2 * rows * columns * k / rate * 1e9 + accelerator.tile_ns


def efficiency(accelerator: Accelerator, rows: int, columns: int) -> float:
    """The share of the peak that tiles of this shape reach."""
    half = accelerator.half_rate_tile / 2

    def share(rows: int, columns: int) -> float:
        intensity = rows * columns / (rows + columns)
        return intensity / (intensity + half)

    return min(accelerator.gemm_efficiency * share(rows, columns) / share(*FULL_TILE), 1.0)
