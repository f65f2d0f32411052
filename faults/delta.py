"""Delta debugging: what fails, made small.

Zeller and Hildebrandt: Simplifying and Isolating Failure-Inducing Input, IEEE TSE 2002.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def fewer(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Find fewer items that still fail, in their order; no single one of them can be left out."""
    kept = list(items)
    size, removed = 2 * len(kept), False  # all at once, then halves
    while kept and (size > 1 or removed):
        size, removed = max(size // 2, 1), False
        end = len(kept)
        while end > 0:
            first = max(end - size, 0)
            candidate = kept[:first] + kept[end:]
            if fails(candidate):
                kept, removed = candidate, True
            end = first
    return kept


def smaller(value: T, simpler: Callable[[T], Iterable[T]], fails: Callable[[T], bool]) -> T:
    """Simplify a value as long as a case still fails with it."""
    while True:
        for candidate in simpler(value):
            if fails(candidate):
                value = candidate
                break
        else:
            return value
