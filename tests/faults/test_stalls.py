"""Ranks that stall: whatever a rank says about its peers then is true, and what is over in time is no error.

Ranks take turns in time of their own. One of them stalls before a step of its session or of its board, each in turn,
for as long as everything or for much longer than any deadline. Nobody dies, and no rank is there twice.
"""

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from collectives import Communicator
from collectives.communicator.calls import revocation
from cxlemu.engines.reference import ReferenceEngine
from cxlemu.errors import ExcludedError, PeerLostError, RunError
from cxlemu.memory import MemorySpec
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import LINE_BYTES, DoorbellLine, HostMemory
from cxlemu.pool.board import Cause, Notice
from cxlemu.pool.session import Session
from cxlemu.pool.session_area import Admission, Answer, Checkin, RankState, Record, SessionArea, Status, line_index
from cxlemu.topology import Topology
from cxlemu.world import RankContext
from cxlemu.world.world import World
from faults.inject.scheduler import CooperativeScheduler, private_pool, run_in_turns
from tests.helpers.tables import with_rows

RANKS, DEADLINE_S, AT = 3, 2.0, 4096
STALLS_S = (0.1, 0.6, 1.5, 3.0, 10.0)
NEVER = 1 << 30


@dataclass
class Stalling:
    """A rank's memory in which it stalls before one step. Notes when lines were pushed."""

    memory: HostMemory
    clock: Any
    step: int = NEVER
    seconds: float = 0.0
    taken: int = 0
    pushed: dict[int, float] = field(default_factory=dict)  # by offset: when first

    def _stall(self) -> None:
        self.taken += 1
        if self.taken == self.step:
            self.clock.sleep(self.seconds)

    def signal(self, card: int, offset: int, word: int, payload: bytes = b"") -> None:
        self._stall()
        self.memory.signal(card, offset, word, payload)
        self.pushed.setdefault(offset, self.clock.now())

    def poll(self, card: int, offset: int) -> DoorbellLine:
        self._stall()
        return self.memory.poll(card, offset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)


class LookClock:
    """Time that goes on with every look at it."""

    shortest_sleep_s = 0.0

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        self._now += 0.01
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds


# --- bootstrap -------------------------------------------------------------------------------------------------------


@dataclass
class Met:
    """What became of a session's ranks."""

    sessions: dict[int, Session] = field(default_factory=dict)
    errors: dict[int, RunError] = field(default_factory=dict)
    raised_at: dict[int, float] = field(default_factory=dict)
    memories: list[Stalling] = field(default_factory=list)


def meet(stalls: int, step: int, seconds: float, late: dict[int, float]) -> Met:
    """A session and two barriers in which rank ``stalls`` stalls, and others come late."""
    met, card = Met(), np.zeros(AT + 4096, np.uint8)
    scheduler = CooperativeScheduler(RANKS, 1000.0)

    def live(rank: int) -> None:
        scheduler.begin(rank)
        try:
            scheduler.sleep(late.get(rank, 0.0))
            session = Session.open(
                met.memories[rank],
                rank=rank,
                ranks=RANKS,
                session_offset=AT,
                max_ranks=RANKS,
                fingerprint=b"same",
                deadline_s=DEADLINE_S,
                wait=lambda attempt: scheduler.sleep(0),
                clock=scheduler,
            )
            met.sessions[rank] = session
            try:
                for _ in range(2):
                    session.barrier(DEADLINE_S)
            except RunError:
                session.leave(failed=True)
                raise
            session.leave()
        except RunError as error:
            met.errors[rank], met.raised_at[rank] = error, scheduler.now()
        finally:
            scheduler.end()

    for rank in range(RANKS):
        its = (step, seconds) if rank == stalls else (NEVER, 0.0)
        met.memories.append(Stalling(DirectMemory([card]), scheduler, *its))
    threads = [threading.Thread(target=live, args=[rank], daemon=True) for rank in range(RANKS)]
    for thread in threads:
        thread.start()
    scheduler.run()
    for thread in threads:
        thread.join()
    return met


