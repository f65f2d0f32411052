"""Runs what a token describes, once more. Nothing that a token names is executed: code is named by who replays it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from cxlemu.errors import TokenError
from faults.token import Token

# The kind of a token -> the module with ``replay(body, algorithm) -> Replayed`` for it, imported when needed.
KINDS = {"case": "faults.campaign.replay"}


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


def replay(token: Token, algorithm: str | None = None) -> Replayed:
    """``algorithm`` is the FILE.py:function that stands for the one that the token names. Raises TokenError for a kind
    that is not known here, and InputErrors for what cannot run."""
    if token.kind not in KINDS:
        raise TokenError(f"this token is of a kind {token.kind!r}, known here are {', '.join(KINDS)}: update cxlemu")
    replayer: Replayer = import_module(KINDS[token.kind]).replay
    return replayer(token.body, algorithm)
