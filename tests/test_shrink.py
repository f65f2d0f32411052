"""Ranks that die, anywhere, and those that go on without them: who is told what, who agrees on what, what is right."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from card_files import blank_cards, pool_of

from collectives.communicator import Communicator
from collectives.shrink import Agreement, Roster
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
    RankDiedError,
    RevokedError,
    RunError,
)
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.arena import Arena
from cxlemu.pool.board import Board, Cause, Notice, Stage, Vote, board_bytes
from cxlemu.pool.segments import pool_names
from cxlemu.pool.session import Session
from cxlemu.topology import Topology
from cxlemu.world import RankContext, launch, launch_survivors
from cxlemu.world.outcome import Outcome

LAPTOP = Topology.load("laptop")
PATIENT_S = 30.0  # for ranks that come up slowly
NOTICE_S = 0.8  # until a dead rank is noticed

Program = Callable[[Communicator], Any]


def together(program: Program, ranks: int, *, how: Any = "threads", spec: MemorySpec | None = None) -> Outcome[Any]:
    """What became of every rank, where those that died stop nobody."""
    main = partial(_main, program=program)
    topology = LAPTOP if spec is None or spec.kind != "dax" else None
    return launch_survivors(
        main, ranks=ranks, topology=topology, memory=spec or MemorySpec(), how=how, deadline_s=PATIENT_S
    )


def _main(context: RankContext, program: Program) -> Any:
    return program(Communicator.world(context, deadline_s=NOTICE_S))


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
    y = comm.pool.full(3, me, np.float64)
    comm.all_reduce(y)
    half = comm.split(color=me % 2)
    assert half is not None
    return comm.members, [*everyone.ravel().tolist(), int(y[0]), *half.members], lost


def expected(survivors: Sequence[int], rank: int) -> list[int]:
    return [*survivors, sum(survivors), *(other for other in survivors if other % 2 == rank % 2)]


KILLED = {
    "one": (4, {2: 20}),
    "the session's root": (3, {0: 20}),
    "two at once": (4, {0: 20, 3: 20}),
    "one after the other": (4, {1: 10, 0: 25}),
    "all but one": (3, {0: 5, 2: 5}),
}


@pytest.mark.parametrize("kind", ["emulated", "shm", "dax"])
@pytest.mark.parametrize("what", KILLED)
def test_survivors_of_killed_processes_go_on(what: str, kind: Any, tmp_path: Path) -> None:
    if kind != {"one": "dax", "the session's root": "shm", "one after the other": "emulated"}.get(what, "emulated"):
        pytest.skip("each way of dying on one memory")
    ranks, victims = KILLED[what]
    spec = MemorySpec(kind)
    if kind == "dax":
        cards = blank_cards(tmp_path, 2)
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
