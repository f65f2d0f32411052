"""Who belongs together after a split, as every rank of it finds from what all ranks said."""

from __future__ import annotations

import operator
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError


def word(color: int | None, key: int) -> NDArray[np.int64]:
    """What a rank says: whether it takes part, its color and its key. Raises ArgumentError for no 64-bit integers."""
    return np.array([color is not None, _as_i64(color or 0), _as_i64(key)], np.int64)


def groups_of(words: Iterable[Iterable[int]]) -> dict[int, list[int]]:
    """Ranks by color, in order of their keys, from the words of all ranks in rank order."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for rank, (takes_part, color, key) in enumerate(words):
        if takes_part:
            groups.setdefault(color, []).append((key, rank))
    return {color: [rank for _, rank in sorted(groups[color])] for color in sorted(groups)}


def _as_i64(number: int) -> int:
    """A color or a key. Raises ArgumentError for what is no 64-bit integer."""
    try:
        value = operator.index(number)
    except TypeError:
        raise ArgumentError(f"split takes whole numbers as color and key, not {number!r}") from None
    if not -(2**63) <= value < 2**63:
        raise ArgumentError(f"split takes 64-bit numbers as color and key, not {number}")
    return value
