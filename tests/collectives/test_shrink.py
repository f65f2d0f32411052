"""Ranks that die, anywhere, and those that go on without them: who is told what, who agrees on what, what is right."""

import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.communicator.communicator import Communicator
from collectives.communicator.membership.shrink import Agreement, Roster, head_bytes
from cxlemu.errors import (
    CardLostError,
    DeadlineError,
    ExcludedError,
    FaultError,
    IntegrityError,
    LinkDownError,
    MismatchError,
    PeerLostError,
    PoisonError,
    RevokedError,
    RunError,
)
from cxlemu.memory import WORST_CASE, HostCache, MemorySpec
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool import board as board_module
from cxlemu.pool.ballots import BallotAction
from cxlemu.pool.board import Board, Cause, Notice, Proposal, Stage, Vote, board_bytes
from cxlemu.pool.ledger import Hold, HoldState
from cxlemu.pool.segments import pool_names
from cxlemu.pool.session import Session
from cxlemu.world import RankContext, launch, launch_survivors
from cxlemu.world.outcome import Outcome
from tests.helpers.card_files import real_cards
from tests.helpers.shrinking import ARENA, BOARD_OFFSET, SESSION_OFFSET, Scheduled, Survivor, rooms_of, schedules
from tests.helpers.tiers import PATIENT_S
from tests.helpers.worlds import Program

LAPTOP = "laptop"
NOTICE_S = 4.0  # until a dead rank is noticed; a living one may have to wait as long for a core


def together(
    program: Program, ranks: int, *, spec: MemorySpec = WORST_CASE, deadline_s: float = NOTICE_S, **where: Any
) -> Outcome[Any]:
    """What became of every rank, where those that died stop nobody."""
    where = {"topology": None if spec.kind == "dax" else LAPTOP} | where
    main = partial(_main, program=program, deadline_s=deadline_s)
    return launch_survivors(main, ranks=ranks, memory=spec, deadline_s=PATIENT_S, **where)


def _main(context: RankContext, program: Program, deadline_s: float) -> Any:
    return program(Communicator.world(context, deadline_s=deadline_s))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sums(comm: Communicator, calls: int) -> list[int]:
    """One result per call, by all variants that auto takes: x of rank r is r + 1."""
    found = []
    for call in range(calls):
        x = np.full(10 ** (call % 5), comm.members[comm.rank] + 1, np.int64)
        comm.all_reduce(x)
        assert np.all(x == x[0])
        found.append(int(x[0]))
    return found


# --- real processes, really killed ----------------------------------------------------------------------------------


def _lose_and_go_on(comm: Communicator, victims: dict[int, int]) -> tuple[tuple[int, ...], list[int], int]:
    """``victims``: world rank and in which call it dies."""
    me, lost = comm.members[comm.rank], 0
    for call in itertools.count():
        try:
            if victims.get(me) == call:
                die()
            sums(comm, 1)
            if call == 40:
                break
        except PeerLostError:
            lost += 1
            comm = comm.shrink()
    everyone = comm.all_gather(np.array([me]))
    y = comm.heap.full(3, me, np.float64)
    comm.all_reduce(y)
    half = comm.split(color=me % 2)
    return comm.members, [*everyone.ravel().tolist(), int(y[0]), *half.members], lost


def expected(survivors: Sequence[int], rank: int) -> list[int]:
    return [*survivors, sum(survivors), *(other for other in survivors if other % 2 == rank % 2)]


KILLED: dict[str, tuple[Any, int, dict[int, int]]] = {
    "one, then the session's root": ("dax", 4, {1: 10, 0: 25}),
    "all but one": ("shm", 3, {0: 5, 2: 5}),
    "one": ("emulated", 3, {1: 20}),
}


