"""What one rank's calls have in common, whatever communicator they are on: their order, and what happens in a wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from cxlemu.engines.reference import Runner
from cxlemu.engines.streams import Blocked
from cxlemu.errors import MismatchError, PeerLostError
from cxlemu.pool.session_lines import State, Status
from cxlemu.world import RankContext

T = TypeVar("T")

LOOK_S = 0.05  # how often a waiting rank shows a heartbeat and looks after its peers


@dataclass
class Handle(Generic[T]):
    """A call under way, as ``async_op=True`` returns it."""

    _future: Future[T]
    observed: bool = False  # somebody waited, so that an error was seen

    def wait(self, timeout_s: float | None = None) -> T:
        """The call's result. Raises what the call raised, or TimeoutError after ``timeout_s``."""
        result = self._future.exception(timeout_s)
        self.observed = True
        if result is not None:
            raise result
        return self._future.result()

    def done(self) -> bool:
        return self._future.done()


class Lane:
    """Runs a rank's calls one after another, in the order they were made, on all of its communicators.

    A synchronous call runs in the caller's thread unless asynchronous ones are still ahead of it.
    """

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._open: list[Handle[Any]] = []

    def call(self, work: Callable[[], T]) -> T:
        if any(not handle.done() for handle in self._open):
            return self.start(work).wait()
        return work()

    def start(self, work: Callable[[], T]) -> Handle[T]:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, thread_name_prefix="cxlemu-async")
        handle = Handle(self._executor.submit(work))
        self._open = [other for other in self._open if not other.observed]
        self._open.append(handle)
        return handle

    def drain(self) -> None:
        """Wait for what is under way. Raises the error of a call that nobody waited for."""
        handles, self._open = self._open, []
        for handle in handles:
            if not handle.observed:
                handle.wait()


@dataclass
class Watcher:
    """Looks after the peers of one communicator while its rank waits."""

    context: RankContext
    comm: int
    members: tuple[int, ...]  # world ranks
    deadline_s: float
    call: int = 0
    _looked: float = field(default=0.0)

    def __call__(self, runner: Runner, blocked: list[Blocked], waited_s: float) -> None:
        """Raises MismatchError or PeerLostError when a peer will not come any more."""
        self.context.check()
        now = time.monotonic()
        if now - self._looked < LOOK_S and waited_s <= self.deadline_s:
            return
        self._looked = now
        session = self.context.session
        session.beat()
        waits_for = " and for ".join(runner.describe(b) for b in blocked)
        for index, member in enumerate(self.members):
            status = session.peek(member)
            if status is not None and member != self.context.rank:
                self._compare(runner, index, status)
        # A peer that went away needs not be lost yet: what it owed may be on its way. Look once more.
        owed = {self.members[b.owner] for b in blocked if b.owner >= 0}
        gone = session.departed(owed)
        if gone and waited_s > 20 * LOOK_S:
            lost, how = self._culprits(gone)
            raise PeerLostError(f"{how}; rank {runner.part.rank} waits in [{runner.call}] for {waits_for}", lost)
        others = [m for m in self.members if m != self.context.rank]
        silent = session.silent(others, older_than_s=self.deadline_s / 2)
        if silent and waited_s > self.deadline_s:
            names = ", ".join(f"rank {self.members.index(m)}" for m in silent)
            raise PeerLostError(
                f"{names} gave no sign of life for {self.deadline_s / 2:.3g} s or more; "
                f"rank {runner.part.rank} waited {waited_s:.1f} s in [{runner.call}] for {waits_for}",
                tuple(self.members.index(m) for m in silent),
            )

    def _compare(self, runner: Runner, peer: int, status: Status) -> None:
        """A peer in the same call of this communicator must have called the same."""
        if (status.comm, status.call) == (self.comm, self.call) and status.tag != runner.call.tag:
            raise MismatchError(
                f"call {self.call} of this communicator is [{runner.call}] on rank {runner.part.rank} but "
                f"[{status.text} ...] on rank {peer}: all ranks must call the same with the same arguments"
            )

    def _culprits(self, gone: dict[int, State]) -> tuple[tuple[int, ...], str]:
        """Whom to blame for ranks that left: themselves, or whom they lost themselves."""
        lost: set[int] = set()
        for member in gone:
            status = self.context.session.peek(member)
            text = status.text if status is not None else ""
            named = {int(word) for word in text.removeprefix("lost ").split() if word.isdigit()}
            lost |= named if text.startswith("lost ") and named else {member}
        ranks = tuple(sorted(self.members.index(m) for m in lost if m in self.members))
        left = ", ".join(
            f"rank {self.members.index(m)} {'failed' if s == State.FAILED else 'left'}" for m, s in gone.items()
        )
        blame = "" if lost <= gone.keys() else f" after it lost {', '.join(f'rank {r}' for r in ranks)}"
        return ranks, left + blame
