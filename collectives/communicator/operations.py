"""Calls that are ready to run: checked, planned and bound to their arrays once, then run as often as one likes.

The native engine's are C objects that run without any Python in between; the reference engine's are Stepped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from collectives.communicator.arrays import Array
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
    """

    call: Call
    frame: Frame
    part: RankPart
    rounds: int
    digest: int
    buffers: tuple[Bytes, ...]  # input, output, scratch, and more inputs where the part has them
    plan: Plan  # that it is a part of


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
