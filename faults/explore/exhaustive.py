"""Every execution of a program, by the engine that was asked for, and the barest way to a livelock."""

import time
from dataclasses import replace

from faults.explore import core
from faults.explore.result import Budget, Exploration, FindingKind
from faults.explore.search import explore, shown_barest
from faults.machine.steps import Machine

ENGINES = ("native", "reference")  # the search in C; the definition itself


def exhaustive(machine: Machine, budget: Budget, engine: str, *, past_hangs: bool = False) -> Exploration:
    """Search every execution; OK only if all were seen. ``past_hangs``: return a deadlock in the end, not at once."""
    end = time.monotonic() + budget.seconds
    if engine == "reference":
        found = explore(machine, budget, past_hangs=past_hangs)
    else:
        found = core.explore(machine, budget, past_hangs=past_hangs)
        if is_livelock(found):  # whether a loop reads an old copy for ever, only a search that follows copies can tell
            left = replace(budget, seconds=max(end - time.monotonic(), 0.0))
            found = core.explore(machine, left, past_hangs=past_hangs, lazy=False)
            reason = found.reason.replace(f"{left.seconds:g} s", f"{budget.seconds:g} s")
            found = replace(found, reason=reason)
    if is_livelock(found):
        finding, schedule = shown_barest(machine, found.schedule, end)
        return replace(found, finding=finding, schedule=schedule)
    return found


def is_livelock(exploration: Exploration) -> bool:
    return exploration.finding is not None and exploration.finding.kind == FindingKind.LIVELOCK
