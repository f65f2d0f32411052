"""A vector cut into one slice per rank, for algorithms that fold each slice on one rank."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from collectives.builder import Builder, Chunk, Ints
from cxlemu.memory.protocol import LINE_BYTES


def slices(b: Builder) -> tuple[int, Callable[[Ints, Chunk], Ints]]:
    """Cut a call's vector into slices of ceil(m / N) bytes, rounded up to whole lines.

    Of fewer bytes the first ranks have a whole line each, the last ones none.

    Args:
        b: The builder of one rank's part.

    Returns:
        The distance of two slices in bytes, and a function: how many bytes of a chunk lie in each of these ranks'
        slices, shape as the ranks; the last slices may be short or empty.
    """
    stride = -(-b.nbytes // (b.ranks * LINE_BYTES)) * LINE_BYTES

    def in_slice(ranks: Ints, chunk: Chunk) -> Ints:
        return np.clip(np.minimum(stride * (ranks + 1), b.nbytes) - (stride * ranks + chunk.offset), 0, chunk.nbytes)

    return stride, in_slice