@pytest.mark.deep(rows=lambda what: what != "one")
@pytest.mark.parametrize("what", KILLED)
def test_survivors_of_killed_processes_go_on(what: str, tmp_path: Path) -> None:
    kind, ranks, victims = KILLED[what]
    spec = real_cards(tmp_path) if kind == "dax" else MemorySpec(kind)
    ended = together(partial(_lose_and_go_on, victims=victims), ranks, how="processes", spec=spec)
    assert {rank: str(error) for rank, error in ended.failures.items()} == dict.fromkeys(
        victims, "was killed by SIGKILL"
    )
    survivors = [rank for rank in range(ranks) if rank not in victims]
    assert sorted(ended.results) == survivors
    for rank, (members, told, _) in ended.results.items():
        assert list(members) == survivors
        assert told == expected(survivors, rank)
    assert not [name for name in pool_names() if name.startswith(f"{os.getpid()}-")]


def _stop_and_come_back(context: RankContext) -> Any:
    """Rank 1 is stopped in a call, and continued when the others have gone on without it."""
    comm = Communicator.world(context, deadline_s=NOTICE_S)
    sums(comm, 5)
    if context.rank == 1:
        context.emit(os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(PeerLostError) as caught:
            sums(comm, 2)  # it has all that the others sent in the first one
        with pytest.raises(ExcludedError, match="ranks 0, 2 went on without rank 1"):
            comm.shrink()
        return caught.value.ranks
    with pytest.raises(PeerLostError) as caught:
        sums(comm, 1)
    smaller = comm.shrink()
    context.emit("shrunk")
    right = [sums(smaller, 1) == [4] for _ in range(300)]  # while rank 1 comes back
    return caught.value.ranks, all(right), smaller.members


@pytest.mark.deep
def test_a_stopped_rank_that_comes_back_is_excluded_and_disturbs_nobody() -> None:
    pids: list[int] = []

    def on_message(message: object) -> None:
        if isinstance(message, int):
            pids.append(message)
        else:
            os.kill(pids[0], signal.SIGCONT)

    ended = launch_survivors(
        _stop_and_come_back, ranks=3, topology=LAPTOP, how="processes", deadline_s=PATIENT_S, on_message=on_message
    )
    assert ended.failures == {}
    assert ended.results == {0: ((1,), True, (0, 2)), 1: (1,), 2: ((1,), True, (0, 2))}


@pytest.mark.deep(rows=lambda dead: dead != {1, 3})
@pytest.mark.parametrize("dead", [{0}, {1, 3}, {0, 1, 2}], ids=str)
def test_survivors_of_silent_threads_go_on(dead: set[int]) -> None:
    over = threading.Event()

    def program(comm: Communicator) -> Any:
        if comm.rank in dead:
            comm._context.session.play_dead()
            over.wait(PATIENT_S)
            return None
        with pytest.raises(PeerLostError) as caught:
            sums(comm, 1)
        assert set(caught.value.ranks) <= dead
        smaller = comm.shrink()
        found = smaller.members, sums(smaller, 9)
        if smaller.rank == 0:
            over.set()
        return found

    survivors = tuple({0, 1, 2, 3} - dead)
    results = together(program, 4).results
    assert [results[rank] for rank in survivors] == [(survivors, [sum(survivors) + len(survivors)] * 9)] * len(
        survivors
    )


# --- agreeing, with a death at every step ---------------------------------------------------------------------------

SILENCE_S = 2.0  # of a dead rank; a living one may have to wait as long for a core


class Dead(Exception):
    pass


def sessions(ranks: int) -> list[Session]:
    card = np.zeros(ARENA.end, np.uint8)
    usual: dict[str, Any] = {"session_offset": SESSION_OFFSET, "max_ranks": 8, "fingerprint": b""}
    opened = [
        partial(
            Session.open,
            MemorySpec().open([card], host_cache=HostCache.private([card]), host=rank, rank=rank),
            rank=rank,
            ranks=ranks,
            deadline_s=PATIENT_S,
            **usual,
        )
        for rank in range(ranks)
    ]
    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(lambda call: call(), opened))


