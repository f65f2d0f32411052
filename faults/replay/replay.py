"""Runs what a token describes, once more. Nothing that a token names is executed: code is named by who replays it."""

from __future__ import annotations

from importlib import import_module

from cxlemu.errors import TokenError
from faults.replay.replayed import Replayed, Replayer
from faults.replay.token import Token

# The kind of a token -> the module with ``replay(body, algorithm) -> Replayed`` for it, imported when needed.
KINDS = {"case": "faults.campaign.replay", "calls": "faults.campaign.calls_token"}


def replay(token: Token, algorithm: str | None = None) -> Replayed:
    """``algorithm`` is the FILE.py:function that stands for the one that the token names. Raises TokenError for a kind
    that is not known here, and InputErrors for what cannot run."""
    if token.kind not in KINDS:
        raise TokenError(f"this token is of a kind {token.kind!r}, known here are {', '.join(KINDS)}: update cxlemu")
    replayer: Replayer = import_module(KINDS[token.kind]).replay
    return replayer(token.body, algorithm)
