"""Ranks that die, anywhere, and those that go on without them: who is told what, who agrees on what, what is right."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.communicator.communicator import Communicator
from collectives.communicator.shrink import Agreement, Roster
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
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.arena import Arena
from cxlemu.pool.board import Board, Cause, Notice, Stage, Vote, board_bytes
from cxlemu.pool.ledger import FIRST_HOLD, Identity, Ledger
from cxlemu.pool.rooms import Rooms
from cxlemu.pool.segments import pool_names
from cxlemu.pool.session import Session
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch, launch_survivors
from cxlemu.world.outcome import Outcome
from tests.helpers.card_files import MIB, blank_cards, pool_of
from tests.helpers.tiers import PATIENT_S

LAPTOP = Topology.load("laptop")
NOTICE_S = 4.0  # until a dead rank is noticed; a living one may have to wait as long for a core

Program = Callable[[Communicator], Any]


def together(
    program: Program,
    ranks: int,
    *,
    how: Any = "threads",
    spec: MemorySpec | None = None,
    topology: Any = LAPTOP,
    deadline_s: float = NOTICE_S,
) -> Outcome[Any]:
    """What became of every rank, where those that died stop nobody."""
    main = partial(_main, program=program, deadline_s=deadline_s)
    topology = topology if spec is None or spec.kind != "dax" else None
    return launch_survivors(
        main, ranks=ranks, topology=topology, memory=spec or MemorySpec(), how=how, deadline_s=PATIENT_S
    )


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
    assert half is not None
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
    spec = MemorySpec(kind)
    if kind == "dax":
        cards = blank_cards(tmp_path, 2, 8 * MIB)
        pool_of(cards)
        spec = MemorySpec("dax", devices=tuple(cards))
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

SESSION_OFFSET, BOARD_OFFSET, LEDGER_OFFSET, ARENA = 4096, 8192, 12288, Arena(65536, 1 << 20)
SILENCE_S = 2.0  # of a dead rank; a living one may have to wait as long for a core


class Dead(Exception):
    pass


class Mortal(Board):
    """A board whose rank dies before or after its first vote of a stage."""

    dies: tuple[str, Stage] | None = None

    def vote(self, rank: int, vote: Vote) -> None:
        if self.dies == ("before", vote.stage):
            raise Dead
        super().vote(rank, vote)
        if self.dies == ("after", vote.stage):
            raise Dead


def memories(ranks: int) -> list[HostMemory]:
    card = np.zeros(ARENA.end, np.uint8)
    return [MemorySpec().open([card], host_cache=HostCache.private([card]), host=h, rank=h) for h in range(ranks)]


def sessions(ranks: int) -> list[Session]:
    usual: dict[str, Any] = {
        "session_offset": SESSION_OFFSET,
        "max_ranks": 8,
        "fingerprint": b"",
        "deadline_s": PATIENT_S,
    }
    opened = [partial(Session.open, m, rank=r, ranks=ranks, **usual) for r, m in enumerate(memories(ranks))]
    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(lambda call: call(), opened))


def rooms_of(session: Session, ranks: int) -> Rooms:
    ledger = Ledger(session.memory, LEDGER_OFFSET, 32, session.id, session.rank)
    return Rooms(ledger, ranks, session.id, Identity(FIRST_HOLD, os.getpid(), 0))


def agreements(ranks: int, deadline_s: float = SILENCE_S) -> list[Agreement]:
    return [
        Agreement(
            session,
            Mortal(session.memory, BOARD_OFFSET, session.id, ranks),
            session.rank,
            tuple(range(ranks)),
            rooms_of(session, ranks),
            ARENA,
            room_bytes=lambda ranks, largest: largest // 8 // 4096 * 4096,
            deadline_s=deadline_s,
        )
        for session in sessions(ranks)
    ]


def reached(agreement: Agreement, seen: list[Roster], lost: frozenset[int] = frozenset()) -> Roster | Exception:
    def prepare(roster: Roster) -> Roster:
        seen.append(roster)
        return roster

    try:
        return agreement.reach(lost, prepare)
    except (Dead, RunError) as error:
        return error


def reach_all(all_of_them: Sequence[Agreement]) -> tuple[list[Roster | Exception], list[Roster]]:
    """What each got, and every roster that anybody prepared room for."""
    seen: list[Roster] = []
    with ThreadPoolExecutor(len(all_of_them)) as threads:
        return list(threads.map(partial(reached, seen=seen), all_of_them)), seen


DEATHS = [
    *((0, when, stage) for stage in Stage for when in ("before", "after")),
    *((2, when, stage) for stage in (Stage.JOINED, Stage.READY) for when in ("before", "after")),
]


@pytest.mark.each_value_once
@pytest.mark.parametrize(("victim", "when", "stage"), DEATHS)
def test_survivors_agree_whenever_one_dies_in_between(victim: int, when: str, stage: Stage) -> None:
    ranks = agreements(4)
    ranks[victim].board.dies = (when, stage)  # type: ignore[attr-defined]
    ranks[victim].rooms.release = lambda name: None  # type: ignore[method-assign]  # the dead give nothing back
    found, seen = reach_all(ranks)
    assert isinstance(found.pop(victim), Dead)
    assert (
        len({(roster.closed, roster.ranks, roster.room.at) for roster in found if isinstance(roster, Roster)}) == 1
    ), found
    assert all(isinstance(roster, Roster) for roster in found), found
    [agreed, *others] = [roster for roster in found if isinstance(roster, Roster)]
    assert others == [agreed] * 2
    survivors = [rank for rank in range(4) if rank != victim]
    # Who was ready before it died may have been counted: the new communicator finds that it is gone.
    assert list(agreed.ranks) in ([survivors, [0, 1, 2, 3]] if (when, stage) == ("after", Stage.READY) else [survivors])
    # A leader whose members died gives the room back before it claims again; nobody else may claim what it holds.
    for one, other in itertools.combinations({(roster.closed.leader, roster.room) for roster in seen}, 2):
        assert one[0] == other[0] or one[1].name == other[1].name or not one[1].overlaps(other[1])


def test_two_leaders_never_claim_the_same_room() -> None:
    """Ranks that take each other for dead: each closes alone, and nobody's room is the other's."""
    pair = agreements(2)
    looked = threading.Barrier(2)

    class Blind(Mortal):
        """Sees no votes until both ranks have decided to close."""

        sees = False

        def votes(self) -> dict[int, Vote]:
            return super().votes() if self.sees else {}

    def close(one: Agreement, ranks: tuple[int, ...]) -> Roster:
        looked.wait(PATIENT_S)
        one.board.sees = True  # type: ignore[attr-defined]
        return Agreement._close(one, ranks)

    for one in pair:
        one.board.__class__ = Blind
        one._silent = lambda rank, lost: True  # type: ignore[method-assign]
        one._close = partial(close, one)  # type: ignore[method-assign]
    found, _ = reach_all(pair)
    rooms = [roster.room for roster in found if isinstance(roster, Roster)]
    assert len(rooms) == 2 and not rooms[0].overlaps(rooms[1])


def test_who_comes_too_late_is_told_even_when_the_others_are_gone() -> None:
    ranks = agreements(3)
    found, _ = reach_all(ranks[:2])
    assert [roster.ranks for roster in found if isinstance(roster, Roster)] == [(0, 1)] * 2
    for gone in ranks[:2]:
        gone.session.leave()
    late = reached(ranks[2], [])
    assert isinstance(late, ExcludedError)
    assert str(late).startswith("ranks 0, 1 went on without rank 2, which they took for dead")


def test_the_same_ranks_can_agree_again_and_again() -> None:
    ranks = agreements(3)
    places = []
    for _ in range(3):
        found, _ = reach_all(ranks)
        assert [roster.ranks for roster in found if isinstance(roster, Roster)] == [(0, 1, 2)] * 3
        places += [roster.room.at for roster in found[:1] if isinstance(roster, Roster)]
    assert len(set(places)) == 3  # all three are still held


def test_an_agreement_of_before_is_none_now() -> None:
    leader, follower = agreements(2)
    reach_all([leader, follower])
    votes = follower.board.votes()
    assert votes[0].stage == Stage.READY and follower._closed_by(0, votes) is None


def test_a_rank_whose_peers_neither_join_nor_die_goes_on_alone() -> None:
    ranks = agreements(2)
    over = threading.Event()

    def live(attempt: int = 0) -> None:
        while not over.wait(0.02):
            ranks[1].session.beat()

    with ThreadPoolExecutor(1) as threads:
        living = threads.submit(live)
        alone = reached(ranks[0], [])
        over.set()
        living.result()
    assert isinstance(alone, Roster) and alone.ranks == (0,)


# --- the board ------------------------------------------------------------------------------------------------------


def boards(session: int = 7, ranks: int = 2) -> Board:
    card = np.zeros(board_bytes(ranks), np.uint8)
    return Board(MemorySpec("shm").open([card], host_cache=None, host=0, rank=0), 0, session, ranks)


def test_a_board_shows_what_was_posted() -> None:
    board = boards(ranks=16)
    assert (board.notices(), board.votes()) == ({}, {})
    board.post(1, Notice(Cause.PEER_LOST, tuple(range(10, 20))))
    board.vote(0, Vote(Stage.CLOSED, 3, 1, 1 << 40, 2**32 - 1))
    assert board.notices() == {1: Notice(Cause.PEER_LOST, (10, 11, 12, 13, 14))}
    assert board.votes() == {0: Vote(Stage.CLOSED, 3, 1, 1 << 40, 2**32 - 1)}


def test_lines_of_another_session_or_damaged_ones_are_none() -> None:
    board = boards()
    board.post(0, Notice(Cause.POISON, (1, 2)))
    board.vote(0, Vote(Stage.JOINED, 0, 0, 0))
    other = Board(board.memory, 0, 8, 2)
    assert (other.notices(), other.votes()) == ({}, {})
    lines = np.empty(128, np.uint8)
    board.memory.read(0, 0, lines)
    for bit in range(1024):
        damaged = lines.copy()
        damaged[bit // 8] ^= 1 << bit % 8
        board.memory.write(0, 0, damaged)
        assert (len(board.notices()), len(board.votes())) == ((0, 1) if bit < 512 else (1, 0))


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
        with pytest.raises(RevokedError, match="this communicator is revoked since: "):
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
    assert results[0] == ("this communicator is revoked since: rank 0 revoked it", None, [6, 6])
    assert results[1] == results[2] == ("rank 0 revoked this communicator", 0, [6, 6])


@pytest.mark.parametrize("kind", ["emulated", "shm"])
def test_a_communicator_can_shrink_again_and_again_without_a_loss(kind: Any) -> None:
    def program(comm: Communicator) -> list[tuple[int, list[int]]]:
        found = []
        for _ in range(4):
            old, comm = comm, comm.shrink()
            with pytest.raises(RevokedError):
                old.barrier()
            found.append((comm.size, sums(comm, 3)))
        return found

    assert together(
        program, 3, spec=MemorySpec(kind), topology="six-cards", deadline_s=PATIENT_S
    ).results == dict.fromkeys(range(3), [(3, [6, 6, 6])] * 4)


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