def agreements(ranks: int, deadline_s: float = SILENCE_S) -> list[Agreement]:
    made = []
    for session in sessions(ranks):
        board = Board(session.memory, BOARD_OFFSET, session.id, ranks)
        board.vote(session.rank, Vote(Stage.READY))
        its_rooms = rooms_of(session.memory, session.id, session.rank, ranks)
        members = tuple(range(ranks))
        made.append(
            Agreement(session, board, session.rank, members, its_rooms, ARENA, lambda ranks, largest: 8192, deadline_s)
        )
    return made


def reached(agreement: Agreement, dies_at: int = -1) -> Roster | Exception:
    """What a rank gets; the one that dies does so before a step, counted from 0."""
    try:
        steps = agreement.steps(frozenset())
        for number in itertools.count():
            next(steps)
            if number == dies_at:
                raise Dead
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    except (Dead, RunError) as error:
        return error
    raise AssertionError


def reach_all(all_of_them: Sequence[Agreement], victim: int = -1, dies_at: int = -1) -> list[Roster | Exception]:
    with ThreadPoolExecutor(len(all_of_them)) as threads:
        deaths = [dies_at if one.rank == victim else -1 for one in all_of_them]
        return list(threads.map(reached, all_of_them, deaths))


# A leader of three votes and looks in steps 0 to 6, asks in 7, promises in 8 and 9, proposes in 13, accepts in 14.
DEATHS = [(0, at) for at in (0, 1, 7, 8, 10, 13, 14, 15, 16, 19, 20)] + [(2, at) for at in (0, 1, 4)]


@pytest.mark.deep(rows=lambda victim, at: (victim, at) != (0, 8))
@pytest.mark.parametrize(("victim", "at"), DEATHS)
def test_survivors_agree_whenever_one_dies_in_between(victim: int, at: int) -> None:
    ranks = agreements(3)
    found = reach_all(ranks, victim, at)
    dead = found.pop(victim)
    assert isinstance(dead, Dead)
    [agreed, *others] = found
    assert isinstance(agreed, Roster) and others == [agreed], found
    survivors = [rank for rank in range(3) if rank != victim]
    assert [*agreed.ranks] in ([0, 1, 2], survivors)  # whose proposal was accepted before it died is on it


def test_who_comes_too_late_is_told_even_when_the_others_are_gone() -> None:
    ranks = agreements(3)
    found = reach_all(ranks[:2])
    assert [roster.ranks for roster in found if isinstance(roster, Roster)] == [(0, 1)] * 2
    for gone in ranks[:2]:
        gone.session.leave()
    late = reached(ranks[2])
    assert isinstance(late, ExcludedError)
    assert str(late).startswith("ranks 0, 1 went on without rank 2, which they declared dead")
    for gone, roster in zip(ranks, found, strict=False):
        assert isinstance(roster, Roster)
        gone.rooms.release(roster.room.name)
    ranks[0].board.memory.write(0, found[0].room.at, np.full(64, 255, np.uint8))  # type: ignore[union-attr]
    ranks[0].board.memory.invalidate(0, found[0].room.at, 64)  # type: ignore[union-attr]
    late = reached(ranks[2])
    assert isinstance(late, ExcludedError)
    assert str(late).startswith("the others went on without rank 2, which they declared dead")


def test_who_is_on_the_roster_of_room_that_was_given_back_is_excluded() -> None:
    """Also where another communicator has taken that room since."""
    leader, late = agreements(2)
    leader._silent = lambda rank, lost: False  # type: ignore[method-assign]
    steps = late.steps(frozenset())
    for _ in range(3):  # it joins, and is slow then
        next(steps)
    roster = reached(leader)
    assert isinstance(roster, Roster) and roster.ranks == (0, 1)
    leader.rooms.release(roster.room.name)
    again = leader.rooms.claim(9, ARENA, lambda largest: 8192)
    assert again.at == roster.room.at
    with pytest.raises(ExcludedError, match="rank 0 went on without rank 1"):
        late.reach(frozenset())
    assert late.rooms.held == []


