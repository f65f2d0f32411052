"""Choices of one operator against each other on this machine, in turns: for `halving`, on every rank."""

from dataclasses import dataclass

import numpy as np

from collectives.communicator.communicator import Communicator
from collectives.fused.choice import Tiling
from collectives.sweep.fused.measure import Job, Measuring, world_of
from cxlemu.world import RankContext


@dataclass(frozen=True, slots=True)
class Heat:
    """``choices`` of a job's operator, each called ``rounds`` times, in ``limit_s`` or the first one once."""

    job: Job
    choices: tuple[Tiling, ...]
    rounds: int
    limit_s: float


def race(context: RankContext, heat: Heat) -> list[list[int]]:
    """Call choices in turns; return each call's ns, the same on all ranks. The first call of all is not counted."""
    with world_of(context, heat.job.region_bytes) as its:
        measuring = Measuring(its, heat.job)
        operations = [measuring.fused(choice) for choice in heat.choices]
        taken: list[list[int]] = [[] for _ in operations]
        begin_ns, _ = _everyone(its.control, *measuring.timed(operations[0]))
        for _ in range(heat.rounds):
            for operation, its_own in zip(operations, taken, strict=True):
                entered_ns, left_ns = _everyone(its.control, *measuring.timed(operation))
                its_own.append(left_ns - entered_ns)
                if left_ns - begin_ns > heat.limit_s * 1e9:
                    return taken
        return taken


def _everyone(control: Communicator, entered_ns: int, left_ns: int) -> tuple[int, int]:
    """When the first rank began, and the last one ended."""
    times = control.all_gather(np.array([entered_ns, left_ns], np.int64))
    return int(times[:, 0].min()), int(times[:, 1].max())
