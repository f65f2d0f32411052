"""A program, searched by the strategy that was asked for; then what should hold in the end of a protocol."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from faults.explore import core
from faults.explore.automaton import RankThread
from faults.explore.partial import bounded, sampled
from faults.explore.programs import RankProtocol
from faults.explore.result import Budget, Exploration, FinalState, FindingKind, SearchFinding
from faults.explore.search import complaint, explore, goes_round, is_stuck, outcome, running, shown_barest, stuck
from faults.explore.shorten import shortened
from faults.explore.strategies import PCT, Delays, Exhaustive, Preemptions, RandomWalk, Strategy
from faults.machine.schedule import Schedule
from faults.machine.state import MachineState
from faults.machine.steps import Machine, replay
from faults.verdict import Verdict

ENGINES = ("native", "reference")  # the search in C; the definition itself


def exhaustive(machine: Machine, budget: Budget, engine: str, *, past_hangs: bool = False) -> Exploration:
    """Search every execution.

    Args:
        machine: The program's machine.
        budget: States and seconds that may be spent.
        engine: One of ENGINES: "native", the search in C, or "reference", the definition itself.
        past_hangs: Go on after a deadlock, so that all outcomes are found, and return it in the end.

    Returns:
        What was found; OK only if every execution was seen. The schedule of a livelock goes on until as few threads as
        possible are left.

    Raises:
        ArgumentError: The program is too large for the search in C, or a rank of a protocol is not as `RankThread`
            needs it.
    """
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
    """Search executions by any strategy.

    Args:
        machine: The program's machine.
        strategy: Which executions are searched, and in which order.
        budget: States and seconds that may be spent.
        engine: The name of the search, for the exhaustive strategy.
        runs: Count of executions, for random strategies.
        seed: Where random strategies begin.

    Returns:
        What was found. The schedule of a finding is shortened unless it is a livelock; the reference engine's is
        already as short as possible.
    """
    match strategy:
        case Exhaustive():
            found = exhaustive(machine, budget, engine)
        case Preemptions() | Delays():
            found = bounded(machine, strategy, budget)
        case RandomWalk() | PCT():
            found = sampled(machine, strategy, budget, runs=runs, seed=seed)
    if found.finding is None or _is_livelock(found):
        return found
    schedule = shortened(machine, found.schedule, lambda state: _wrong(machine, state) == found.finding)
    return replace(found, schedule=schedule)


def _wrong(machine: Machine, state: MachineState) -> SearchFinding | None:
    """Return what is wrong in a state, whatever comes after it: a complaint, or that nothing can come."""
    said = complaint(machine, state)
    if said is not None or machine.ended(state) or not is_stuck(machine.enabled(state)):
        return said
    return stuck(machine, state)


def follow(machine: Machine, schedule: Schedule, budget: Budget) -> Exploration:
    """Follow one execution.

    Args:
        machine: The program's machine.
        schedule: The moves to make.
        budget: States and seconds that may be spent. Only a livelock needs them: the search then shows that threads and
            arrivals alone lead from the last state to no end.

    Returns:
        What is wrong where the schedule leads, or how it ends; UNKNOWN if it stops before the end and nothing is wrong.

    Raises:
        ArgumentError: The program cannot make these moves.
    """
    began = time.monotonic()
    states = replay(machine, schedule)
    last = states[-1]
    finding = next(filter(None, (complaint(machine, state) for state in states)), None) or _wrong(machine, last)
    ends, reason, more = machine.ended(last), "", 0
    if finding is None and not ends:
        seen, endless = goes_round(machine, last, replace(budget, seconds=budget.seconds - (time.monotonic() - began)))
        more = seen
        if endless:
            finding = stuck(machine, last)
        else:
            who = " and ".join(machine.program.threads[t].name for t in running(machine, last)) or "what is under way"
            reason = f"nothing is wrong so far, but the schedule stops before the end of {who}"
    verdict = Verdict.VIOLATION if finding else Verdict.OK if ends else Verdict.UNKNOWN
    return Exploration(
        verdict,
        states=len(states) + more,
        transitions=len(schedule),
        seconds=time.monotonic() - began,
        finding=finding,
        schedule=schedule,
        outcomes={outcome(last): schedule} if ends and finding is None else {},
        reason=reason,
        followed=True,
    )


def _says_again(machine: Machine, says: Callable[[FinalState], str | None], said: str, state: MachineState) -> bool:
    return machine.ended(state) and says(outcome(state)) == said


def judge_ends(protocol: RankProtocol, machine: Machine, found: Exploration) -> Exploration:
    """Judge the outcomes of a search by the protocol's own assertion.

    Args:
        protocol: Has the assertion, ``final``.
        machine: The machine that was searched.
        found: The search's result.

    Returns:
        ``found``, or if nothing was wrong in it, the first outcome at which ``final`` raises.
    """
    if found.finding is not None or protocol.final is None:
        return found
    names = [word.name for word in machine.program.words]

    def says(end: FinalState) -> str | None:
        results = [
            thread.result(node) if node >= 0 and isinstance(thread, RankThread) else None
            for thread, node in zip(machine.program.threads, end.ends, strict=True)
        ]
        return protocol.judge(dict(zip(names, end.memory, strict=True)), results)

    for end in found.outcomes:  # their schedules are worked out when they are asked for
        said = says(end)
        if said:
            finding = SearchFinding(FindingKind.FINAL, 0, f"in the end: {said}")
            schedule = found.outcomes[end]
            if not found.followed:
                again = partial(_says_again, machine, says, said)
                schedule = shortened(machine, schedule, again)
            return replace(found, verdict=Verdict.VIOLATION, finding=finding, schedule=schedule, reason="")
    return found