def test_a_decision_is_found_again_and_never_taken_back() -> None:
    ranks = agreements(3)
    found = reach_all(ranks)
    assert [roster.ranks for roster in found if isinstance(roster, Roster)] == [(0, 1, 2)] * 3
    for one in ranks:
        one._silent = lambda rank, lost: True  # type: ignore[method-assign]
    assert reach_all(ranks) == found
    assert [len(one.rooms.held) for one in ranks] == [1, 1, 1]


def test_a_rank_whose_peers_neither_join_nor_die_goes_on_alone() -> None:
    ranks = agreements(2)
    over = threading.Event()

    def live(attempt: int = 0) -> None:
        while not over.wait(0.02):
            ranks[1].session.beat()

    with ThreadPoolExecutor(1) as threads:
        living = threads.submit(live)
        alone = reached(ranks[0])
        over.set()
        living.result()
    assert isinstance(alone, Roster) and alone.ranks == (0,)
    assert isinstance(reached(ranks[1]), ExcludedError)


def test_a_proposal_that_lost_gives_its_room_back() -> None:
    """Rank 1 takes rank 0 for dead, and is overtaken between its proposal and its vote for it."""
    slow, fast = agreements(2)
    slow._silent = fast._silent = lambda rank, lost: True  # type: ignore[method-assign]
    steps = slow.steps(frozenset())
    while next(steps).do != BallotAction.PROPOSE:
        pass
    next(steps)
    steps.close()  # an error; it proposes the same again
    steps = slow.steps(frozenset())
    while next(steps).do != BallotAction.PROPOSE:
        pass
    next(steps)
    assert len(slow.rooms.held) == 1
    won = reached(fast)
    assert isinstance(won, Roster) and won.ranks == (1,)
    with pytest.raises(ExcludedError, match="rank 1 went on without rank 0"):
        while True:
            next(steps)
    assert slow.rooms.held == []


def test_what_was_accepted_before_an_error_is_decided_after_it() -> None:
    """Its room stays held meanwhile."""
    first, other = agreements(2)
    first._silent = other._silent = lambda rank, lost: True  # type: ignore[method-assign]
    steps = first.steps(frozenset())
    for _ in range(13):
        next(steps)
    accepted = first.board.vote_of(0)
    assert accepted is not None and accepted.accepted
    steps.close()
    roster = reached(other)
    assert isinstance(roster, ExcludedError)  # it carried the first one's proposal through
    again = reached(first)
    assert isinstance(again, Roster) and again.ranks == (0,) and accepted.value is not None
    assert again.room.name == accepted.value.name


def test_a_vote_that_cannot_be_read_is_waited_for() -> None:
    """It may be being written, and say anything: a rank that never can read it does not go on without it."""
    (one, other) = agreements(2, deadline_s=0.3)
    lines = np.full(2 * 64, 0xA5, np.uint8)
    one.board.memory.write(0, BOARD_OFFSET + 4 * 64, lines)
    one.board.memory.invalidate(0, BOARD_OFFSET + 4 * 64, lines.nbytes)
    other._silent = one._silent = lambda rank, lost: True  # type: ignore[method-assign]
    assert isinstance(found := reached(one), DeadlineError), found
    assert one.rooms.held == []
    other.board.vote(1, Vote(Stage.READY))
    assert isinstance(reached(one), Roster)


def test_a_proposal_for_room_that_never_was_is_waited_for_as_well() -> None:
    (one, other) = agreements(2, deadline_s=0.3)
    one._silent = lambda rank, lost: True  # type: ignore[method-assign]
    for at in (0, ARENA.at - 64, ARENA.end):
        other.board.vote(1, Vote(Stage.DECIDED, 3, 3, Proposal(1, 5, at, 0)))
        assert isinstance(found := reached(one), DeadlineError), found


