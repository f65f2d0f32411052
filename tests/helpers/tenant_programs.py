"""What ranks of tenants do in test_tenants.py; a module of its own, because spawned ranks import it."""

import os
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from collectives.communicator.communicator import Communicator
from cxlemu.capacity.lines import GrantLine, GrantState, UseLine, tenant_bytes
from cxlemu.capacity.tenant_pool import TenantPool
from cxlemu.errors import AccessError
from cxlemu.pool.arena import Arena
from cxlemu.pool.owner import Owner
from cxlemu.world import RankContext


def sums(context: RankContext) -> tuple[float, float, int]:
    """All ranks, a part of them, and how much of a card they see."""
    with Communicator.world(context) as comm:
        x = np.full(1000, comm.rank + 1, np.float32)
        comm.all_reduce(x)
        half = comm.split(comm.rank % 2)
        y = half.all_gather(np.array([comm.rank], np.int32))
        return float(x.sum()), float(y.sum()), context.pool.card_bytes


def sums_and_maps(context: RankContext) -> tuple[float, dict[str, int]]:
    """Also, how many bytes of each card this process maps."""
    total, *_ = sums(context)
    return total, mapped()


def mapped() -> dict[str, int]:
    """How many bytes of each card this process maps, and how: ``card0 rw`` can be stored to."""
    found: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) (..).*/dev/shm/cxlemu-.*-(card\d+)", line):
            name = f"{match[4]} {match[3]}"
            found[name] = found.get(name, 0) + int(match[2], 16) - int(match[1], 16)
    return found


def descriptors() -> list[str]:
    """The cards that this process has open, and how."""
    found = []
    for entry in Path("/proc/self/fdinfo").iterdir():
        with suppress(FileNotFoundError):
            path = (Path("/proc/self/fd") / entry.name).readlink()
            flags = int(entry.read_text().split("flags:")[1].split()[0], 8)
            if "cxlemu-" in path.name or "card" in path.name:
                found.append(f"{path.name} {'r' if flags & os.O_ACCMODE == os.O_RDONLY else 'rw'}")
    return found


def attack(context: RankContext, blue_at: int, blue_bytes: int) -> dict[str, Any]:
    """Everything that the API hands out, turned on another tenant's bytes. What became of each attempt."""
    assert isinstance(context.pool, TenantPool)
    table, lease = context.pool.table, context.pool.lease
    forged = GrantLine(99, blue_at, blue_bytes, GrantState.HELD, tenant_bytes("red"))
    became: dict[str, Any] = {}

    def attempt(name: str, what: Callable[[], Any]) -> None:
        try:
            what()
            became[name] = "done"
        except (AccessError, TypeError, ValueError) as error:
            became[name] = type(error).__name__

    def in_forged() -> None:
        with context.in_grant(99):
            pass

    attempt("store_grant", lambda: table.store_grant(63, forged))
    attempt("lines", lambda: table._lines.store(table._grant_offset(63), forged, 63))
    attempt("numpy", lambda: table._lines.memory.write(0, table._grant_offset(63), np.ones(64, np.uint8)))  # type: ignore[attr-defined]
    attempt("header", lambda: table.store_header(table.header()))
    attempt("use", lambda: table.store_use((lease.slot + 1) % 64, 0, UseLine.of(1, Owner.current(), inside=False)))
    attempt("in_grant", in_forged)
    became["maps"], became["descriptors"] = mapped(), descriptors()
    became["own"] = table.use(lease.slot, context.rank) is not None
    return became


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
