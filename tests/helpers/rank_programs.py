"""What ranks do in test_world.py; a module of its own, because spawned ranks import it and should do so fast.

Run as a program, it is one process of a test: ``launch MAIN HOW POOL`` runs a world until it is stopped,
``environment WORLDS [failing]`` is a rank that a launcher started.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from cxlemu.errors import ArgumentError
from cxlemu.memory import MemorySpec
from cxlemu.pool import segments
from cxlemu.world import RankContext, from_environment, launch

VICTIM = 1
LAPTOP = "laptop"


def who_am_i(context: RankContext) -> tuple[int, int, int, str]:
    context.session.barrier(context.deadline_s)
    return context.rank, context.ranks, context.host, context.launch


def emit_three(context: RankContext) -> None:
    for number in range(3):
        context.emit((context.rank, number))


def pass_bytes_on(context: RankContext) -> int:
    """Rank 0 publishes a line with the full chain; everybody retrieves it."""
    offset = context.pool.data_offset
    stale = np.zeros(64, np.uint8)
    context.memory.read(1, offset, stale)  # now it sits in every host's cache
    context.session.barrier(context.deadline_s)
    if context.rank == 0:
        context.memory.write(1, offset, np.full(64, 42, np.uint8))
        context.memory.flush(1, offset, 64)
        context.memory.fence()
    context.session.barrier(context.deadline_s)
    context.memory.invalidate(1, offset, 64)
    context.memory.read(1, offset, stale)
    return int(stale.sum())


def full_page(context: RankContext) -> None:
    """Rank 1 touches a page of a sparse file in /dev/shm when that has become full."""
    context.session.barrier(context.deadline_s)
    if context.rank == 1:
        segment = segments.Segment(f"full-{os.getpid()}", "card", 0)
        with segments.create(segment, 1 << 20) as fd:
            page = segments.map_shared(fd, 1 << 20)
        with segments.SHM_DIR.joinpath("full").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, segments.free_bytes())
        page[:] = 1
    context.session.barrier(context.deadline_s)


def forget_the_fence(context: RankContext) -> int | None:
    """Rank 0 flushes without a fence, then keeps the session busy. What does the last rank read?"""
    offset = context.pool.data_offset
    line = np.full(64, 42, np.uint8)
    if context.rank == 0:
        context.memory.write(0, offset, line)
        context.memory.flush(0, offset, 64)
        context.session.beat()
        context.session.report(1, 2, 3, "forgetful")
    context.session.barrier(context.deadline_s)
    if context.rank < context.ranks - 1:  # an own invalidate would land what its host has posted
        return None
    context.memory.invalidate(0, offset, 64)
    context.memory.read(0, offset, line)
    return int(line[0])


def fail(context: RankContext) -> None:
    if context.rank == VICTIM:
        raise ZeroDivisionError("one rank fails")
    wait_for_each_other(context)


def misuse(context: RankContext) -> None:
    if context.rank == VICTIM:
        raise ArgumentError("rank 1 was given nonsense")
    wait_for_each_other(context)


def leave_python(context: RankContext) -> None:
    if context.rank == VICTIM:
        sys.exit(7)
    wait_for_each_other(context)


def kill_itself(context: RankContext) -> None:
    context.session.barrier(context.deadline_s)
    if context.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    context.session.barrier(2.0)


def exit_without_a_word(context: RankContext) -> None:
    context.session.barrier(context.deadline_s)
    if context.rank == VICTIM:
        os._exit(3)
    context.session.barrier(0.5)


def fail_while_others_work(context: RankContext) -> None:
    if context.rank == VICTIM:
        raise ZeroDivisionError("one rank fails")
    while True:  # a rank that never waits for a peer notices nothing
        context.check()
        time.sleep(0.01)


class PickyError(Exception):
    """Pickles, but does not unpickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def raise_picky(context: RankContext) -> None:
    raise PickyError(1, 2)


class LeavesError(Exception):
    """Ends the process in which it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[int]]:
        return os._exit, (0,)


def return_what_leaves(comm: object) -> object:
    return [LeavesError()]


class FailsError(Exception):
    """Cannot be unpickled."""

    def __setstate__(self, state: object) -> None:
        raise ZeroDivisionError("unpickled")


def return_what_fails(context: RankContext) -> object:
    error = FailsError()
    error.word = "state"  # type: ignore[attr-defined]
    return error


def leave_with_0(context: RankContext) -> None:
    os._exit(0)


def return_a_lock(context: RankContext) -> object:
    import threading

    return threading.Lock()


def wait_for_each_other(context: RankContext) -> None:
    context.emit(("running", os.getpid()))
    while True:
        context.session.barrier(context.deadline_s)


def sleep(context: RankContext) -> None:
    """Waits for nobody and checks nothing."""
    context.emit(("running", os.getpid()))
    time.sleep(3600)


def _launch(main: str, how: str, pool_name: str) -> None:
    running = []

    def on_message(message: object) -> None:
        running.append(message)
        if len(running) == 3:
            print("running", *{pid for _, pid in running}, flush=True)

    launch(
        globals()[main],
        ranks=3,
        topology=LAPTOP,
        memory=MemorySpec(),
        how=how,  # type: ignore[arg-type]
        on_message=on_message,
        pool_name=pool_name,
    )


def say(message: object) -> None:
    print(message, flush=True)


def _environment(worlds: int, failing: bool) -> None:
    for world in range(worlds):
        with from_environment(topology=LAPTOP, memory=MemorySpec(), deadline_s=30.0, on_message=say) as context:
            context.session.barrier(context.deadline_s)
            context.emit(f"heard from rank {context.rank}")
            if failing and context.rank == VICTIM:
                raise ZeroDivisionError("one rank fails")
            context.session.barrier(context.deadline_s)
            assert not segments.find(context.pool.name)  # since all ranks are there
        line = f"world {world} rank {context.rank} of {context.ranks} pool {context.pool.name}\n"
        os.write(1, line.encode())  # one write: ranks share the pipe
    assert not segments.find(context.pool.name)


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        _launch(*sys.argv[2:])
    else:
        _environment(int(sys.argv[2]), failing="failing" in sys.argv)
