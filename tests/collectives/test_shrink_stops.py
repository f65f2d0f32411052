"""Ranks that are stopped in the middle of shrinking, and taken for dead: one group goes on, and all others are told."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from collectives.communicator.communicator import Communicator
from collectives.communicator.membership.shrink import Agreement
from cxlemu.errors import DeadlineError, ExcludedError, PeerLostError, RevokedError, RunError
from cxlemu.pool.board import Board, Stage, Vote
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch_survivors
from tests.helpers.tiers import PATIENT_S

LAPTOP = Topology.load("laptop")
DEADLINES_S, STOPS_S = (0.05, 0.2), (0.02, 0.1, 0.3)
DEADLINE_S = 10.0  # of ranks that are slow, and never in vain
AGAIN_S = 0.05  # between two looks of the parent at whom to continue


def _stops_before(step: int, stop: Any) -> None:
    """Have this process stopped before a step of its next agreement."""
    steps = Agreement.steps

    def stopping(self: Agreement, lost: frozenset[int]) -> Any:
        Agreement.steps = steps  # type: ignore[method-assign]
        its = steps(self, lost)
        for number in range(sys.maxsize):
            try:
                at = next(its)
            except StopIteration as end:
                return end.value
            if number == step:
                stop()
            yield at

    Agreement.steps = stopping  # type: ignore[method-assign]


def _go_on(comm: Communicator, deadline_s: float) -> tuple[str, tuple[int, ...], int]:
    """Shrink until a call comes through: how that ended, with whom, and the sum of what all of them put in."""
    while True:
        comm.deadline_s = comm._agreement.deadline_s = deadline_s
        try:
            comm = comm.shrink()
            comm.deadline_s = PATIENT_S  # for who is stopped in the call, and comes back
            return _sum(comm)
        except ExcludedError:
            return "excluded", (), 0
        except (PeerLostError, RevokedError):
            continue
        except DeadlineError:
            return "deadline", (), 0


def _sum(comm: Communicator) -> tuple[str, tuple[int, ...], int]:
    x = np.array([1 << comm.members[comm.rank]])
    comm.all_reduce(x)
    return "went on", comm.members, int(x[0])


def shrink_under_stops(context: RankContext, seed: int, rounds: int) -> list[tuple[str, tuple[int, ...], int]]:
    world, found = Communicator.world(context, deadline_s=PATIENT_S), []
    for number in range(rounds):
        rng = random.Random(f"{seed}/{number}")
        deadline_s, stopped = rng.choice(DEADLINES_S), {rng.randrange(context.ranks): rng.randrange(30)}
        stopped[rng.randrange(context.ranks)] = rng.randrange(30)
        comm = world.dup()
        world.barrier()

        def stop(for_s: float = rng.choice(STOPS_S)) -> None:
            context.emit((os.getpid(), time.monotonic() + for_s))
            os.kill(os.getpid(), signal.SIGSTOP)

        if (step := stopped.get(context.rank)) is not None:
            _stops_before(step, stop)
        found.append(_go_on(comm, deadline_s))
        world.barrier()
    return found


def stopped_shrinks(seed: int, ranks: int, rounds: int) -> Counter[str]:
    """Let processes shrink communicators, each stopped at some step, and check that no two groups go on.

    Args:
        seed: Decides who is stopped, where and for how long.
        ranks: How many processes.
        rounds: How many communicators they shrink, one after the other.
    """
    due: dict[int, float] = {}
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(AGAIN_S):
            for pid, at in list(due.items()):
                if time.monotonic() >= at:  # again and again: it may have said so and not be stopped yet
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGCONT)

    def on_message(message: object) -> None:
        assert isinstance(message, tuple)
        due[message[0]] = message[1]
        tally["stopped"] += 1

    tally: Counter[str] = Counter()
    continues = threading.Thread(target=go_on)
    continues.start()
    try:
        main = partial(shrink_under_stops, seed=seed, rounds=rounds)
        ended = launch_survivors(
            main, ranks=ranks, topology=LAPTOP, how="processes", deadline_s=PATIENT_S, on_message=on_message
        )
    finally:
        over.set()
        continues.join()
    assert ended.failures == {}
    for number in range(rounds):
        each = {rank: said[number] for rank, said in ended.results.items()}
        groups = {members for how, members, _ in each.values() if how == "went on"}
        assert len(groups) <= 1, f"seed {seed}, round {number}: {each}"
        for rank, (how, members, total) in each.items():
            assert (rank in next(iter(groups), ())) == (how == "went on"), f"seed {seed}, round {number}: {each}"
            assert total == sum(1 << member for member in members)
            tally[how] += 1
        tally["shrinks"] += 1
    return tally


@pytest.mark.deep(rows=lambda ranks: ranks != 3)
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_no_two_groups_go_on_when_processes_are_stopped_at_any_step(ranks: int) -> None:
    counts = stopped_shrinks(ranks, ranks, 20 if ranks == 3 else 100)
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
        return heard, _go_on(comm, DEADLINE_S) if comm.rank else _sum(comm)

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
            return _sum(comm)
        except (PeerLostError, RevokedError):  # rank 2, if it sees that all are ready first
            return _go_on(comm, DEADLINE_S)

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
        return _sum(comm)

    ended = launch_survivors(main, ranks=2, topology="six-cards", how="threads", deadline_s=PATIENT_S)
    assert (ended.failures, set(ended.results.values())) == ({}, {("went on", (0, 1), 3)})
