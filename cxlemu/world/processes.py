"""Ranks as spawned processes. The parent owns the pool and outlives its children, no matter how it ends.

Ranks of one host share their cache through the pool's host segment. What comes back through the pipes was pickled by
our own children.
"""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from cxlemu.errors import ArgumentError, CancelledError, CxlemuError, RankDiedError, RunError
from cxlemu.pool.home import Home
from cxlemu.pool.pool import Pool
from cxlemu.pool.room import bus_error
from cxlemu.signals import STOPS, terminates_in_order
from cxlemu.world.context import OnMessage, RankContext, entered
from cxlemu.world.orphans import end_workers, pipe_named
from cxlemu.world.outcome import GRACE_S, Outcome
from cxlemu.world.world import World

T = TypeVar("T")

_TICK_S = 0.1
_PR_SET_PDEATHSIG = 1
_SIGNAL_NAMES = {number.value: number.name for number in signal.Signals}

RANK = "rank"  # how the names of ranks' processes begin
UNGUARDED = 120  # exit code of a rank whose program would start ranks while it is imported
MESSAGE, ENTERED, RESULT, FAILURE = "message", "entered", "result", "failure"


def run_processes(
    main: Callable[[RankContext], T],
    world: World,
    pool: Pool,
    on_message: OnMessage,
    *,
    survivors: bool = False,
    keep_names: bool = False,
) -> Outcome[T]:
    """Run ``main``, which is pickled, on every rank, each in a spawned process; afterwards no child is left."""
    _check_has_a_module(main)
    try:
        pickle.dumps((main, world))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ArgumentError(f"{main!r} cannot be sent to processes, use a function of a module: {error}") from None
    outcome: Outcome[T] = Outcome(world.ranks, world.deadline_s, survivors=survivors)
    children: list[SpawnProcess] = []
    pipes: dict[Connection, int] = {}
    names: list[str] = []  # of the ranks' pipes
    outside = set() if keep_names else set(range(world.ranks))  # ranks that still need the pool's names

    def enter(rank: int) -> None:
        if rank in outside:
            outside.remove(rank)
            if not outside:
                pool.unlink()

    try:
        with _stops_blocked():
            for rank in range(world.ranks):
                receiver, child = _start(main, world, rank, pool.name)
                children.append(child)
                pipes[receiver] = rank
                names.append(pipe_named(receiver.fileno()))
        while pipes and not outcome.overdue():
            ready = wait(list(pipes), timeout=_TICK_S)
            # a rank's workers hold its end of the pipe, and may outlive it
            dead = [] if ready else [p for p, rank in pipes.items() if not children[rank].is_alive() and not p.poll()]
            for pipe in [*ready, *dead]:
                assert isinstance(pipe, Connection)
                rank = pipes[pipe]
                if pipe in dead or not _take_news(pipe, rank, outcome, on_message, enter):
                    del pipes[pipe]
                    pipe.close()
                    if rank in outcome.pending():
                        outcome.failed(rank, _death_notice(rank, children[rank]))
    finally:  # also after Ctrl-C, SIGTERM and errors of on_message
        _reap(children, GRACE_S if not outcome.pending() else 0.0)
        if killed := {name for child, name in zip(children, names, strict=False) if (child.exitcode or 0) < 0}:
            end_workers(killed, GRACE_S)
        for pipe in pipes:
            pipe.close()
    if any(child.exitcode == UNGUARDED for child in children):
        raise ArgumentError(GUARD)
    for rank in sorted(outcome.pending()):
        outcome.failed(rank, CancelledError("terminated, because it went on after another rank failed"))
    return outcome


GUARD = (
    'each rank is a process that imports this program: put what starts ranks under `if __name__ == "__main__":`, or '
    'take how="threads"'
)


def refuse_unguarded() -> None:
    """End a rank that would start ranks itself, because its program does so while it is imported."""
    process = multiprocessing.current_process()
    if getattr(process, "_inheriting", False):  # as multiprocessing itself finds out
        if process.name.startswith(f"{RANK} "):
            raise SystemExit(UNGUARDED)
        raise ArgumentError(GUARD)


def _check_has_a_module(main: Callable[[RankContext], Any]) -> None:
    """Raises ArgumentError for a function of a notebook or a prompt, which no other process can import."""
    while isinstance(main, partial):
        main = main.func
    home = sys.modules["__main__"]
    has_file = home.__spec__ is not None or Path(getattr(home, "__file__", None) or os.devnull).is_file()
    if getattr(main, "__module__", "") == "__main__" and not has_file:
        name = getattr(main, "__name__", "main")
        raise ArgumentError(
            f"{name} was defined in a notebook or at a prompt, which other processes cannot import: put it into a file "
            f'that you import, or take how="threads"'
        )