def first_push(met: Met, writer: int, kind: Any, rank: int) -> float:
    return met.memories[writer].pushed.get(AT + line_index(kind, rank) * LINE_BYTES, float("inf"))


def check_said(met: Met, rank: int) -> None:
    """Every sentence that a rank may say, against what happened; any other one fails."""
    error, now = met.errors[rank], met.raised_at[rank]
    assert isinstance(error, PeerLostError), repr(error)
    said = str(error)
    if "not there" in said:
        limit = now - DEADLINE_S if "not there after" in said else now
        for absent in error.ranks:
            assert first_push(met, absent, Checkin, absent) > min(limit, now), said
    elif "rank 0 published no session within" in said:
        assert met.memories[0].pushed.get(AT, NEVER) > now - 1e-9, said
    elif match := re.fullmatch(r"rank 0 gave no answer within 2 s, and no sign of life for ([0-9.e-]+) s", said):
        assert first_push(met, 0, Answer, rank) > now - 1e-9, said
    elif "gone before barrier" in said:
        assert all(gone in met.errors for gone in error.ranks), said
    else:
        assert re.search(r"rank 0 did not complete barrier|not in barrier \d after", said), said
        assert match is None


@pytest.mark.each_value_once
@pytest.mark.parametrize("stalls", range(RANKS))
@pytest.mark.parametrize(
    "seconds", [pytest.param(s, marks=() if s in (0.6, 3.0) else pytest.mark.deep) for s in STALLS_S]
)
def test_bootstrap_blames_nobody_who_was_only_slow(stalls: int, seconds: float) -> None:
    steps = meet(stalls, NEVER, 0.0, {}).memories[stalls].taken
    assert steps > 8
    said = set()
    for step in range(1, steps + 1):
        met = meet(stalls, step, seconds, {})
        for rank in met.errors:
            check_said(met, rank)
            said.add(str(met.errors[rank]))
        if seconds < DEADLINE_S - 0.5:  # each wait is over in time
            assert not met.errors and len(met.sessions) == RANKS, (step, met.errors)
    assert bool(said) == (seconds > DEADLINE_S)


@pytest.mark.parametrize("late", [{0: 1.7}, {0: 1.9}, {2: 1.7}, {2: 1.9}, {1: 1.9, 2: 1.7}], ids=str)
def test_bootstrap_at_the_end_of_a_deadline(late: dict[int, float]) -> None:
    """A rank whose time is nearly over, and rank 0 stalls 0.6 s before it answers: nobody took anybody's place."""
    for stalls in range(RANKS):
        for step in range(1, 14):
            met = meet(stalls, step, 0.6, late)
            for rank in met.errors:
                check_said(met, rank)


@with_rows((77, "rank 0 gave no answer"), (78, "rank 0 answered another process than pid"))
def test_the_place_of_a_rank_is_taken_where_rank_0_says_so(nonce: int, words: str) -> None:
    """The one sentence that names another process: rank 0 answered another nonce, and that is no residue."""
    area = SessionArea(DirectMemory([np.zeros(AT + 4096, np.uint8)]), AT)
    area.store(Record(5, 2, 1, 0, b"same".ljust(16, b"\0")), 0)
    area.store(Answer(5, 77, 0, Admission.ACCEPTED, 0), 1)  # of a run that crashed, to a rank of that run

    def wait(attempt: int) -> None:
        area.store(Status(5, attempt, 0, 0, 0, RankState.RUNNING, b""), 0)
        area.store(Answer(5, nonce, 0, Admission.ACCEPTED, 0), 1)

    with pytest.raises(RunError, match=words):
        Session.open(
            area.memory, rank=1, ranks=2, session_offset=AT, max_ranks=2, fingerprint=b"same",
            deadline_s=1.0, wait=wait, clock=LookClock(),
        )  # fmt: skip


# --- revocation and shrink -------------------------------------------------------------------------------------------

