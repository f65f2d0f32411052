"""What came of a replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Replayed:
    """``what`` was replayed, ``before`` what came of it then, and ``now``; empty words stand for no failure.

    ``remarks`` are reasons why the two may differ. ``picture`` draws an SVG, where there is something to draw.
    """

    what: str
    before: str
    now: str
    remarks: tuple[str, ...] = ()
    picture: Callable[[], str | None] = lambda: None

    @property
    def same(self) -> bool:
        return self.before == self.now


Replayer = Callable[[Mapping[str, Any], str | None], Replayed]
