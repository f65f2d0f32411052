"""A counterexample made short: moves that it does not need are left out, and what is impossible without them."""

from collections.abc import Callable, Sequence

from faults.delta import fewer
from faults.machine.schedule import MachineMove, Schedule
from faults.machine.state import MachineState
from faults.machine.steps import Machine, replay

MOVES_TRIED = 40_000  # all together: about a second


def shortened(machine: Machine, schedule: Schedule, shows: Callable[[MachineState], bool]) -> Schedule:
    """Leave moves out of a schedule while it still shows a finding; at most MOVES_TRIED moves are tried."""
    left = MOVES_TRIED
    shown, states = schedule, replay(machine, schedule)  # the shortest so far, and the state before each of its moves

    def still(moves: Sequence[MachineMove]) -> bool:
        nonlocal left, shown, states
        if left <= 0:
            return False
        pairs = enumerate(zip(moves, shown, strict=False))
        alike = next((i for i, (one, other) in pairs if one != other), min(len(moves), len(shown)))
        left -= len(moves) - alike
        made, after = _possible(machine, states[alike], moves[alike:])
        if not shows(after[-1]):
            return False
        shown, states = (*shown[:alike], *made), [*states[:alike], *after]
        return True

    fewer(schedule, still)
    return shown


def _possible(
    machine: Machine, state: MachineState, moves: Sequence[MachineMove]
) -> tuple[list[MachineMove], list[MachineState]]:
    """Those of the moves that can be made from here on, and the states along them, this one first: a line that was not
    stored to does not land."""
    made, states = [], [state]
    for move in moves:
        if machine.allows(states[-1], move):
            made.append(move)
            states.append(machine.apply(states[-1], move))
    return made, states
