"""Which ranks are in a new communicator: as they were named, or as every rank computes from all ranks' words."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError


def members_of(ranks: Sequence[int], size: int, mine: int) -> tuple[int, ...]:
    """Check the members of a group.

    Args:
        ranks: The members, in their order.
        size: How many ranks there are to choose from.
        mine: This rank.

    Raises:
        ArgumentError: One is no rank or named twice, or this rank is not among them.
    """
    try:
        members = tuple(map(operator.index, ranks))
    except TypeError:
        raise ArgumentError(f"a group is a list of ranks, not {ranks!r}") from None
    if (wrong := next((rank for rank in members if not 0 <= rank < size), None)) is not None:
        raise ArgumentError(f"rank {wrong} cannot be in a group: the ranks are 0..{size - 1}")
    if len(set(members)) < len(members):
        raise ArgumentError(f"a group has each rank once, not {list(members)}")
    if mine not in members:
        raise ArgumentError(f"rank {mine} is not in the group {list(members)}, which only its members make")
    return members


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