@pytest.mark.parametrize("wrong", ["elsewhere", "outside", "only said", "given back meanwhile"])
def test_who_finds_no_such_room_in_the_ledger_does_not_go_on(wrong: str) -> None:
    leader, other = agreements(2)
    leader._silent = lambda rank, lost: False  # type: ignore[method-assign]
    steps = other.steps(frozenset())
    for _ in range(3):
        next(steps)
    roster = reached(leader)
    assert isinstance(roster, Roster) and roster.ranks == (0, 1)
    page = 4096
    room = {
        "elsewhere": roster.room._replace(at=roster.room.at + page, end=roster.room.end + page),
        "outside": roster.room._replace(end=ARENA.end + page),
        "only said": roster.room._replace(state=HoldState.REFUSED),
    }.get(wrong, roster.room)
    other.rooms.find = lambda rank, name: room if rank == 0 else None  # type: ignore[method-assign]
    joined: list[Hold] = []
    other.rooms.join = lambda leader, its: joined.append(its)  # type: ignore[method-assign, func-returns-value]
    with pytest.raises(ExcludedError):
        other.reach(frozenset())
    assert joined == ([roster.room] if wrong == "given back meanwhile" else [])


# --- who leads ------------------------------------------------------------------------------------------------------


def survivors(ranks: int) -> tuple[Scheduled, list[Agreement]]:
    clock, card = Scheduled(), np.zeros(ARENA.end, np.uint8)
    made = [Survivor(card, rank, ranks, MemorySpec(), random.Random(0), clock).agreement for rank in range(ranks)]
    for each in made:
        del each._silent  # type: ignore[method-assign]
    return clock, made


def test_the_lowest_rank_that_is_alive_leads_when_all_the_others_have_joined() -> None:
    _, (first, second, _) = survivors(3)
    here, away = Vote(Stage.JOINED), Vote(Stage.READY)
    everyone = dict.fromkeys(range(3), here)
    assert first._is_to_lead(everyone, 0.0, frozenset()) and first._alive == (0, 1, 2)
    assert not second._is_to_lead(everyone, 0.0, frozenset())
    assert not first._is_to_lead(everyone | {2: away}, 0.9, frozenset())
    assert first._is_to_lead(everyone | {2: away}, 1.0, frozenset()) and first._alive == (0, 1)
    assert second._is_to_lead(everyone | {0: away}, 1.0, frozenset()) and second._alive == (1, 2)
    assert first._is_to_lead(dict.fromkeys(range(3), away), 1.0, frozenset()) and first._alive == (0,)


def test_of_several_ranks_that_led_each_waits_now_and_then() -> None:
    _, (first, _) = survivors(2)
    both = {rank: Vote(Stage.JOINED, promised=rank + 2) for rank in range(2)}
    assert {first._is_to_lead(both, 0.0, frozenset()) for _ in range(200)} == {False, True}


def test_a_rank_that_left_is_silent_at_once_and_one_that_is_said_to_be_dead_after_half_a_deadline() -> None:
    clock, (first, second) = survivors(2)
    assert not first._silent(1, frozenset([1]))
    clock.time += 0.6
    assert first._silent(1, frozenset([1])) and not first._silent(1, frozenset())
    clock.time += 0.5
    assert first._silent(1, frozenset())
    second.session.beat()
    assert not first._silent(1, frozenset([1]))
    second.session.leave()
    assert first._silent(1, frozenset())


class Recorded:
    """Memory that notes what is called."""

    def __init__(self, memory: HostMemory) -> None:
        self.memory, self.calls = memory, list[str]()

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.memory, name)


