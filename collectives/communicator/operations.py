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

# What a verb gives: an array with the result (None where this rank gets none), its Handle with async_op=True, or an
# Operation where it is asked of `Communicator.persistent`.
Outcome = Any


class Operation(Protocol):
    """A persistent call, as MPI-4's ``Allreduce_init`` makes: ``op()`` runs it on the arrays it was made with."""

    def __call__(self) -> Array | None:
        """The call's result. Raises what the collective raises."""

    def run(self) -> Array | None:
        """The same, where it is known that no call of this rank is ahead of it."""


class Planned(NamedTuple):
    """A call and this rank's part in it. ``digest`` (16 bits) is what all ranks must agree on."""

    call: Call
    frame: Frame
    part: RankPart
    rounds: int
    digest: int
    buffers: tuple[Bytes, ...]  # input, output, scratch, and more inputs where the part has them
    plan: Plan  # that it is a part of


@dataclass(frozen=True)
class Stepped:
    """An operation of an engine that has no other way than to be told: execute this."""

    planned: Planned
    result: Array | None
    turn: Callable[[Operation], Array | None]
    execute: Callable[[Planned], None]

    def __call__(self) -> Array | None:
        return self.turn(self)

    def run(self) -> Array | None:
        self.execute(self.planned)
        return self.result
