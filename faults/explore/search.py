"""Every execution, found by the definition itself: slow, literal, and what the search in C is held to.

An end that no sequence of moves reaches without nature's help is a finding: a doorbell that only an eviction would
push, a loop that reads its own cache for ever.
"""

import time
from collections import defaultdict, deque
from collections.abc import Sequence
from itertools import count

from faults.explore.result import Budget, Exploration, FinalState, FindingKind, SearchFinding
from faults.machine.program import Do
from faults.machine.schedule import VOLUNTARY, MachineMove, Schedule
from faults.machine.state import MachineState
from faults.machine.steps import Machine, replay
from faults.verdict import Verdict

UNLESS_TOLD = Budget()
STATES_TO_SHOW = 10_000
BETWEEN_LOOKS = 4096  # states, from one look at the clock to the next


def explore(machine: Machine, budget: Budget = UNLESS_TOLD, *, past_hangs: bool = False) -> Exploration:
    """Search breadth first, to the first finding, with the shortest schedule; OK only if every execution was seen."""
    return _Search(machine, budget, past_hangs).run()


class _SpentError(Exception):
    """The budget is spent; the text says which."""


class _Search:
    def __init__(self, machine: Machine, budget: Budget, past_hangs: bool) -> None:
        self.machine, self.budget, self.past_hangs = machine, budget, past_hangs
        self.came: dict[MachineState, tuple[MachineState, MachineMove] | None] = {machine.initial(): None}
        self.fairly: defaultdict[MachineState, list[MachineState]] = defaultdict(
            list
        )  # states from which a move that is not voluntary leads here
        self.ends: dict[FinalState, MachineState] = {}
        self.ended: list[MachineState] = []
        self.transitions = 0
        self.started = time.monotonic()

    def run(self) -> Exploration:
        waiting = deque(self.came)
        while waiting:
            state = waiting.popleft()
            finding = complaint(self.machine, state)
            if finding:
                return self.result(Verdict.VIOLATION, finding, state)
            moves = self.machine.enabled(state)
            if self.machine.ended(state):
                self.ended.append(state)
                self.ends.setdefault(outcome(state), state)
            elif not self.past_hangs and is_stuck(moves):
                return self.result(Verdict.VIOLATION, stuck(self.machine, state), state)
            for move in moves:
                after = self.machine.apply(state, move)
                self.transitions += 1
                if move.act not in VOLUNTARY:
                    self.fairly[after].append(state)
                if after not in self.came:
                    self.came[after] = (state, move)
                    waiting.append(after)
            spent = self.spent()
            if spent:
                return self.result(Verdict.UNKNOWN, reason=spent)
        try:
            endless = self.endless()
        except _SpentError as spent:
            return self.result(Verdict.UNKNOWN, reason=str(spent))
        if endless:
            return self.result(Verdict.VIOLATION, stuck(self.machine, endless), endless)
        return self.result(Verdict.OK)

    def endless(self) -> MachineState | None:
        """Return the first state from which threads and arrivals alone reach no end."""
        reaching, waiting = set(self.ended), list(self.ended)
        looks = count()
        while waiting:
            if next(looks) % BETWEEN_LOOKS == 0 and (spent := self.spent()):
                raise _SpentError(spent)
            for before in self.fairly[waiting.pop()]:
                if before not in reaching:
                    reaching.add(before)
                    waiting.append(before)
        return next((state for state in self.came if state not in reaching), None)

    def spent(self) -> str:
        if len(self.came) > self.budget.states:
            return f"the budget of {self.budget.states} states is spent"
        if time.monotonic() - self.started > self.budget.seconds:
            return f"the budget of {self.budget.seconds:g} s is spent"
        return ""

    def result(
        self, verdict: Verdict, finding: SearchFinding | None = None, at: MachineState | None = None, reason: str = ""
    ) -> Exploration:
        return Exploration(
            verdict,
            states=len(self.came),
            transitions=self.transitions,
            seconds=time.monotonic() - self.started,
            finding=finding,
            schedule=self.schedule(at) if at is not None else (),
            outcomes={ending: self.schedule(state) for ending, state in self.ends.items()},
            reason=reason,
        )

    def schedule(self, state: MachineState) -> Schedule:
        moves: list[MachineMove] = []
        while (before := self.came[state]) is not None:
            state, move = before
            moves.append(move)
        return tuple(reversed(moves))


