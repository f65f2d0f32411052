"""Agreements of `Communicator.shrink`, many in one thread: in any order, with any verdicts, stopped at every step.

``python -m tests.helpers.shrinking [COUNT] [FIRST]`` runs COUNT of them, 10,000 by default, from the seed FIRST on.
"""

import random
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from collectives.communicator.membership.shrink import Agreement, Roster, head_bytes
from cxlemu.clock import Clock
from cxlemu.errors import DeadlineError, ExcludedError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.arena import Arena
from cxlemu.pool.board import Board, Stage, Vote
from cxlemu.pool.ledger import FIRST_HOLD, Identity, Ledger
from cxlemu.pool.rooms import Rooms
from cxlemu.pool.session import Session
from cxlemu.pool.session_area import SessionArea

SESSION_OFFSET, BOARD_OFFSET, LEDGER_OFFSET, ARENA = 4096, 8192, 12288, Arena(65536, 1 << 18)
SESSION = FIRST_BOARD = 7
STEPS_MAX = 20_000  # of all ranks; far more than their agreements take
AGREEMENTS = 2  # one after the other, each on the board that the one before it made
FAILURES, PAUSES, DOUBTS = (0.0, 0.002, 0.01), (0.0, 0.02, 0.1), (0.0, 0.1, 0.5, 0.9)


def rooms_of(memory: HostMemory, session: int, rank: int, ranks: int) -> Rooms:
    return Rooms(Ledger(memory, LEDGER_OFFSET, 32, session, rank), ranks, session, Identity(FIRST_HOLD, 1 + rank, 0))


class Scheduled(Clock):
    """Time that goes on when the schedule says so."""

    shortest_sleep_s = 0.0
    time = 0.0

    def now(self) -> float:
        return self.time


class Survivor:
    """One rank, from agreement to agreement: the rosters that it ``made``, and why it ``ended``."""

    def __init__(self, card: Any, rank: int, ranks: int, spec: MemorySpec, rng: random.Random, clock: Clock) -> None:
        self.cache, self.rng, self.doubts = HostCache.private([card], host=rank), rng, rng.choice(DOUBTS)
        memory = spec.open([card], host_cache=self.cache, host=rank, rank=rank)
        area = SessionArea(memory, SESSION_OFFSET)
        said = {"rank": rank, "ranks": ranks, "host": rank, "fingerprint": bytes(16)}
        self.session = Session(area, **said, wait=lambda _: None, clock=clock)  # type: ignore[arg-type]
        self.session.id = SESSION
        self.session.beat()
        self.rooms = rooms_of(memory, SESSION, rank, ranks)
        self.made: dict[int, Roster] = {}
        self.ended, self.pause = "", 0
        self._suspects: dict[int, bool] = {}
        self.joins(BOARD_OFFSET, FIRST_BOARD, tuple(range(ranks)))
        memory.fence()

    def joins(self, board_at: int, name: int, members: Sequence[int]) -> None:
        rank, self.name = members.index(self.session.rank), name
        self.board = self.session.board(board_at, len(members), name)
        self.board.vote(rank, Vote(Stage.READY))
        self.agreement = Agreement(
            self.session, self.board, rank, tuple(members), self.rooms, ARENA, lambda ranks, largest: 8192, 1.0
        )
        self.agreement._silent = self._doubts  # type: ignore[method-assign]
        self._steps = self.agreement.steps(frozenset())

    def _doubts(self, rank: int, lost: frozenset[int]) -> bool:
        """A verdict on another rank that is changed at random: wrong, late, and another one on each rank."""
        if rank not in self._suspects or self.rng.random() < 0.1:
            self._suspects[rank] = self.rng.random() < self.doubts
        return self._suspects[rank]

    def step(self) -> None:
        """Do one step of the agreement, and go on to the next agreement where that was the last."""
        try:
            next(self._steps)
        except StopIteration as end:
            roster = self.made[self.name] = end.value
            members = self.agreement.members
            assert self.agreement.rank in roster.ranks
            if len(self.made) == AGREEMENTS:
                self.ended = "went on"
            else:
                head = roster.room.at + head_bytes(len(members))
                self.joins(head, roster.room.name, [members[rank] for rank in roster.ranks])
        except ExcludedError:
            self.ended = "excluded"
        except DeadlineError:
            self.ended = "deadline"

    def crash(self) -> None:
        """With its host: what it has written may arrive or not."""
        self.cache.crash(np.random.default_rng(self.rng.getrandbits(32)))
        self.ended = "crashed"

    def restart(self) -> None:
        """An error in the middle; then it calls shrink once more."""
        self._steps.close()
        self._steps = self.agreement.steps(frozenset())


def schedule(seed: int, tally: Counter[str]) -> None:
    """Let 2 to 5 ranks agree, in an order and with verdicts and failures that ``seed`` decides; ``tally`` counts."""
    rng, clock, card = random.Random(seed), Scheduled(), np.zeros(ARENA.end, np.uint8)
    random.seed(seed)  # who of several leads first
    ranks, spec = rng.randint(2, 5), MemorySpec(seed=seed if rng.random() < 0.5 else None)
    survivors = [Survivor(card, rank, ranks, spec, rng, clock) for rank in range(ranks)]
    failing, pausing = rng.choice(FAILURES), rng.choice(PAUSES)
    for _ in range(STEPS_MAX):
        if not (running := [each for each in survivors if not each.ended]):
            break
        clock.time += rng.choice((0.0, 0.001, 0.01, 0.1))
        for each in running:
            each.pause -= each.pause > 0
        if not (awake := [each for each in running if not each.pause]):
            continue
        each, luck = rng.choice(awake), rng.random()
        if luck < failing:
            rng.choice((each.crash, each.restart))()
            tally["failed"] += 1
        elif luck < failing + pausing:
            each.pause = rng.choice((3, 30, 300))
            tally["paused"] += 1
        else:
            each.step()
    assert all(each.ended for each in survivors), f"seed {seed}: {[each.ended for each in survivors]}"
    _judge(seed, survivors, tally)


def _judge(seed: int, survivors: list[Survivor], tally: Counter[str]) -> None:
    decided: dict[int, Roster] = {}
    for each in survivors:
        tally[each.ended] += 1
        for name, roster in each.made.items():
            assert decided.setdefault(name, roster) == roster, f"seed {seed}: {roster} and {decided[name]}"
    for each in survivors:
        if each.ended == "excluded" and each.name in decided:  # its room may be given back only where it is not
            assert each.agreement.rank not in decided[each.name].ranks, f"seed {seed}: {decided} and {each.agreement}"
    tally["decided"] += len(decided)
    votes = [vote for rank in range(survivors[0].session.ranks) if (vote := _votes(survivors[0]).vote_of(rank))]
    tally["several led"] += sum(vote.promised > 0 for vote in votes) > 1
    decisions = [(rank, vote) for rank, vote in enumerate(votes) if vote.stage == Stage.DECIDED]
    tally["carried through by another"] += any(vote.value and vote.value.leader != rank for rank, vote in decisions)


def _votes(survivor: Survivor) -> Board:
    return survivor.session.board(BOARD_OFFSET, survivor.session.ranks, FIRST_BOARD)


def schedules(first: int, count: int) -> Counter[str]:
    """Run ``count`` schedules, and count what happened in them."""
    tally: Counter[str] = Counter()
    for seed in range(first, first + count):
        schedule(seed, tally)
    return tally


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:3]]
    count, first = [*given, *(10_000, 0)[len(given) :]]
    for seed in range(first, first + count, 1000):
        print(f"from seed {seed}:", dict(schedules(seed, min(1000, first + count - seed))), flush=True)
