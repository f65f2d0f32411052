"""Replays a case of a campaign."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cxlemu.errors import ArgumentError, TokenError
from faults.campaign.case import Case, digest
from faults.campaign.judge import Judgement, executed, judge
from faults.campaign.tell import drawn
from faults.replay.replayed import Replayed


def replay(body: Mapping[str, Any], algorithm: str | None) -> Replayed:
    """Raises TokenError, and ArgumentError for an algorithm that is missing, or given where there is none."""
    found = body.get("found")
    if body.keys() != {"case", "found"} or not isinstance(found, dict):
        raise TokenError("a token of this kind holds a case and what was found, this one does not: update cxlemu")
    case, before = Case.parse(body["case"]), Judgement.of(found)
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


def picture(case: Case) -> str | None:
    """An SVG of a wrong read or of a deadlock; None where there is neither, or ranks are not in lockstep."""
    if case.launch != "lockstep":
        return None
    return drawn(executed(case))
