"""Searches that leave executions out, by a strategy: what they find is real, and finding nothing proves nothing."""

import time
from heapq import heappop, heappush
from itertools import count
from random import Random

from faults.explore.result import Budget, Exploration, FinalState, SearchFinding
from faults.explore.search import complaint, is_stuck, outcome, stuck
from faults.explore.strategies import ScheduleBound, Walk
from faults.machine.schedule import Act, MachineMove, Schedule
from faults.machine.state import MachineState
from faults.machine.steps import Machine
from faults.verdict import Verdict

MOVES_MAX = 2_000  # moves of one random execution


class _Tally:
    def __init__(self, machine: Machine, budget: Budget) -> None:
        self.machine, self.budget = machine, budget
        self.started = time.monotonic()
        self.states = self.transitions = 0
        self.outcomes: dict[FinalState, Schedule] = {}

    def spent(self) -> bool:
        return self.states >= self.budget.states or time.monotonic() - self.started > self.budget.seconds

    def wrong(self, state: MachineState, moves: list[MachineMove]) -> SearchFinding | None:
        self.states += 1
        finding = complaint(self.machine, state)
        if finding is None and is_stuck(moves) and not self.machine.ended(state):
            return stuck(self.machine, state)
        return finding

    def result(self, reason: str = "", finding: SearchFinding | None = None, schedule: Schedule = ()) -> Exploration:
        verdict = Verdict.VIOLATION if finding else Verdict.UNKNOWN
        seconds = time.monotonic() - self.started
        return Exploration(
            verdict, self.states, self.transitions, seconds, finding, schedule, self.outcomes, "" if finding else reason
        )


Here = tuple[MachineState, MachineMove | None]  # a state, and the last move of a thread


def bounded(machine: Machine, bound: ScheduleBound, budget: Budget) -> Exploration:
    """Search executions of cost up to ``bound.limit``, cheapest first; without a violation the result is UNKNOWN."""
    tally = _Tally(machine, budget)
    start: Here = (machine.initial(), None)
    came: dict[Here, tuple[Here, MachineMove] | None] = {}
    order = count()  # so that the heap never compares states
    waiting: list[tuple[int, int, Here, tuple[Here, MachineMove] | None]] = [(0, next(order), start, None)]
    while waiting:
        spent, _, here, how = heappop(waiting)
        if here in came:
            continue
        came[here] = how
        state, last = here
        moves = machine.enabled(state)
        found = tally.wrong(state, moves)
        if found:
            return tally.result(finding=found, schedule=_schedule(came, here))
        if machine.ended(state):
            tally.outcomes.setdefault(outcome(state), _schedule(came, here))
        for move in moves:
            cost = spent + bound.cost(last, move, moves)
            if cost <= bound.limit:
                tally.transitions += 1
                after = (machine.apply(state, move), move if move.act in {Act.STEP, Act.AGAIN} else last)
                heappush(waiting, (cost, next(order), after, (here, move)))
        if tally.spent():
            return tally.result("the budget is spent")
    return tally.result(f"nothing is wrong within a bound of {bound.limit}; what costs more was not looked at")


def _schedule(came: dict[Here, tuple[Here, MachineMove] | None], here: Here) -> Schedule:
    moves: list[MachineMove] = []
    while (how := came[here]) is not None:
        here, move = how
        moves.append(move)
    return tuple(reversed(moves))


def sampled(machine: Machine, walk: Walk, budget: Budget, *, runs: int, seed: int) -> Exploration:
    """Follow executions one at a time, a pure function of the seed; without a violation the result is UNKNOWN."""
    tally = _Tally(machine, budget)
    for run in range(runs):
        walk.begin(Random(f"{seed}/{run}"))
        state, schedule, seen = machine.initial(), list[MachineMove](), set[MachineState]()
        while len(schedule) < MOVES_MAX:
            moves = machine.enabled(state)
            found = tally.wrong(state, moves)
            if found:
                return tally.result(finding=found, schedule=tuple(schedule))
            if machine.ended(state):
                tally.outcomes.setdefault(outcome(state), tuple(schedule))
                break
            been_here = state in seen
            seen.add(state)
            schedule.append(walk.choose(moves, been_here))
            state = machine.apply(state, schedule[-1])
            tally.transitions += 1
            if tally.spent():
                return tally.result(f"the budget is spent after {run} executions without a finding")
    return tally.result(f"nothing is wrong in {runs} random executions")
