"""A pool of a test's own, and processes that own or attach one."""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cxlemu.pool import segments
from cxlemu.pool.shm import ShmPool
from tests.helpers.tiers import PATIENT_S

MIB = 1 << 20
SMALL: dict[str, Any] = {"cards": 2, "card_bytes": MIB, "interleave_bytes": 4096, "hosts": 2, "max_ranks": 16}
IMPORTS = "from cxlemu.pool.shm import ShmPool; import os, signal, sys\n"
CREATE = IMPORTS + f"pool = ShmPool.create(sys.argv[1], **{SMALL})\n"
ATTACH = IMPORTS + "pool = ShmPool.attach(sys.argv[1])\n"
UNTIL_KILLED = "print('ready', flush=True)\nsys.stdin.read()\n"


def small_pool(name: str) -> ShmPool:
    return ShmPool.create(name, **SMALL)


def files(name: str) -> list[str]:
    """What lies in /dev/shm under this pool's name, without the common part of the names."""
    return [f"{segment.kind}{segment.index}" for segment in segments.find(name)]


WHOLE = ["card0", "card1", "host0", "host1"]


@contextmanager
def own_name() -> Iterator[str]:
    """A name that no other test uses; whatever is left under it is removed at the end."""
    name = f"test-{os.getpid()}-{secrets.token_hex(4)}"
    try:
        yield name
    finally:
        for segment in segments.find(name):
            segments.remove(segment)


def run_script(script: str, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, name], capture_output=True, text=True, timeout=PATIENT_S, check=False
    )


@contextmanager
def running(script: str, name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has reached UNTIL_KILLED; it is killed at the end of the block."""
    command = [sys.executable, "-c", script + UNTIL_KILLED, name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def let_go(pool: ShmPool) -> None:
    """End the lock by which others see that this process owns the pool, as its death would."""
    pool._life.release()


def leave_dead_pool(name: str) -> None:
    """What SIGKILL of an owner leaves behind."""
    with running(CREATE, name):
        pass
    assert files(name) == WHOLE