def outcome(state: MachineState) -> FinalState:
    """Return the end that a state is, if it is one: registers, the pool and each thread's node."""
    return FinalState(state.registers, state.pool, state.nodes)


def complaint(machine: Machine, state: MachineState) -> SearchFinding | None:
    """Return what a thread finds wrong here: a failed assertion, or a load that would see what it must not."""
    for t, thread in enumerate(machine.program.threads):
        step = machine.step_of(state, t)
        if step is not None and step.do == Do.FAIL:
            return SearchFinding(FindingKind.ASSERTION, t, f"{thread.name}: {thread.failure(state.nodes[t])}")
        if step is not None and step.do == Do.LOAD and step.expect >= 0:
            seen = machine.visible(state, t, step.place)
            if seen != step.expect:
                word = machine.program.words[step.place].name
                return SearchFinding(
                    FindingKind.UNEXPECTED, t, f"{thread.name} sees {word} = {seen} and not {step.expect}"
                )
    return None


def running(machine: Machine, state: MachineState) -> list[int]:
    """List the threads that have neither ended nor crashed, by number."""
    return [t for t in range(len(state.nodes)) if machine.step_of(state, t) is not None]


def is_stuck(moves: Sequence[MachineMove]) -> bool:
    """Say whether only nature can move, which need not do so. ``moves`` are all enabled moves of a state."""
    return all(move.act in VOLUNTARY for move in moves)


def stuck(machine: Machine, state: MachineState) -> SearchFinding:
    """Describe a state that reaches no end without nature: a deadlock if only nature can move, else a livelock."""
    left = running(machine, state)
    who = " and ".join(machine.program.threads[t].name for t in left)
    if is_stuck(machine.enabled(state)):
        return SearchFinding(FindingKind.DEADLOCK, left[0], f"{who} cannot go on, and nothing is under way")
    return SearchFinding(FindingKind.LIVELOCK, left[0], f"{who} can go on for ever and reach no end")


def goes_round(machine: Machine, start: MachineState, budget: Budget) -> tuple[int, bool]:
    """Return the states seen, and whether threads and arrivals alone reach no end; False if the budget ran out."""
    came, waiting, began = {start}, [start], time.monotonic()
    while waiting:
        state = waiting.pop()
        moves = machine.enabled(state)
        if machine.ended(state) or is_stuck(moves) or complaint(machine, state):
            return len(came), False
        for move in moves:
            after = machine.apply(state, move)
            if move.act not in VOLUNTARY and after not in came:
                came.add(after)
                waiting.append(after)
        if len(came) > budget.states or time.monotonic() - began > budget.seconds:
            return len(came), False
    return len(came), True


def shown_barest(machine: Machine, schedule: Schedule, end: float) -> tuple[SearchFinding, Schedule]:
    """Follow a livelock until as few threads as can be are left, or the monotonic clock shows ``end`` seconds."""
    start = replay(machine, schedule)[-1]
    came: dict[MachineState, Schedule] = {start: ()}
    waiting = deque(came)
    while waiting and len(came) < STATES_TO_SHOW and time.monotonic() < end:
        state = waiting.popleft()
        for move in machine.enabled(state):
            after = machine.apply(state, move)
            if move.act not in VOLUNTARY and after not in came:
                came[after] = (*came[state], move)
                waiting.append(after)
    barest = min(came, key=lambda state: len(running(machine, state)) or len(state.nodes) + 1)
    return stuck(machine, barest), (*schedule, *came[barest])
