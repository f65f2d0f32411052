"""The groups after a split, which every rank computes from the words of all ranks."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError


def word(color: int | None, key: int) -> NDArray[np.int64]:
    """Encode what a rank tells the others in a split.

    Args:
        color: The group that the rank joins, a 64-bit integer; None: it joins none.
        key: The rank's place in the order of its group, a 64-bit integer.

    Returns:
        Whether the rank takes part (0 or 1), its color and its key, shape (3,).

    Raises:
        ArgumentError: Color or key is no 64-bit integer.
    """
    return np.array([color is not None, _as_i64(color or 0), _as_i64(key)], np.int64)


def groups_of(words: Iterable[Iterable[int]]) -> dict[int, list[int]]:
    """Group ranks by color.

    Args:
        words: The word of each rank (see `word`), in rank order.

    Returns:
        For each color, in ascending order, its ranks in the order of their keys; equal keys in rank order.
    """
    groups: dict[int, list[tuple[int, int]]] = {}
    for rank, (takes_part, color, key) in enumerate(words):
        if takes_part:
            groups.setdefault(color, []).append((key, rank))
    return {color: [rank for _, rank in sorted(groups[color])] for color in sorted(groups)}


def _as_i64(number: int) -> int:
    """Return a color or a key as an int. Raises ArgumentError where it is no 64-bit integer."""
    try:
        value = operator.index(number)
    except TypeError:
        raise ArgumentError(f"split takes whole numbers as color and key, not {number!r}") from None
    if not -(2**63) <= value < 2**63:
        raise ArgumentError(f"split takes 64-bit numbers as color and key, not {number}")
    return value
