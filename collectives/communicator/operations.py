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
    """A call and this rank's part in it.

    Attributes:
        call: The call, with every choice made.
        frame: What all ranks' parts share: rounds, regions, doorbells and kernels.
        part: This rank's streams of instructions.
        rounds: How many epochs the call takes.
        digest: What all ranks must agree on, 16 bits.
        buffers: The part's memory, each 1-D uint8.
        plan: The whole plan.
        places: Where this rank's input and output lie in its strip of the heap, as in `Binding`.
    """

    call: Call
    frame: Frame
    part: RankPart
    rounds: int
    digest: int
    buffers: tuple[Bytes, ...]  # input, output, scratch, and more inputs where the part has them
    plan: Plan  # that it is a part of
    places: tuple[int, int] = (NO_PLACE, NO_PLACE)


@dataclass(frozen=True)
class Stepped:
    """An operation for an engine that executes planned calls one by one.

    Attributes:
        planned: The call.
        result: The array that a run returns, or None.
        turn: Runs an operation when this rank's earlier calls have ended.
        execute: Executes the call at once.
    """

    planned: Planned
    result: Array | None
    turn: Callable[[Operation], Array | None]
    execute: Callable[[Planned], None]

    def __call__(self) -> Array | None:
        return self.turn(self)

    def run(self) -> Array | None:
        """Execute the call at once, and return its result."""
        self.execute(self.planned)
        return self.result


class Turns(Protocol):
    """Runs operations, and says how long they wait for peers: the `CallRunner`."""

    def within(self, timeout_s: float) -> AbstractContextManager[None]:
        """Let calls in a ``with`` block wait ``timeout_s`` seconds for peers."""

    def run_in_turn(self, operation: Operation) -> Array | None:
        """Run an operation after this rank's calls that are under way."""


@dataclass(frozen=True)
class Timed:
    """An operation with a time of its own to wait for peers.

    Attributes:
        inner: The operation.
        timeout_s: How long it waits without progress, in seconds.
        clock: What runs it, and gives it that time.
    """

    inner: Operation
    timeout_s: float
    clock: Turns

    def __call__(self) -> Array | None:
        return self.clock.run_in_turn(self)

    def run(self) -> Array | None:
        """Run the call at once, and return its result."""
        with self.clock.within(self.timeout_s):
            return self.inner.run()


@dataclass(frozen=True)
class InARow:
    """Several operations as one.

    Attributes:
        operations: The operations, in order.
        result: What a run returns.
        turn: Runs an operation when this rank's earlier calls have ended.
    """

    operations: tuple[Operation, ...]
    result: Any
    turn: Callable[[Operation], Any]

    def __call__(self) -> Any:
        return self.turn(self)

    def run(self) -> Any:
        """Run the calls at once, one after another, and return the result."""
        for operation in self.operations:
            operation.run()
        return self.result
