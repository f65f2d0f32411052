"""Which ranks are lost, and how the sentence about them goes on: apart from any call's deadline."""

from __future__ import annotations

from collections.abc import Iterable

from cxlemu.pool.session_area import RankState
from cxlemu.world import RankContext

LEFT = "left"  # of a rank whose program has ended


def lost_among(context: RankContext, ranks: Iterable[int]) -> dict[int, str]:
    """Return, for each of the ranks that will not answer any more, the end of a sentence such as "left"."""
    asked, session = list(ranks), context.session
    ended, departed = session.ended(asked), session.departed(asked)
    losses = {}
    for rank in departed:
        status = session.peek(rank)
        left = status is not None and status.state != RankState.RUNNING
        losses[rank] = LEFT if left else f"died: its process {ended.get(rank, '')} has ended"
    for rank in session.stopped_beating(asked, context.lost_after_s):
        losses.setdefault(rank, f"gave no sign of life for {context.lost_after_s:g} s")
    if (after_s := context.stopped_after_s) is not None:
        for rank in session.stopped_beating(asked, after_s, watched=True):
            losses.setdefault(rank, f"gave no sign of life for {after_s:g} s: its process is stopped")
    return losses
