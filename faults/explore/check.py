"""A program, searched by the strategy that was asked for; then what should hold in the end of a protocol."""

from __future__ import annotations

import time
from dataclasses import replace

from faults.explore import core
from faults.explore.automaton import RankThread
from faults.explore.partial import bounded, sampled
from faults.explore.programs import RankProtocol
from faults.explore.result import Budget, Exploration, FindingKind, SearchFinding
from faults.explore.search import explore, shown_barest
from faults.explore.strategies import PCT, Delays, Exhaustive, Preemptions, RandomWalk, Strategy
from faults.machine.schedule import Schedule
from faults.machine.steps import Machine, replay
from faults.verdict import Verdict

ENGINES = ("native", "reference")  # the search in C; the definition itself


def exhaustive(machine: Machine, budget: Budget, engine: str, *, past_hangs: bool = False) -> Exploration:
    """Every execution, by the engine that was asked for."""
    end = time.monotonic() + budget.seconds
    if engine == "reference":
        found = explore(machine, budget, past_hangs=past_hangs)
    else:
        found = core.explore(machine, budget, past_hangs=past_hangs)
        if _is_livelock(found):  # whether a loop reads an old copy for ever, only a search that follows copies can tell
            left = replace(budget, seconds=max(end - time.monotonic(), 0.0))
            found = core.explore(machine, left, past_hangs=past_hangs, lazy=False)
            reason = found.reason.replace(f"{left.seconds:g} s", f"{budget.seconds:g} s")
            found = replace(found, reason=reason)
    if _is_livelock(found):
        finding, schedule = shown_barest(machine, found.schedule, end)
        return replace(found, finding=finding, schedule=schedule)
    return found


def _is_livelock(found: Exploration) -> bool:
    return found.finding is not None and found.finding.kind == FindingKind.LIVELOCK


def search(
    machine: Machine,
    strategy: Strategy,
    budget: Budget,
    *,
    engine: str = ENGINES[0],
    runs: int = 1000,
    seed: int = 0,
) -> Exploration:
    """By any strategy. ``engine`` is for the exhaustive one, ``runs`` and ``seed`` are for random ones."""
    match strategy:
        case Exhaustive():
            return exhaustive(machine, budget, engine)
        case Preemptions() | Delays():
            return bounded(machine, strategy, budget)
        case RandomWalk() | PCT():
            return sampled(machine, strategy, budget, runs=runs, seed=seed)


def follow(machine: Machine, schedule: Schedule, budget: Budget) -> Exploration:
    """One execution, and all that can come after it. Raises ArgumentError where the program cannot do it."""
    found = explore(machine, budget, start=replay(machine, schedule)[-1])
    outcomes = {outcome: (*schedule, *rest) for outcome, rest in found.outcomes.items()}
    return replace(found, outcomes=outcomes, schedule=(*schedule, *found.schedule) if found.finding else ())


def judge_ends(protocol: RankProtocol, machine: Machine, found: Exploration) -> Exploration:
    """The same, or if nothing is wrong before, the first outcome at which the protocol's ``final`` raises."""
    if found.finding is not None or protocol.final is None:
        return found
    names = [word.name for word in machine.program.words]
    for outcome in found.outcomes:  # their schedules are worked out when they are asked for
        results = [
            thread.result(end) if end >= 0 and isinstance(thread, RankThread) else None
            for thread, end in zip(machine.program.threads, outcome.ends, strict=True)
        ]
        said = protocol.judge(dict(zip(names, outcome.memory, strict=True)), results)
        if said:
            finding = SearchFinding(FindingKind.FINAL, 0, f"in the end: {said}")
            schedule = found.outcomes[outcome]
            return replace(found, verdict=Verdict.VIOLATION, finding=finding, schedule=schedule, reason="")
    return found
