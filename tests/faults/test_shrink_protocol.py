"""What `Communicator.shrink` decides by (cxlemu/pool/ballots.py), searched as it runs, and without each guard."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cxlemu.pool import ballots
from cxlemu.pool.ballots import BallotAction, BallotStep
from cxlemu.pool.board import Proposal, Stage, Vote
from tests.helpers.commands import cxlemu

FILE = Path(__file__).parents[2] / "examples" / "protocols" / "shrink.py"


def explored(name: str, ranks: int) -> tuple[int, str]:
    done = cxlemu("explore", f"{FILE}:{name}", "-n", ranks, "--budget", "600s")
    return done.exit_code, done.output.splitlines()[0]


SEARCHED = [("all_lead", 2), ("fixed", 3)]
SEARCHED_LONG = [
    ("all_lead_twice", 2),
    ("all_lead", 3), ("fixed", 4), ("hosts_crash", 3), ("ranks_begin_again", 3), ("leader_crashes", 4),
    ("leader_begins_again", 4),
]  # fmt: skip


@pytest.mark.deep(rows=lambda name, ranks: (name, ranks) in SEARCHED_LONG)
@pytest.mark.parametrize(("name", "ranks"), SEARCHED + SEARCHED_LONG)
def test_one_group_goes_on_in_every_execution(name: str, ranks: int) -> None:
    assert explored(name, ranks) == (0, f"{name}, {ranks} ranks: ok, in every execution")


# --- each guard is needed -------------------------------------------------------------------------------------------

publish = ballots._publish


def no_fence(vote: Vote) -> ballots.BallotSteps:
    yield BallotStep(BallotAction.VOTE, vote=vote)


def decided_early(vote: Vote) -> ballots.BallotSteps:
    """As if a rank did not look again once it has accepted."""
    yield from publish(vote._replace(stage=Stage.DECIDED) if vote.accepted else vote)


def not_accepted(vote: Vote) -> ballots.BallotSteps:
    if not vote.accepted or vote.stage == Stage.DECIDED:
        yield from publish(vote)


def looks(change: Callable[[Vote, Vote], Vote]) -> Callable[[int], ballots.BallotSteps]:
    def look(ranks: int) -> ballots.BallotSteps:
        seen = Vote()
        for rank in range(ranks):
            seen = change(seen, (yield BallotStep(BallotAction.LOOK, rank)))
        return seen

    return look


def blind_to_values(seen: Vote, its: Vote) -> Vote:
    decided = its if its.stage == Stage.DECIDED else seen
    return Vote(max(seen.stage, its.stage), max(seen.promised, its.promised), decided.accepted, decided.value)


def blind_to_ballots(seen: Vote, its: Vote) -> Vote:
    last = its if its.accepted > seen.accepted else seen
    return Vote(max(seen.stage, its.stage), 0, last.accepted, last.value)


BROKEN: dict[str, tuple[str, Any]] = {
    "no fence": ("_publish", no_fence),
    "decided before the second looks": ("_publish", decided_early),
    "accepted by nobody": ("_publish", not_accepted),
    "blind to values": ("_look", looks(blind_to_values)),
    "blind to ballots": ("_look", looks(blind_to_ballots)),
}


@pytest.mark.parametrize("what", BROKEN)
def test_without_any_of_its_guards_two_groups_go_on(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ballots, *BROKEN[what])
    code, said = explored("all_lead", 2)
    assert code == 1 and said.endswith("in the end: ranks went on with those that [1, 2] named"), said


# --- a ballot, step by step -----------------------------------------------------------------------------------------


def test_a_ballot_is_above_all_that_were_seen_and_no_other_ranks() -> None:
    promised = set()
    for rank in range(3):
        for highest in range(10):
            steps, result, step = ballots.agree(rank, 3), None, BallotStep(BallotAction.FENCE)
            while not (step.do == BallotAction.VOTE and step.vote.promised):
                step = steps.send(result)
                result = {BallotAction.LOOK: Vote(promised=highest * (step.rank != rank)), BallotAction.LEAD: True}.get(
                    step.do
                )  # type: ignore[assignment]
            assert step.vote.promised > highest and step.vote.promised % 3 == rank
            promised.add(step.vote.promised)
    assert len(promised) > 9


def test_a_rank_that_sees_a_higher_ballot_proposes_nothing() -> None:
    """It would claim room in vain."""
    steps, result, done = ballots.agree(0, 2), None, []
    for _ in range(40):
        step = steps.send(result)
        done.append(step.do)
        higher = 0 if BallotAction.LEAD not in done else 100
        result = {BallotAction.LOOK: Vote(promised=higher), BallotAction.LEAD: done.count(BallotAction.LEAD) == 1}.get(
            step.do
        )  # type: ignore[assignment]
    assert BallotAction.LEAD in done and BallotAction.PROPOSE not in done


def test_a_rank_that_begins_again_keeps_what_it_said() -> None:
    said = Vote(Stage.DECIDED, 5, 5, Proposal(0, 1, 2, 3))
    steps = ballots.agree(0, 1)
    assert next(steps) == BallotStep(BallotAction.LOOK, 0)
    assert steps.send(said) == BallotStep(BallotAction.VOTE, vote=said)
