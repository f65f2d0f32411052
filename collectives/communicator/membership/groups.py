"""Which ranks are in a new communicator: as they were named, or as every rank computes from all ranks' words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cxlemu.errors import ArgumentError
from cxlemu.numbers import as_int, is_bool


def members_of(ranks: Sequence[int], size: int, mine: int) -> tuple[int, ...]:
    try:
        found = tuple(map(as_int, ranks))
    except TypeError:
        found = (None,)
    members = tuple(rank for rank in found if rank is not None)
    if len(members) < len(found):
        raise ArgumentError(f"a group is a list of ranks, not {ranks!r}")
    if (wrong := next((rank for rank in members if not 0 <= rank < size), None)) is not None:
        raise ArgumentError(f"rank {wrong} cannot be in a group: the ranks are 0..{size - 1}")
    if len(set(members)) < len(members):
        raise ArgumentError(f"a group has each rank once, not {list(members)}")
    if mine not in members:
        raise ArgumentError(f"rank {mine} is not in the group {list(members)}, and only members make a group")
    return members


def word(color: Any, key: int) -> NDArray[np.int64]:
    """Encode a split's color (None: this rank joins no group) and key as int64 (takes part, color, key)."""
    return np.array([color is not None, _as_i64(0 if color is None else color), _as_i64(key)], np.int64)


def groups_of(words: Iterable[Iterable[int]]) -> dict[int, list[int]]:
    """Group ranks by color, ascending; in a group ranks are in the order of their keys, equal keys in rank order."""
    groups: dict[int, list[tuple[int, int]]] = {}
    for rank, (takes_part, color, key) in enumerate(words):
        if takes_part:
            groups.setdefault(color, []).append((key, rank))
    return {color: [rank for _, rank in sorted(groups[color])] for color in sorted(groups)}


def _as_i64(number: int) -> int:
    """Return a color or a key as an int. Raises ArgumentError where it is no 64-bit integer."""
    value = int(number) if is_bool(number) and np.ndim(number) == 0 else as_int(number)
    if value is None:
        raise ArgumentError(f"split takes whole numbers as color and key, not {number!r}")
    if not -(2**63) <= value < 2**63:
        raise ArgumentError(f"split takes 64-bit numbers as color and key, not {number}")
    return value
