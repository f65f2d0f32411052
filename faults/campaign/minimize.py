"""Delta debugging (Zeller, Hildebrandt: Simplifying and Isolating Failure-Inducing Input, IEEE TSE 2002)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def fewer(items: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Some of the items, in their order, with which it still fails, and from which no single one can be taken.

    ``fails`` is asked about sequences that are shorter than those it said yes to, and about no other.
    """
    kept, pieces = list(items), 1
    while kept:
        size = -(-len(kept) // pieces)
        for at in range(0, len(kept), size):
            candidate = kept[:at] + kept[at + size :]
            if fails(candidate):
                kept, pieces = candidate, max(pieces - 1, 1)
                break
        else:
            if size == 1:
                break
            pieces = min(2 * pieces, len(kept))
    return kept


def smaller(value: T, simpler: Callable[[T], Iterable[T]], fails: Callable[[T], bool]) -> T:
    """Follow ``simpler``, which names the boldest simplifications of a value first, as long as it still fails.

    Every value that it names must be simpler than the one it was asked about, or this does not end.
    """
    while True:
        for candidate in simpler(value):
            if fails(candidate):
                value = candidate
                break
        else:
            return value
