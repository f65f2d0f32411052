"""Runs a token's failure once more. Nothing that a token names is executed: the user who replays it names the code.

There are two kinds of tokens: a campaign's case, replayed here, and calls with a mistake (faults/replay/calls.py).
"""

from collections.abc import Callable, Mapping
from typing import Any

from cxlemu.errors import ArgumentError, TokenError
from faults.campaign.case import CampaignCase, digest
from faults.campaign.judge import NEVER, Judgement, judge
from faults.campaign.picture import picture
from faults.replay.calls import Replayed, replay_calls
from faults.token import Token


def replay(token: Token, algorithm: str | None = None) -> Replayed:
    """Repeat a token's failure here; ``algorithm`` is executed, and stands for the one that the token names."""
    if token.kind not in REPLAYERS:
        known = ", ".join(REPLAYERS)
        raise TokenError(f"unknown kind of token {token.kind!r}, known are {known}: update cxlemu")
    return REPLAYERS[token.kind](token.body, algorithm)


def replay_case(body: Mapping[str, Any], algorithm: str | None) -> Replayed:
    """Judge the case of a campaign's token again; ``algorithm`` is executed, and stands for the one that it names."""
    stored = body.get("found")
    if body.keys() != {"case", "found"} or not isinstance(stored, dict):
        raise TokenError("this token does not hold just a case and its findings: update cxlemu")
    case, before = CampaignCase.parse(body["case"]), Judgement.of(stored)
    other, remarks = "", []
    if case.algorithm is not None:
        if algorithm is None:
            raise ArgumentError(
                f"this failure is of a user's algorithm, {case.algorithm!r}: name the file to execute "
                f"with --algorithm FILE.py:function"
            )
        if digest(algorithm) != case.algorithm_sha256:
            other = f"{algorithm} is not the file that failed: its contents differ"
            remarks.append(other)
        case = case.model_copy(update={"algorithm": algorithm})
    elif algorithm is not None:
        raise ArgumentError("this failure is of a shipped algorithm: leave out --algorithm")
    now = judge(case.check())
    if case.launch != "lockstep":
        remarks.append(f"ranks as {case.launch} take their own time: it may take a few tries")
    unknown = now.detail if now.kind == NEVER else "" if now.fails else other
    return Replayed(str(case), _words(before), _words(now), unknown, tuple(remarks), lambda: picture(case))


def _words(judgement: Judgement) -> str:
    return f"{judgement.kind}: {judgement.detail}" if judgement.fails else ""


# The kind of a token -> what replays its body.
REPLAYERS: dict[str, Callable[[Mapping[str, Any], str | None], Replayed]] = {"case": replay_case, "calls": replay_calls}
