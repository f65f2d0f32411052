"""The outcome of a replay."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Replayed:
    what: str  # the calls that were replayed, in words
    before: str  # the failure that the token holds; empty if it holds none
    now: str  # the failure of this replay; empty if nothing failed
    unknown: str = ""  # why this replay says nothing: a fault of the token never happened; empty if it did
    remarks: tuple[str, ...] = ()  # reasons why the two may differ
    picture: Callable[[], str | None] = lambda: None  # draws an SVG, or gives None if there is nothing to draw

    @property
    def same(self) -> bool:
        return self.before == self.now
