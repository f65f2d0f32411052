"""The outcome of a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Replayed:
    """How a failure fared in a replay.

    Attributes:
        what: The calls that were replayed, in words.
        before: The failure that the token holds; empty if it holds none.
        now: The failure of this replay; empty if nothing failed.
        remarks: Reasons why the two may differ.
        picture: Draws an SVG, or gives None if there is nothing to draw.
    """

    what: str
    before: str
    now: str
    remarks: tuple[str, ...] = ()
    picture: Callable[[], str | None] = lambda: None

    @property
    def same(self) -> bool:
        """Whether it failed exactly as before."""
        return self.before == self.now
