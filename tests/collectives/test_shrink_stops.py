"""Ranks that are stopped in the middle of shrinking, and taken for dead: one group goes on, and all others are told."""

import threading
import time
from typing import Any

import pytest

from collectives.communicator.communicator import Communicator
from cxlemu.errors import PeerLostError, RevokedError, RunError
from cxlemu.pool.board import Board, Stage, Vote
from cxlemu.world import RankContext, launch_survivors
from tests.helpers.stopped_shrinks import go_on, stopped_shrinks, sum_of
from tests.helpers.tiers import PATIENT_S

DEADLINE_S = 10.0  # of ranks that are slow, and never in vain


@pytest.mark.deep
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_no_two_groups_go_on_when_processes_are_stopped_at_any_step(ranks: int) -> None:
    counts = stopped_shrinks(ranks, ranks, 8 if ranks == 3 else 100)
    assert counts["went on"] and counts["stopped"], counts


# --- one that did split ---------------------------------------------------------------------------------------------


def test_a_rank_that_is_slow_to_say_that_it_is_ready_goes_on_with_its_group_or_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 0 takes rank 1 for lost while rank 2 already knows that all are ready."""
    armed, gave_up, told, seen = (threading.Event() for _ in range(4))
    vote, ready = Board.vote, Communicator._await_members

    def slow_vote(board: Board, rank: int, its: Vote) -> None:
        if armed.is_set() and its.stage == Stage.READY and rank == 1 and not told.is_set():
            gave_up.wait(PATIENT_S)
            vote(board, rank, its)
            told.set()
        else:
            vote(board, rank, its)

    def await_members(comm: Communicator) -> None:
        if comm.rank == 0 and not gave_up.is_set():
            vote(comm._board, 0, Vote(Stage.READY))
            gave_up.set()
            assert told.wait(PATIENT_S) and seen.wait(PATIENT_S)
            raise PeerLostError("rank 1 gave no sign of life", (1,))
        ready(comm)
        if comm.rank == 2:
            seen.set()

    monkeypatch.setattr(Board, "vote", slow_vote)
    monkeypatch.setattr(Communicator, "_await_members", await_members)

    def main(context: RankContext) -> Any:
        comm = Communicator.world(context, deadline_s=DEADLINE_S)
        comm.barrier()
        armed.set()
        comm.barrier()
        comm = comm.shrink()
        heard: Any = None
        if comm.rank != 0:
            with pytest.raises(PeerLostError) as caught:
                comm.barrier()
            heard = caught.value.ranks, caught.value.reported_by
        return heard, go_on(comm, DEADLINE_S) if comm.rank else sum_of(comm)

    ended = launch_survivors(main, ranks=3, topology="six-cards", how="threads", deadline_s=PATIENT_S)
    assert ended.failures == {}
    together = ("went on", (0, 1, 2), 7)
    assert ended.results == {0: (None, together), 1: (((1,), 0), together), 2: (((1,), 0), together)}


@pytest.mark.parametrize("error", [PeerLostError("rank 2 is silent", (2,)), RevokedError("an error, and once more")])
def test_who_waits_for_the_others_hears_that_one_gave_up(error: RunError, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 waits for rank 2, and rank 1 does not any more."""
    ready, told, heard = Communicator._await_members, threading.Event(), list[RunError]()

    def await_members(comm: Communicator) -> None:
        if comm.rank == 1 and not told.is_set():
            told.set()
            raise error
        if comm.rank == 2:
            while not heard:
                time.sleep(0.01)
                comm._context.session.beat()
        try:
            ready(comm)
        except RunError as its:
            heard.append(its)
            raise

    monkeypatch.setattr(Communicator, "_await_members", await_members)

    def main(context: RankContext) -> Any:
        comm = Communicator.world(context, deadline_s=DEADLINE_S).shrink()
        try:
            return sum_of(comm)
        except (PeerLostError, RevokedError):  # rank 2, if it sees that all are ready first
            return go_on(comm, DEADLINE_S)

    ended = launch_survivors(main, ranks=3, topology="six-cards", how="threads", deadline_s=PATIENT_S)
    assert (ended.failures, set(ended.results.values())) == ({}, {("went on", (0, 1, 2), 7)})
    assert (type(heard[0]), heard[0].reported_by) == (type(error), 1)


def test_nobody_goes_on_before_all_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its doorbells are not cleared yet."""
    ready, prepared = Communicator._await_members, threading.Event()

    def await_members(comm: Communicator) -> None:
        if comm.rank == 1:
            time.sleep(0.2)
            prepared.set()
        ready(comm)

    monkeypatch.setattr(Communicator, "_await_members", await_members)

    def main(context: RankContext) -> Any:
        comm = Communicator.world(context, deadline_s=PATIENT_S).shrink()
        assert prepared.is_set()
        return sum_of(comm)

    ended = launch_survivors(main, ranks=2, topology="six-cards", how="threads", deadline_s=PATIENT_S)
    assert (ended.failures, set(ended.results.values())) == ({}, {("went on", (0, 1), 3)})
