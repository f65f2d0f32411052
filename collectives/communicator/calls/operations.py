"""Calls that are ready to run: checked, planned and bound to their arrays once, then run as often as one likes.

The native engine's are C objects that run without any Python in between; the reference engine's are Stepped.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from collectives.communicator.arrays import Array
from cxlemu.engines.streams import NO_PLACE
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import Call, Frame, Plan, RankPart
from cxlemu.unshared import Unshared

# What a verb returns: an array with the result (None where this rank gets none), its Handle with async_op=True, or an
# Operation where the verb is one of `Communicator.persistent`.
Outcome = Any


class Operation(Protocol):
    """A persistent call, as MPI-4's ``Allreduce_init`` makes: ``op()`` runs it on the arrays it was made with."""

    def __call__(self) -> Array | None:
        """Run the call after this rank's earlier ones. Returns its result, and raises what the collective raises."""

    def run(self) -> Array | None:
        """Run the call at once, where no call of this rank is ahead of it. Returns and raises the same."""


class Planned(NamedTuple):
    """A call and this rank's part in it."""

    call: Call  # the call, with every choice made
    frame: Frame  # what all ranks' parts share: rounds, regions, doorbells and kernels
    part: RankPart  # this rank's streams of instructions
    rounds: int  # how many epochs the call takes
    digest: int  # what all ranks must agree on, 16 bits
    # the part's memory, each 1-D uint8
    buffers: tuple[Bytes, ...]  # input, output, scratch, and more inputs where the part has them
    # the whole plan
    plan: Plan  # that it is a part of
    # where this rank's input and output lie in its strip of the heap, as in `Binding`
    places: tuple[int, int] = (NO_PLACE, NO_PLACE)
    verb: str = ""  # what the user called, where that is not the collective


@dataclass(frozen=True)
class Stepped(Unshared):
    """An operation for an engine that executes planned calls one by one."""

    planned: Planned
    result: Array | None  # the array that a run returns, or None
    turn: Callable[[Operation], Array | None]  # runs an operation when this rank's earlier calls have ended
    execute: Callable[[Planned], None]  # executes the call at once

    def __repr__(self) -> str:
        return f"<Operation [{self.planned.call}]>"

    def __call__(self) -> Array | None:
        return self.turn(self)

    def run(self) -> Array | None:
        self.execute(self.planned)
        return self.result


class Turns(Protocol):
    """Runs operations, and says how long they wait for peers: the `CallRunner`."""

    def within(self, timeout_s: float) -> AbstractContextManager[None]:
        """Let calls in a ``with`` block wait ``timeout_s`` seconds for peers."""

    def run_in_turn(self, operation: Operation) -> Array | None:
        """Run an operation after this rank's calls that are under way."""


@dataclass(frozen=True)
class Timed(Unshared):
    """An operation with a time of its own to wait for peers."""

    inner: Operation
    timeout_s: float  # how long it waits without progress, in seconds
    clock: Turns  # what runs it, and gives it that time

    def __repr__(self) -> str:
        return f"<{self.inner!r} within {self.timeout_s:g} s>"

    def __call__(self) -> Array | None:
        return self.clock.run_in_turn(self)

    def run(self) -> Array | None:
        with self.clock.within(self.timeout_s):
            return self.inner.run()


@dataclass(frozen=True)
class InARow(Unshared):
    operations: tuple[Operation, ...]
    result: Any  # what a run returns
    turn: Callable[[Operation], Any]  # runs an operation when this rank's earlier calls have ended

    def __repr__(self) -> str:
        return f"<{', '.join(map(repr, self.operations))} in a row>"

    def __call__(self) -> Any:
        return self.turn(self)

    def run(self) -> Any:
        """Run the calls at once, one after another, and return the result."""
        for operation in self.operations:
            operation.run()
        return self.result


class CopiesAround(Protocol):
    """What is copied before and after a call."""

    def fill(self) -> None:
        """Copy before the call."""

    def copy_back(self) -> None:
        """Copy after it."""


@dataclass(frozen=True)
class Staged(Unshared):
    """An operation on stand-ins for its arrays."""

    inner: Operation  # the operation on the stand-ins
    staging: CopiesAround  # what is copied before and after it
    result: Any  # what a run returns
    turn: Callable[[Operation], Any]  # runs an operation when this rank's earlier calls have ended

    def __repr__(self) -> str:
        return repr(self.inner)

    def __call__(self) -> Any:
        return self.turn(self)

    def run(self) -> Any:
        """Copy in, run the call at once, copy back. Returns the result, and raises what the call raises."""
        self.staging.fill()
        self.inner.run()
        self.staging.copy_back()
        return self.result
