"""A counterexample made short: moves that it does not need are left out, as delta debugging does.

Chunks of moves are tried, large ones first (Zeller and Hildebrandt: Simplifying and Isolating Failure-Inducing Input,
IEEE TSE 2002). What is not possible without them is left out as well: a line that was not stored to does not land.
"""

from __future__ import annotations

from collections.abc import Callable

from faults.machine.schedule import MachineMove, Schedule
from faults.machine.state import MachineState
from faults.machine.steps import Machine, replay

MOVES_TRIED = 20_000  # all together: about a second


def shortened(machine: Machine, schedule: Schedule, shows: Callable[[MachineState], bool]) -> Schedule:
    """Shorten a schedule that shows a finding.

    Args:
        machine: The program's machine.
        schedule: The moves that lead to the finding.
        shows: Says whether a state has the same finding.

    Returns:
        A part of the schedule, in its order, from which no single move can be left out. Of very long schedules only
        MOVES_TRIED moves are tried.
    """
    kept, states = list(schedule), replay(machine, schedule)
    left, size = MOVES_TRIED, max(len(kept) // 2, 1)
    while kept and left > 0:
        removed = False
        at = max(len(kept) - size, 0)
        while left > 0:
            tail, after = _possible(machine, states[at], kept[at + size :])
            left -= len(kept) - at
            if shows(after[-1]):
                kept[at:], states[at:] = tail, after
                removed = True
            if at == 0:
                break
            at = max(min(at, len(kept)) - size, 0)
        if not removed and size == 1:
            break
        size = size if removed else max(size // 2, 1)
        size = max(min(size, len(kept)), 1)
    return tuple(kept)


def _possible(
    machine: Machine, state: MachineState, moves: list[MachineMove]
) -> tuple[list[MachineMove], list[MachineState]]:
    """Those of the moves that can be made from here on, and the states along them, this one first."""
    made, states = [], [state]
    for move in moves:
        if move in machine.enabled(states[-1]):
            made.append(move)
            states.append(machine.apply(states[-1], move))
    return made, states