SMALL = Topology.load("laptop")


def in_turns(program: Callable[[RankContext, Stalling], Any], stalls: int, step: int, seconds: float) -> Any:
    """A world in turns, whose sessions and boards one rank stalls in from when ``program`` says."""
    world = World(RANKS, SMALL, MemorySpec(), DEADLINE_S, "threads")

    def main(context: RankContext) -> Any:
        its = (step, seconds) if context.rank == stalls else (NEVER, 0.0)
        memory = Stalling(context.session._area.memory, context.session.clock, *its)
        context.session._area.memory = memory  # type: ignore[assignment]
        return program(context, memory)

    return run_in_turns(main, world, private_pool(world), lambda message: None)


def survive(context: RankContext, memory: Stalling) -> tuple[list[str], list[int], float]:
    """Sum, be slow now and then, shrink after an error, and sum again."""
    step, memory.step = memory.step, NEVER
    comm = Communicator.world(context, engine=ReferenceEngine(context.memory, context.session.clock))
    memory.step, memory.taken = step, 0
    said: list[str] = []
    calls = 0
    while calls < 4:
        x = np.ones(4, np.float32)
        try:
            comm.all_reduce(x)
            calls += 1
        except RunError as error:
            said.append(f"{type(error).__name__} {getattr(error, 'ranks', ())}: {error}")
            comm, calls = comm.shrink(), 3
        context.session.clock.sleep(0.05)
        context.session.beat()
    return said, list(comm.members), float(x[0])


def check_revocation(outcome: Any, stalls: int) -> list[str]:
    """Nobody blames itself or a rank that did not stall; who was too slow is told so, and all sums are right."""
    texts: list[str] = []
    for rank, error in outcome.failures.items():
        assert isinstance(error, ExcludedError) and rank == stalls, (rank, error)
        texts.append(str(error))
    for rank, (said, members, total) in outcome.results.items():
        assert rank in members and total == len(members)
        for text in said:
            texts.append(text)
            if text.startswith("PeerLostError") and " left;" in text:
                assert len(members) < RANKS  # it was through, which this rank was not
            elif text.startswith("PeerLostError"):
                assert f"({stalls},)" in text, (rank, text)
                assert (rank == stalls) == (f"declared this rank, {stalls}, lost" in text), (rank, text)
            else:
                assert text.startswith("DeadlineError"), text
    return texts


@pytest.mark.parametrize("stalls", [0, *(pytest.param(rank, marks=pytest.mark.deep) for rank in (1, 2))])
@pytest.mark.parametrize(
    "seconds", [pytest.param(s, marks=() if s == 10.0 else pytest.mark.deep) for s in (*STALLS_S, 5.0)]
)
def test_revocation_and_shrink_blame_nobody_who_was_only_slow(stalls: int, seconds: float) -> None:
    calm = in_turns(survive, stalls, NEVER, 0.0)
    assert not calm.failures and all(its == ([], [0, 1, 2], 3.0) for its in calm.results.values()), calm.failures
    texts: set[str] = set()
    for step in (*range(1, 12), 15, 20, 30, 40):
        outcome = in_turns(survive, stalls, step, seconds)
        texts.update(check_revocation(outcome, stalls))
    if seconds < DEADLINE_S / 2:
        assert not texts
    if seconds > 2 * DEADLINE_S:
        assert texts


def test_a_rank_is_never_told_that_it_is_lost_itself() -> None:
    told = revocation.as_error(1, Notice(Cause.PEER_LOST, (0, 2)), "rank 2 waits", me=2)
    assert isinstance(told, PeerLostError) and (told.ranks, told.reported_by) == ((0, 2), 1)
    assert str(told) == "rank 1 declared this rank, 2, lost; rank 2 waits"
    other = revocation.as_error(1, Notice(Cause.PEER_LOST, (0, 2)), "rank 3 waits", me=3)
    assert isinstance(other, PeerLostError) and other.ranks == (0, 2)