def test_a_proposal_is_in_the_pool_before_any_vote_for_it() -> None:
    """It lies in room that a dropped communicator gives back, where there is no other."""
    _, (one, other) = survivors(2)
    recorded = Recorded(one.board.memory)
    one.board.memory = recorded  # type: ignore[assignment]
    one.rooms.claim(9, ARENA, lambda largest: largest)
    one.rooms.search = lambda: one.rooms.release(9)  # type: ignore[method-assign]
    one._alive = (1,)
    proposal = one._propose()
    assert recorded.calls[:2] == ["write", "flush"] and recorded.calls[-1] == "fence"
    assert other._named(proposal) == (1,)
    assert other.session.board(proposal.at + head_bytes(2), 1, proposal.name).vote_of(0) == Vote()


# --- all of it, in any order ----------------------------------------------------------------------------------------


def test_any_schedule_has_one_decision() -> None:
    counts = schedules(0, 60)
    for what in ("went on", "excluded", "crashed", "failed", "paused", "several led", "carried through by another"):
        assert counts[what], counts


@pytest.mark.deep
def test_many_schedules_have_one_decision_each() -> None:
    assert schedules(10_000, 3000)["several led"] > 500


# --- the board ------------------------------------------------------------------------------------------------------


def boards(session: int = 7, ranks: int = 2) -> Board:
    card = np.zeros(board_bytes(ranks), np.uint8)
    return Board(MemorySpec("shm").open([card], host_cache=None, host=0, rank=0), 0, session, ranks)


def test_a_board_shows_what_was_posted() -> None:
    board = boards(ranks=16)
    assert (board.notices(), board.vote_of(0), board.is_ready(0)) == ({}, None, False)
    board.post(1, Notice(Cause.PEER_LOST, tuple(range(10, 20))))
    assert board.notices() == {1: Notice(Cause.PEER_LOST, (10, 11, 12, 13, 14))}
    largest = Proposal(15, 2**64 - 1, (1 << 46) - 1, 2**32 - 1)
    for vote in (Vote(), Vote(Stage.READY), Vote(Stage.JOINED, 1 << 62), Vote(Stage.DECIDED, 1 << 62, 1, largest)):
        board.vote(2, vote)
        assert (board.vote_of(2), board.is_ready(2)) == (vote, vote.stage >= Stage.READY)


def test_lines_of_another_session_or_damaged_ones_are_none() -> None:
    board = boards()
    board.post(0, Notice(Cause.POISON, (1, 2)))
    first, second = Vote(Stage.READY), Vote(Stage.JOINED, 2)
    board.vote(0, first)
    board.vote(0, second)
    other = Board(board.memory, 0, 8, 2)
    assert (other.notices(), other.vote_of(0)) == ({}, None)
    lines = np.empty(192, np.uint8)
    board.memory.read(0, 0, lines)
    for bit in range(0, 1536, 3):
        damaged = lines.copy()
        damaged[bit // 8] ^= 1 << bit % 8
        board.memory.write(0, 0, damaged)
        assert len(board.notices()) == (bit >= 512)
        assert board.vote_of(0) == (first if 512 <= bit < 1024 else second)  # the one before, while one is written


def test_a_rank_votes_on_where_its_line_counts_more_votes_than_there_can_be() -> None:
    board = boards()
    board._store(2, board_module._VOTE_MAGIC, board_module._VOTE.pack(7, 2**32 - 1, 1, 0, 0, 0, 0, 0, 0))
    assert board.vote_of(0) is None
    board.vote(0, Vote(Stage.JOINED))
    assert board.vote_of(0) == Vote(Stage.JOINED)


@pytest.mark.parametrize("wrong", ["ballot", "accepted", "leader", "place", "stage", "decision"])
def test_a_vote_that_no_rank_can_have_written_is_none(wrong: str) -> None:
    board = boards()
    proposal = Proposal(2 if wrong == "leader" else 1, 5, 1 << 46 if wrong == "place" else 64, 0)
    promised, accepted = (1 << 62) + 1 if wrong == "ballot" else 3, {"accepted": 4, "decision": 0}.get(wrong, 3)
    stage: Any = {"stage": 4, "decision": Stage.DECIDED}.get(wrong, Stage.JOINED)
    board.vote(0, Vote(stage, promised, accepted, proposal))
    assert board.vote_of(0) is None


# --- what the others are told ---------------------------------------------------------------------------------------


class Failing:
    """Coherent memory in which reads of data fail once they are told to."""

    def __init__(self, memory: HostMemory) -> None:
        self.memory = memory
        self.error: Exception | None = None

    def read(self, card: int, offset: int, out: Any) -> None:
        if self.error is not None:
            raise self.error
        self.memory.read(card, offset, out)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)


