"""One decision of several ranks, which none can take back, whoever dies, stalls or is thought dead: as in Disk Paxos.

Memory that all share is the one disk of E. Gafni and L. Lamport, Disk Paxos (2003). A rank that leads

1. takes a ballot higher than all it saw, and promises to take part in no lower one;
2. looks at all votes; if none promises a higher ballot, it accepts the value of the highest ballot in which any rank
   accepted one, or else its own;
3. looks at all votes again; if none promises a higher ballot, the value is decided, for good.

Of two ranks that lead, one sees the other's ballot in its looks and begins again, so any number of ranks may lead at
any time. Who leads when decides only how soon there is a decision, never which. A rank that ran the steps before, and
failed in between, finds its promises in its own line.
"""

from collections.abc import Generator
from enum import Enum, auto
from typing import Any, NamedTuple, TypeAlias

from cxlemu.pool.board import Stage, Vote


class BallotAction(Enum):
    """What a rank does in a step of an agreement."""

    VOTE = auto()  # signals its vote, in place of its last one
    FENCE = auto()  # waits until its vote is in the pool
    LOOK = auto()  # invalidates and loads a rank's vote, which is the step's result
    LEAD = auto()  # asks whether this rank is to lead a ballot now
    PROPOSE = auto()  # asks for this rank's own value, which is in the pool by then and never changes


class BallotStep(NamedTuple):
    """One step of an agreement: ``vote`` for VOTE, ``rank`` for LOOK."""

    do: BallotAction
    rank: int = 0
    vote: Vote = Vote()


BallotSteps: TypeAlias = Generator[BallotStep, Any, Any]


def agree(rank: int, ranks: int) -> BallotSteps:
    """Take part in one decision until it is known."""
    mine = yield BallotStep(BallotAction.LOOK, rank)
    mine = mine._replace(stage=max(mine.stage, Stage.JOINED))
    yield from _publish(mine)
    while True:
        seen = yield from _look(ranks)
        if seen.stage == Stage.DECIDED:
            return seen.value
        if not (yield BallotStep(BallotAction.LEAD)):
            continue
        ballot = (seen.promised // ranks + 1) * ranks + rank  # no other rank's, and above all that were seen
        mine = mine._replace(promised=ballot)
        yield from _publish(mine)
        seen = yield from _look(ranks)
        if seen.promised > ballot:
            continue
        value = seen.value if seen.accepted else (yield BallotStep(BallotAction.PROPOSE))
        mine = mine._replace(accepted=ballot, value=value)
        yield from _publish(mine)
        seen = yield from _look(ranks)
        if seen.promised > ballot:
            continue
        yield from _publish(mine._replace(stage=Stage.DECIDED))
        return value


def _publish(vote: Vote) -> BallotSteps:
    yield BallotStep(BallotAction.VOTE, vote=vote)
    yield BallotStep(BallotAction.FENCE)


def _look(ranks: int) -> BallotSteps:
    """Look at all votes: the furthest stage, the highest promise, and the value that was accepted last."""
    seen = Vote()
    for rank in range(ranks):
        ballot = yield BallotStep(BallotAction.LOOK, rank)
        if ballot.accepted > seen.accepted:
            seen = seen._replace(accepted=ballot.accepted, value=ballot.value)
        seen = seen._replace(stage=max(seen.stage, ballot.stage), promised=max(seen.promised, ballot.promised))
    return seen
