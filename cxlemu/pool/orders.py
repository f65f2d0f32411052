"""The order of a list as one number below `ORDERS`, by which ranks notice that they list the same members otherwise."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

ORDERS = 1 << 32
NUMBERED = 12  # of a longer list there are more orders: it has a digest


def order_of(members: Sequence[int]) -> int:
    """Return the number of the order that members are listed in; 0 for a short list that ascends."""
    if len(members) > NUMBERED:
        return zlib.crc32(repr(tuple(members)).encode())
    rest, order = sorted(members), 0
    for member in members:
        at = rest.index(member)
        order = order * len(rest) + at
        del rest[at]
    return order


def in_order(members: Sequence[int], order: int) -> list[int] | None:
    """Return the members in the order of that number; None where there is none, or a digest."""
    rest, places = sorted(members), []
    if len(rest) > NUMBERED:
        return None
    for count in range(1, len(rest) + 1):
        order, at = divmod(order, count)
        places.append(at)
    return None if order else [rest.pop(at) for at in reversed(places)]
