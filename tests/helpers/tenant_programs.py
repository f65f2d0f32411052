"""What ranks of tenants do in test_tenants.py; a module of its own, because spawned ranks import it."""

from __future__ import annotations

import os
import re
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np

from collectives.communicator.communicator import Communicator
from cxlemu.errors import AccessError
from cxlemu.pool.arena import Arena
from cxlemu.world import RankContext


def sums(context: RankContext) -> tuple[float, float, int]:
    """All ranks, a part of them, and how much of a card they see."""
    with Communicator.world(context) as comm:
        x = np.full(1000, comm.rank + 1, np.float32)
        comm.all_reduce(x)
        half = comm.split(comm.rank % 2)
        assert half is not None
        y = half.all_gather(np.array([comm.rank], np.int32))
        return float(x.sum()), float(y.sum()), context.pool.card_bytes


def sums_and_maps(context: RankContext) -> tuple[float, dict[str, int]]:
    """Also, how many bytes of each card this process maps."""
    total, *_ = sums(context)
    found: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) .*/dev/shm/cxlemu-.*-(card\d+)", line):
            found[match[3]] = found.get(match[3], 0) + int(match[2], 16) - int(match[1], 16)
    return total, found


def until_told(context: RankContext) -> None:
    """Calls that never end by themselves, and mostly without waiting."""
    with Communicator.world(context) as comm:
        operation = comm.persistent.all_reduce(np.zeros(8, np.float32))
        for step in range(1 << 40):
            operation()
            if step == 100:
                context.emit(context.rank)


def wait_for_nobody(context: RankContext) -> None:
    """Rank 0 waits in a barrier into which rank 1 never comes."""
    with Communicator.world(context) as comm:
        context.emit(context.rank)
        if comm.rank == 0:
            comm.barrier()
        while True:
            context.check()


def killed(context: RankContext) -> None:
    with Communicator.world(context, deadline_s=30.0) as comm:
        comm.barrier()
        os.kill(os.getpid(), signal.SIGKILL)


def grows(context: RankContext) -> tuple[int, float, float]:
    """A rank that was given more while it runs, and uses both."""
    with Communicator.world(context) as comm:
        context.emit(context.rank)
        with context.in_grant(2) as more, Communicator.world(more) as larger:
            x, y = np.full(8, 1.0), np.full(8, 2.0)
            comm.all_reduce(x)
            larger.all_reduce(y)
            comm.barrier()
            return more.pool.card_bytes, float(x[0]), float(y[0])


def reach(context: RankContext, there: int, *, room: bool) -> str:
    """What a communicator says that begins, or a plan that would run, in another tenant's bytes."""
    with Communicator.world(context) as comm:
        if context.rank:
            return ""
        try:
            if room:
                Communicator.world(replace(context, arena=Arena(there, there + (2 << 20))))
            else:
                comm._planner.base = there
                comm.all_reduce(np.zeros(8, np.float32))
        except AccessError as error:
            return str(error)
    raise AssertionError("it was not refused")