REPORTED: list[RunError] = [
    PoisonError(0, 8192),
    CardLostError(1),
    LinkDownError(0),
    IntegrityError(2, 1),
    PeerLostError("rank 2 is lost", (2,)),
    DeadlineError("late"),
    MismatchError("different"),
    RevokedError("no more"),
]


@pytest.mark.parametrize("error", REPORTED, ids=lambda error: type(error).__name__)
def test_what_one_rank_sees_all_ranks_raise(error: RunError) -> None:
    """Deadlines are too long to tell: ranks hear of it from each other, in the same call or in a later one."""
    failed = threading.Event()

    def main(context: RankContext) -> RunError:
        failing = Failing(context.memory)
        context = replace(context, memory=failing)
        comm = Communicator.world(context, engine="reference", deadline_s=PATIENT_S)
        x = np.ones(1000)
        comm.all_gather(x)
        if comm.rank == 0:
            failing.error = error
        elif comm.rank == 1:
            failed.wait(PATIENT_S)
        with pytest.raises(RunError) as caught:
            try:
                comm.broadcast(x, root=2)  # in which no other rank fails
            finally:
                failed.set()
            comm.barrier()
        with pytest.raises(RevokedError, match="this communicator was revoked: "):
            comm.barrier()
        return caught.value

    own, *others = launch(main, ranks=3, topology=LAPTOP, memory=MemorySpec("shm"), deadline_s=PATIENT_S)
    assert own is error and own.reported_by is None
    for told in others:
        assert (type(told), told.reported_by) == (type(error), 0)
        if isinstance(told, FaultError):
            assert isinstance(error, FaultError) and told.where == error.where
        if isinstance(told, PeerLostError):
            assert told.ranks == (2,)


def test_a_rank_that_fails_otherwise_in_a_call_takes_the_others_along() -> None:
    def main(context: RankContext) -> str:
        failing = Failing(context.memory)
        comm = Communicator.world(replace(context, memory=failing), engine="reference", deadline_s=PATIENT_S)
        if comm.rank == 0:
            failing.error = ZeroDivisionError("a bug")
        with pytest.raises((ZeroDivisionError, RevokedError)) as caught:
            comm.all_gather(np.ones(1000))
            comm.barrier()
        return str(caught.value).partition(";")[0]

    told = launch(main, ranks=2, topology=LAPTOP, memory=MemorySpec("shm"), deadline_s=PATIENT_S)
    assert told == ["a bug", "rank 0 failed in a call of this communicator"]


def test_revoke_stops_those_who_wait_and_those_who_call_later() -> None:
    def program(comm: Communicator) -> Any:
        if comm.rank == 0:
            comm.revoke()
            comm.revoke()
        with pytest.raises(RevokedError) as caught:
            comm.barrier()
        smaller = comm.shrink()
        return str(caught.value).partition(";")[0], caught.value.reported_by, sums(smaller, 2)

    results = together(program, 3, deadline_s=PATIENT_S).results
    assert results[0] == ("this communicator was revoked: rank 0 revoked it", None, [6, 6])
    assert results[1] == results[2] == ("rank 0 revoked this communicator", 0, [6, 6])


