"""Finds in an execution that ended in a deadlock the wait that is to blame."""

from __future__ import annotations

from typing import NamedTuple

from cxlemu.plan.accesses import RINGS
from faults.campaign.record import Done, Execution, Watch
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import replay
from faults.lockstep.schedule import Step


class Stuck(NamedTuple):
    """``waits`` never sees ``doorbell`` show ``epoch``; ``others`` are where other streams stand."""

    waits: Done
    doorbell: int
    epoch: int
    others: tuple[Done, ...]


def stuck(execution: Execution) -> Stuck | None:
    """None where the execution comes to its end.

    To blame is first a wait for a doorbell that nobody is going to ring; without one, ranks wait for each other.
    """
    rung: set[tuple[int, int]] = set()

    def see(world: Lockstep, number: int, done: Done | None) -> None:
        if done is not None and done.instruction.op in RINGS:
            rung.add(_rings(done))

    watch = Watch(execution, execution.program, see)
    if not watch.run(execution.world(replay(execution.moves))):
        return None
    left = watch.left()
    heads = _heads(left)
    coming = {_rings(done) for queue in left.values() for done in queue if done.instruction.op in RINGS}
    vain = [
        Stuck(done, doorbell, epoch, tuple(other for other in heads if other is not done))
        for done in heads
        for doorbell, epoch in execution.waited(done)
        if not _shown(execution, rung, doorbell, epoch)
    ]
    never = [one for one in vain if not _shown(execution, coming, one.doorbell, one.epoch)]
    return next(iter(never or vain), None)


def _rings(done: Done) -> tuple[int, int]:
    return done.instruction.arg, done.epoch + done.instruction.value


def _shown(execution: Execution, rung: set[tuple[int, int]], doorbell: int, epoch: int) -> bool:
    """Whether one of these makes the doorbell's line show ``epoch`` or more."""
    address = execution.layout.doorbell_address
    line = address(doorbell, epoch)
    return any(other >= epoch and address(which, other) == line for which, other in rung if which == doorbell)


def _heads(left: dict[Step, list[Done]]) -> list[Done]:
    """The next step of every stream whose rank is in that call: a call begins when the one before has ended."""
    heads = [queue[0] for queue in left.values() if queue]
    return [one for one in heads if one.call == min(other.call for other in heads if other.rank == one.rank)]
