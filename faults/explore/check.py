"""A program, searched by the strategy that was asked for; then what should hold in the end of a protocol."""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from faults.explore.automaton import RankThread
from faults.explore.exhaustive import ENGINES, exhaustive, is_livelock
from faults.explore.partial import bounded, sampled
from faults.explore.programs import RankProtocol
from faults.explore.result import Budget, Exploration, FinalState, FindingKind, SearchFinding
from faults.explore.search import complaint, goes_round, is_stuck, outcome, running, stuck
from faults.explore.shorten import shortened
from faults.explore.strategies import PCT, Delays, Exhaustive, Preemptions, RandomWalk, Strategy
from faults.machine.schedule import Schedule
from faults.machine.state import MachineState
from faults.machine.steps import Machine, replay
from faults.verdict import Verdict


def search(
    machine: Machine,
    strategy: Strategy,
    budget: Budget,
    *,
    engine: str = ENGINES[0],
    runs: int = 1000,
    seed: int = 0,
) -> Exploration:
    """Search executions by any strategy; the schedule of a finding is shortened, unless it is a livelock."""
    match strategy:
        case Exhaustive():
            exploration = exhaustive(machine, budget, engine)
        case Preemptions() | Delays():
            exploration = bounded(machine, strategy, budget)
        case RandomWalk() | PCT():
            exploration = sampled(machine, strategy, budget, runs=runs, seed=seed)
    if exploration.finding is None or is_livelock(exploration):
        return exploration
    schedule = shortened(machine, exploration.schedule, lambda state: _wrong(machine, state) == exploration.finding)
    return replace(exploration, schedule=schedule)


def _wrong(machine: Machine, state: MachineState) -> SearchFinding | None:
    """Return what is wrong in a state, whatever comes after it: a complaint, or that nothing can come."""
    said = complaint(machine, state)
    if said is not None or machine.ended(state) or not is_stuck(machine.enabled(state)):
        return said
    return stuck(machine, state)


def follow(machine: Machine, schedule: Schedule, budget: Budget) -> Exploration:
    """Follow one execution and say what is wrong at its end; UNKNOWN if it stops early with nothing wrong."""
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
            who = " and ".join(machine.program.threads[t].name for t in running(machine, last)) or "a write under way"
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


def judge_ends(protocol: RankProtocol, machine: Machine, exploration: Exploration) -> Exploration:
    """Return a search's result or, if that is right, the first outcome at which the protocol's ``final`` raises."""
    threads = [thread for thread in machine.program.threads if isinstance(thread, RankThread)]
    if exploration.finding is None and all(thread.step(thread.first) is None for thread in threads):
        return replace(exploration, verdict=Verdict.UNKNOWN, reason="nothing was judged: no rank yields an operation")
    if exploration.finding is not None or protocol.final is None:
        return exploration
    names = [word.name for word in machine.program.words]

    def says(end: FinalState) -> str | None:
        results = [
            thread.result(node) if node >= 0 and isinstance(thread, RankThread) else None
            for thread, node in zip(machine.program.threads, end.ends, strict=True)
        ]
        return protocol.judge(dict(zip(names, end.memory, strict=True)), results)

    for end in exploration.outcomes:  # their schedules are worked out when they are asked for
        said = says(end)
        if said:
            finding = SearchFinding(FindingKind.FINAL, 0, f"in the end: {said}")
            schedule = exploration.outcomes[end]
            if not exploration.followed:
                again = partial(_says_again, machine, says, said)
                schedule = shortened(machine, schedule, again)
            return replace(exploration, verdict=Verdict.VIOLATION, finding=finding, schedule=schedule, reason="")
    return exploration