@pytest.mark.deep(rows=lambda kind: kind == "shm")
@pytest.mark.parametrize("kind", ["emulated", "shm"])
def test_a_communicator_can_shrink_again_and_again_without_a_loss(kind: Any) -> None:
    meet = threading.Barrier(3)  # a shrink revokes, also a call that this rank has ended and others have not

    def program(comm: Communicator) -> list[tuple[int, list[int]]]:
        found = []
        for _ in range(4):
            meet.wait(PATIENT_S)
            old, comm = comm, comm.shrink()
            with pytest.raises(RevokedError):
                old.barrier()
            found.append((comm.size, sums(comm, 3)))
        return found

    assert together(
        program, 3, spec=MemorySpec(kind), topology="six-cards", deadline_s=PATIENT_S
    ).results == dict.fromkeys(range(3), [(3, [6, 6, 6])] * 4)


def test_a_communicator_that_shrank_shrinks_from_what_it_became() -> None:
    def program(comm: Communicator) -> Any:
        first = comm.shrink()
        if comm.rank == 2:
            return None  # leaves
        second = comm.shrink()
        with pytest.raises(RevokedError):
            first.barrier()
        return first.members, second.members, sums(second, 2), second._terms.head_bytes

    gone_on = ((0, 1, 2), (0, 1), [3, 3], 4096)
    assert together(program, 3, deadline_s=PATIENT_S).results == {0: gone_on, 1: gone_on, 2: None}


def test_those_who_are_said_to_be_lost_need_less_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """By this rank's own error, and by what others report."""
    asked: list[frozenset[int]] = []

    def reach(agreement: Agreement, lost: frozenset[int]) -> Roster:
        asked.append(lost)
        raise DeadlineError("none")

    monkeypatch.setattr(Agreement, "reach", reach)

    def program(comm: Communicator) -> None:
        if comm.rank == 0:
            comm._board.post(1, Notice(Cause.PEER_LOST, (2,)))
            comm._runner.give_up(PeerLostError("rank 1 is lost", (1,)))
            with pytest.raises(DeadlineError):
                comm.shrink()

    together(program, 3)
    assert asked == [{1, 2}]


def test_calls_under_way_end_and_their_errors_are_dropped() -> None:
    def program(comm: Communicator) -> list[int]:
        if comm.rank == 1:
            return [0]  # leaves
        with comm:
            comm.all_reduce(np.ones(9), async_op=True)
            comm.barrier(async_op=True)
            return sums(comm.shrink(), 1)

    assert together(program, 3).results == {0: [4], 1: [0], 2: [4]}


def test_a_split_communicator_shrinks_by_itself() -> None:
    def program(comm: Communicator) -> Any:
        half = comm.split(color=comm.rank % 2)
        assert half is not None
        if comm.rank == 2:
            half.revoke()  # of ranks 0, 2 and 4; the others know nothing of it
        if comm.rank % 2 == 0:
            half = half.shrink()
        return half.members, sums(half, 1), sums(comm, 1)

    even, odd = ((0, 2, 4), [9], [15]), ((1, 3), [6], [15])
    assert together(program, 5, topology="six-cards", deadline_s=PATIENT_S).results == {
        0: even,
        1: odd,
        2: even,
        3: odd,
        4: even,
    }


# --- launching ------------------------------------------------------------------------------------------------------


def _one_fails(context: RankContext) -> int:
    if context.rank == 1:
        raise ZeroDivisionError("one rank fails")
    if context.rank == 2:
        while True:  # never comes through
            context.check()
            time.sleep(0.01)
    return context.rank


def test_survivors_come_through_and_the_others_are_named() -> None:
    ended = launch_survivors(_one_fails, ranks=3, topology=LAPTOP, deadline_s=2.0)
    assert ended.results == {0: 0}
    assert {rank: type(error).__name__ for rank, error in ended.failures.items()} == {
        1: "ZeroDivisionError",
        2: "CancelledError",
    }
