"""Runs a token's failure once more. Nothing that a token names is executed: the user who replays it names the code.

There are two kinds of tokens: a campaign's case, replayed here, and calls with a mistake (faults/replay/calls.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cxlemu.errors import ArgumentError, TokenError
from faults.campaign.case import CampaignCase, digest
from faults.campaign.judge import Judgement, judge
from faults.campaign.picture import picture
from faults.replay.calls import replay_calls
from faults.replay.replayed import Replayed
from faults.replay.token import Token


def replay(token: Token, algorithm: str | None = None) -> Replayed:
    """Run what a token describes, here.

    Args:
        token: A token of a campaign, of ``cxlemu prove`` or of ``cxlemu mutate``.
        algorithm: The ``FILE.py:function`` that stands for the one that the token names; it is executed.

    Returns:
        How the failure fared.

    Raises:
        TokenError: The token is of another version, or of a kind that is not known here.
        ArgumentError: An algorithm is missing, or given where the token names none.
        InputError: The token's case cannot run here.
    """
    if token.kind not in REPLAYERS:
        known = ", ".join(REPLAYERS)
        raise TokenError(f"this token is of a kind {token.kind!r}, known here are {known}: update cxlemu")
    return REPLAYERS[token.kind](token.body, algorithm)


def replay_case(body: Mapping[str, Any], algorithm: str | None) -> Replayed:
    """Judge the case of a campaign's token again.

    Args:
        body: The token's body.
        algorithm: The ``FILE.py:function`` that stands for the one that the case names; it is executed.

    Returns:
        How the failure fared.

    Raises:
        TokenError: The body is of another version, or holds no case.
        ArgumentError: An algorithm is missing, or given where the case names none.
        InputError: The case cannot run here.
    """
    found = body.get("found")
    if body.keys() != {"case", "found"} or not isinstance(found, dict):
        raise TokenError("a token of this kind holds a case and what was found, this one does not: update cxlemu")
    case, before = CampaignCase.parse(body["case"]), Judgement.of(found)
    remarks = []
    if case.algorithm is not None:
        if algorithm is None:
            raise ArgumentError(
                f"this failure is of an algorithm of somebody's own, {case.algorithm!r}: say which file may be "
                f"executed for it with --algorithm FILE.py:function"
            )
        if digest(algorithm) != case.algorithm_sha256:
            remarks.append(f"{algorithm} is not the file that failed: its contents differ")
        case = case.model_copy(update={"algorithm": algorithm})
    elif algorithm is not None:
        raise ArgumentError("this failure is of an algorithm that cxlemu ships: leave out --algorithm")
    now = judge(case.check())
    if case.launch != "lockstep":
        remarks.append(f"ranks as {case.launch} take their own time: it may take a few tries")
    return Replayed(str(case), _words(before), _words(now), tuple(remarks), lambda: picture(case))


def _words(judgement: Judgement) -> str:
    return f"{judgement.kind}: {judgement.detail}" if judgement.fails else ""


# The kind of a token -> what replays its body.
REPLAYERS: dict[str, Callable[[Mapping[str, Any], str | None], Replayed]] = {
    "case": replay_case,
    "calls": replay_calls,
}
