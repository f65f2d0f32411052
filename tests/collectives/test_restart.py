"""A run in which all ranks die at once, anywhere, and the next one in the same pool, beside what the first one left."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.communicator.communicator import Communicator
from cxlemu.errors import MismatchError
from cxlemu.memory import BACKENDS, MemorySpec
from cxlemu.memory.protocol import HostMemory
from cxlemu.pool.pool import Pool
from cxlemu.pool.session import Session
from cxlemu.topology import Topology
from cxlemu.world.context import RankContext, ignore_message
from cxlemu.world.threads import run_threads
from cxlemu.world.topology_of import machine
from cxlemu.world.world import World
from tests.helpers.card_files import MIB, real_cards
from tests.helpers.tiers import PATIENT_S

RANKS = 3
STEPS = [*range(1, 130, 16), *range(130, 700, 60)]  # by the 120th or so, all ranks have cleared their doorbells


class Killed(BaseException):
    pass


@dataclass
class Fate:
    """Kills all ranks at the ``at``-th step that any of them takes."""

    at: int
    steps: Iterator[int] = field(default_factory=itertools.count)
    sessions: list[Session] = field(default_factory=list)
    struck: bool = False


class Mortal:
    """A rank's memory, which after its death does nothing any more."""

    def __init__(self, memory: HostMemory, fate: Fate) -> None:
        self.memory, self.fate = memory, fate

    def __getattr__(self, name: str) -> Any:
        if name != "poll":  # how often a rank looks depends on time
            self.fate.struck |= next(self.fate.steps) >= self.fate.at
        if self.fate.struck:
            raise Killed
        return getattr(self.memory, name)


def live_until(context: RankContext, fate: Fate) -> None:
    session = context.session
    fate.sessions.append(twin := object.__new__(type(session)))  # sessions refuse to be copied
    vars(twin).update(vars(session))
    session._area = type(session._area)(Mortal(session._area.memory, fate), context.pool.session_offset)
    mortal = replace(context, memory=Mortal(context.memory, fate))
    try:
        with pytest.raises(BaseException) as caught:
            work(mortal, 1000, engine="reference")
        assert fate.struck, caught.value
    finally:
        session.leave = lambda *, failed=False: None  # type: ignore[method-assign]


def work(context: RankContext, calls: int, engine: str = "native") -> list[int]:
    comm = Communicator.world(context, engine=engine, region_bytes=64 << 10, deadline_s=PATIENT_S)
    found = []
    for call in range(calls):
        x = np.full(3 + 700 * (call % 2), comm.rank + call, np.int64)
        comm.all_reduce(x)
        y = comm.all_gather(x[:1] + comm.rank)
        assert np.all(x == x[0])
        found.append(int(x[0] + y.sum()))
    return found


def right(ranks: int, calls: int) -> list[int]:
    sums = [sum(rank + call for rank in range(ranks)) for call in range(calls)]
    return [total + sum(total + rank for rank in range(ranks)) for total in sums]


def work_after(context: RankContext, fate: Fate) -> list[int]:
    found = work(context, 12)
    if context.rank == 0:
        for old in fate.sessions:  # whoever of the first run was only thought dead
            with pytest.raises(MismatchError, match="another run has begun in this pool"):
                old.beat()
    return found + work(context, 3)


@contextmanager
def pools(kind: str, directory: Path) -> Iterator[tuple[World, Pool]]:
    spec, topology = MemorySpec(kind), Topology.load("laptop")
    if kind == "dax":
        spec = real_cards(directory, nbytes=MIB)
        topology = machine(None, spec)
    world = World(RANKS, topology, spec, PATIENT_S, "threads")
    with world.create_pool(None) as pool:
        yield world, pool


@pytest.mark.deep(rows=lambda part: part > 0)
@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("kind", BACKENDS)
def test_after_a_crash_at_any_step_the_next_run_is_right(kind: str, part: int, tmp_path: Path) -> None:
    with pools(kind, tmp_path) as (world, pool):
        for number, at in [*enumerate(STEPS)][part::5]:
            fate = Fate(at)
            ended = run_threads(partial(live_until, fate=fate), world, pool, ignore_message)
            assert (fate.struck, ended.failures) == (True, {})
            ranks = RANKS - number % 2
            after = replace(world, ranks=ranks)
            again = run_threads(partial(work_after, fate=fate), after, pool, ignore_message)
            assert again.failures == {}
            assert list(again.results.values()) == [right(ranks, 12) + right(ranks, 3)] * ranks, at
