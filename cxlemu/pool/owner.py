"""The process that made a pool, and whether it still lives: across reused pids, reboots and containers.

A process that holds a LifeLock lives, whatever its pid and its times look like from here.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cxlemu.errors import PoolError
from cxlemu.pool.life import is_held

OwnerState = Literal["alive", "dead", "unknown"]

PROC = Path("/proc")
PID_MAX = 1 << 22  # Linux gives no larger ones


@dataclass(frozen=True)
class Owner:
    """One process of one boot. A pid alone is reused; with its start time and the boot id it is not."""

    uid: int
    pid: int
    start_ticks: int  # /proc/<pid>/stat field 22, clock ticks since boot
    pid_namespace: int  # inode of /proc/self/ns/pid: a pid means nothing in another container
    boot_id: uuid.UUID

    @classmethod
    def current(cls) -> Owner:
        """Return this process. Raises PoolError where /proc does not describe it."""
        pid = os.getpid()
        start_ticks = _start_ticks(pid)
        if start_ticks is None:  # the /proc of another pid namespace
            raise _without_proc(str(pid))
        return cls(os.geteuid(), pid, start_ticks, _pid_namespace(), _boot_id())

    def state(self) -> OwnerState:
        """Look whether the owner still runs; ``unknown`` in a pid namespace that this process cannot see into."""
        if self.boot_id != _boot_id():
            return "dead"
        if self.pid_namespace != _pid_namespace():
            return "unknown"
        return "alive" if _start_ticks(self.pid) == self.start_ticks else "dead"

    def state_by(self, fd: int) -> OwnerState:
        """Look whether the owner still runs: it holds its LifeLock (``fd`` was opened for this), or `state` says so."""
        return "alive" if is_held(fd, 0) else self.state()


NOBODY = Owner(uid=0, pid=0, start_ticks=0, pid_namespace=0, boot_id=uuid.UUID(int=0))
"""A formatted device outlives the process that formatted it, and that machine."""


def machine_digest() -> int:
    """Digest this machine's boot and this process's pid namespace: where it is equal, a pid means the same process."""
    place = f"{_boot_id()} {_pid_namespace()}"
    return int.from_bytes(hashlib.blake2b(place.encode(), digest_size=8).digest(), "little")


def _without_proc(name: str) -> PoolError:
    return PoolError(f"a pool names its process as {PROC} does, which has no {name}: mount this namespace's proc there")


def _boot_id() -> uuid.UUID:
    try:
        return uuid.UUID((PROC / "sys/kernel/random/boot_id").read_text().strip())
    except FileNotFoundError as error:
        raise _without_proc("sys/kernel/random/boot_id") from error


def _pid_namespace() -> int:
    return (PROC / "self/ns/pid").stat().st_ino


def _start_ticks(pid: int) -> int | None:
    """Read the start time of a running process; None when it is gone or only a zombie, not reaped yet."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(b")")[2].split()  # the command name before ")" may hold anything
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
