"""Numbers of users: a root, peer, tag, color, key or count may be any kind of integer, and becomes an int here.

NumPy's integers, and arrays and tensors of one integer without axes, are integers; bools and floats are none. A bool of
any kind is a color, and nothing else.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from cxlemu.errors import ArgumentError


def is_bool(value: Any) -> bool:
    """Whether a value is a bool: Python's, NumPy's, or an array or a tensor of bools."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def as_int(value: Any) -> int | None:
    """Return an integer of any kind as an int; None for what is no integer."""
    if type(value) is int:
        return value
    try:
        return None if is_bool(value) else operator.index(value)
    except TypeError:
        return None


def whole(value: Any, what: str, least: int = 0) -> int:
    """Return a count or a size as an int. Raises ArgumentError for what is no whole number from ``least`` on."""
    number = as_int(value)
    if number is None or number < least:
        raise ArgumentError(f"{what} is a whole number from {least} on, not {value!r}")
    return number


def wholes(values: Any, what: str) -> tuple[int, ...]:
    """Return a list of whole numbers from 0 on as ints. Raises ArgumentError for what is none."""
    try:
        return tuple(whole(value, f"each of {what}") for value in values)
    except TypeError:
        raise ArgumentError(f"{what} is a list of whole numbers, not {values!r}") from None


def root_of(collective: str, root: Any, ranks: int) -> int:
    """Return the root of a call of ``ranks`` ranks. Raises ArgumentError, alike on all ranks, for what is no rank."""
    number = as_int(root)
    if number is None or not 0 <= number < ranks:
        raise ArgumentError(f"{collective}: root {root!r} is not one of the ranks 0..{ranks - 1}")
    return number


def op_of(collective: str, op: Any) -> str:
    """Return the name of a reduction. Raises ArgumentError for what is no name, such as an array meant as ``out``."""
    if not isinstance(op, str):
        raise ArgumentError(f"{collective}: op is a {type(op).__name__}, not a name: the array for the result is out=")
    return op


def seconds(value: Any, what: str, *, above_0: bool = False) -> float:
    """Return a time to wait, in seconds. Raises ArgumentError for what is no number from 0 on, or above 0."""
    try:
        number = float("nan" if isinstance(value, str | bytes) or is_bool(value) else value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not (number > 0 if above_0 else number >= 0):
        raise ArgumentError(f"{what} is a number of seconds {'above 0' if above_0 else 'from 0 on'}, not {value!r}")
    return number
