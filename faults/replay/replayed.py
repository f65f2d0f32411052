"""What came of a replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Replayed:
    """How a failure fared in a replay.

    Attributes:
        what: the calls that were replayed, in words.
        before: the failure that the token holds; empty where there was none.
        now: the failure of this replay; empty where there is none.
        remarks: reasons why the two may differ.
        picture: draws an SVG, or gives None where there is nothing to draw.
    """

    what: str
    before: str
    now: str
    remarks: tuple[str, ...] = ()
    picture: Callable[[], str | None] = lambda: None

    @property
    def same(self) -> bool:
        return self.before == self.now