def _start(
    main: Callable[[RankContext], T], world: World, rank: int, pool_name: str
) -> tuple[Connection, SpawnProcess]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(
        target=_child_main, args=(main, world, rank, pool_name, os.getpid(), sender), name=f"{RANK} {rank}", daemon=True
    )
    child.start()
    sender.close()  # the child's copy is the only one now: its death ends the stream
    return receiver, child


def _take_news(
    pipe: Connection, rank: int, outcome: Outcome[Any], on_message: OnMessage, enter: Callable[[int], None]
) -> bool:
    """Take one thing that a child sent; return whether more may come."""
    try:
        kind, value = pipe.recv()
    except (EOFError, OSError):
        return False
    except Exception as error:  # a class of the user's fails as it is unpickled
        outcome.failed(rank, RunError(f"sent an object that cannot be unpickled: {type(error).__name__}: {error}"))
        return False
    if kind == MESSAGE:
        on_message(value)
        return True
    if kind == ENTERED:
        enter(rank)
        return True
    if kind == RESULT:
        outcome.succeeded(rank, value)
    else:
        outcome.failed(rank, value)
    return False


def _death_notice(rank: int, child: SpawnProcess) -> RankDiedError:
    child.join(GRACE_S)
    code = child.exitcode
    if code is None:
        return RankDiedError("closed its pipe and went on without a result")
    if -code == signal.SIGBUS:
        return RankDiedError(f"was killed by SIGBUS: {bus_error()}")
    if -code in _SIGNAL_NAMES:
        return RankDiedError(f"was killed by {_SIGNAL_NAMES[-code]}")
    return RankDiedError(f"exited with code {code} and no result")


def _reap(children: list[SpawnProcess], patience_s: float) -> None:
    """Wait, then SIGTERM, then SIGKILL: afterwards no child is left."""
    _join(children, patience_s)
    for stop in (SpawnProcess.terminate, SpawnProcess.kill):
        for child in children:
            stop(child)
        _join(children, GRACE_S)


def _join(children: list[SpawnProcess], seconds: float) -> None:
    end = time.monotonic() + seconds
    for child in children:
        child.join(max(0.0, end - time.monotonic()))


@contextmanager
def _stops_blocked() -> Iterator[None]:
    """No signal comes between a birth and its entry in the list, nor before a child has set its handlers."""
    resource_tracker.ensure_running()  # unblocks signals when it starts its helper, so let it do that before
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


# -- in the child


def _child_main(
    main: Callable[[RankContext], T], world: World, rank: int, pool_name: str, parent_pid: int, pipe: Connection
) -> None:
    for number in STOPS - {signal.SIGTERM}:  # a terminal's go to the whole group; the parent stops us
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):  # not of the user's module
            signal.signal(number, _wait_for_the_parent)
    terminates_in_order()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    die_with(parent_pid)
    multiprocessing.current_process().daemon = False  # so that it may start workers; the launcher reaps it anyway

    home = Home()

    def check() -> None:
        home.check()
        if os.getppid() != parent_pid:
            raise CancelledError("stopped, because the process that launched it is gone")

    def emit(message: object) -> None:
        home.check()
        pipe.send((MESSAGE, message))

    try:
        with (
            world.attach_pool(pool_name) as pool,
            world.shared_host_cache(pool, rank) as cache,
            entered(world, rank, pool, cache, emit=emit, check=check) as context,
        ):
            pipe.send((ENTERED, None))
            result = main(context)
        if not home.left:
            pipe.send((RESULT, result))
    except BaseException as error:
        if home.left:  # a forked child is no rank
            raise
        with suppress(BrokenPipeError):  # the parent has closed its end: it is stopping all ranks
            pipe.send((FAILURE, _portable(error)))


def _wait_for_the_parent(number: int, frame: FrameType | None) -> None:
    """Do nothing. SIG_IGN would also hold in programs that this rank starts."""


def die_with(parent_pid: int) -> None:
    """SIGKILL for this process when its parent dies. Without prctl, `check` notices at the next wait."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)


def _portable(error: BaseException) -> BaseException:
    """The error itself if it survives pickling, with the traceback that stays behind as a note."""
    if not isinstance(error, CxlemuError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RunError(f"{type(error).__name__}: {error}")
    return error
