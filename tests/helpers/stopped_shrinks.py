"""Processes that shrink communicators, each stopped in the middle of it and taken for dead: do two groups go on?

``python -m tests.helpers.stopped_shrinks [COUNT] [FIRST]`` shrinks COUNT times, 10,000 by default, in worlds of 2 to 5
ranks, from the seed FIRST on, and exits with 1 if any world failed.
"""

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

from collectives.communicator.communicator import Communicator
from collectives.communicator.membership.shrink import Agreement
from cxlemu.errors import DeadlineError, ExcludedError, PeerLostError, RevokedError
from cxlemu.world import RankContext, launch_survivors
from tests.helpers.tiers import PATIENT_S

LAPTOP = "laptop"
DEADLINES_S, STOPS_S = (0.05, 0.2), (0.02, 0.1, 0.3)
ROUNDS = 100  # of a world
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


def go_on(comm: Communicator, deadline_s: float) -> tuple[str, tuple[int, ...], int]:
    """Shrink until a call comes through: how that ended, with whom, and the sum of what all of them put in."""
    while True:
        comm.deadline_s = comm._agreement.deadline_s = deadline_s
        try:
            comm = comm.shrink()
            comm.deadline_s = PATIENT_S  # for who is stopped in the call, and comes back
            return sum_of(comm)
        except ExcludedError:
            return "excluded", (), 0
        except (PeerLostError, RevokedError):
            continue
        except DeadlineError:
            return "deadline", (), 0


def sum_of(comm: Communicator) -> tuple[str, tuple[int, ...], int]:
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
        found.append(go_on(comm, deadline_s))
        world.barrier()
    return found


def stopped_shrinks(seed: int, ranks: int, rounds: int) -> Counter[str]:
    """Let processes shrink communicators, each stopped at some step, and check that no two groups go on."""
    due: dict[int, float] = {}
    over = threading.Event()

    def continue_them() -> None:
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
    continues = threading.Thread(target=continue_them)
    continues.start()
    try:
        main = partial(shrink_under_stops, seed=seed, rounds=rounds)
        ended = launch_survivors(
            main, ranks=ranks, topology=LAPTOP, how="processes", deadline_s=PATIENT_S, on_message=on_message
        )
    finally:
        over.set()
        continues.join()
    assert ended.failures == {}, ended.failures
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


def main(count: int = 10_000, first: int = 0) -> int:
    """Shrink ``count`` times, and print the counts after each world; return how many worlds failed."""
    tally: Counter[str] = Counter()
    for seed in range(first, first + -(-count // ROUNDS)):
        try:
            tally += stopped_shrinks(seed, 2 + seed % 4, ROUNDS)
        except AssertionError as error:
            tally["failed worlds"] += 1
            print(f"seed {seed}, {2 + seed % 4} ranks: {error}", flush=True)
        print(f"up to seed {seed}:", dict(tally), flush=True)
    return tally["failed worlds"]


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])) > 0)
