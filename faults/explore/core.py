"""Every execution of a program, found by the search in C (native/), a thousand times faster than by the definition.

Three reductions make the search small, and each can be switched off; without them it is the definition's, state for
state. None loses an outcome or a finding (docs/explorer.md says why):

- ``lazy``: clean copies are not followed. Of each line the versions that a copy could still be are kept, and a load
  chooses among them when it looks. So nature needs neither prefetch nor drop.
- ``checked_reads``: a load that must see one value does not branch; that any other one could be seen is the finding.
- ``ample``: where one move may be made first, because nothing that others can do before is lost by that, only it is
  (native/reduce.c, for threads without branches). Threads with branches, each alone on its host, make free steps at
  once, see what is newest, and forget what they will not look at (native/settle.c).

States are compared whole, never by a hash alone: none can be missed.

A finding comes with a schedule of the definition's moves, worked out from the reduced one (concrete.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from cxlemu.errors import ArgumentError
from faults.explore import _search
from faults.explore.concrete import Abstract, concrete
from faults.explore.result import Budget, Exploration, FinalState, SearchFinding
from faults.explore.search import UNLESS_TOLD, complaint, stuck
from faults.machine.program import Do, MachineProgram, Straight, Thread
from faults.machine.schedule import Schedule
from faults.machine.steps import Machine
from faults.verdict import Verdict

EVENTS_UNKNOWN = 64  # count of events where the steps of a thread are not known beforehand

# As enum stopped and enum trouble in native/ count.
_EXHAUSTED, _FOUND, _STATES_SPENT, _BYTES_SPENT, _SECONDS_SPENT, _IN_TROUBLE = range(6)
_TROUBLES = (
    "the search stopped",
    "there is not enough memory",
    "a line has more write-backs or versions under way than the search has room for",
    "a line has more than 65,535 states",
    "there are more than 256 different values",
    "a thread has more than 32,752 nodes",
)


def explore(
    machine: Machine,
    budget: Budget = UNLESS_TOLD,
    *,
    past_hangs: bool = False,
    lazy: bool = True,
    checked_reads: bool = True,
    ample: bool = True,
) -> Exploration:
    """Search every execution in C, as `faults.explore.search.explore` does by the definition."""
    program, began = machine.program, time.monotonic()
    try:
        stopped, trouble, states, transitions, nbytes, reduced, rounds, finding, moves, outcomes = _search.explore(
            tuple(map(_thread, program.threads)),
            tuple((word.line, word.initial) for word in program.words),
            len(program.lines),
            len(program.registers),
            _events(program),
            lazy,
            checked_reads,
            ample,
            past_hangs,
            budget.states,
            budget.nbytes,
            budget.seconds,
        )
    except ValueError as error:
        raise ArgumentError(f"this program cannot be searched: {error}") from error
    end, schedule = _finding(machine, moves, finding) if finding else (None, ())
    complete = Verdict.VIOLATION if end else Verdict.OK
    return Exploration(
        complete if stopped in (_EXHAUSTED, _FOUND) else Verdict.UNKNOWN,
        states=states,
        transitions=transitions,
        seconds=time.monotonic() - began,
        finding=end,
        schedule=schedule,
        outcomes=_Outcomes(machine, {FinalState(*outcome): path for *outcome, path in outcomes}),
        reason=_reason(stopped, trouble, budget),
        nbytes=nbytes,
        rounds=max(rounds, 1),
        reductions=(
            *(name for name, on in (("lazy", lazy), ("checked_reads", checked_reads), ("ample", reduced)) if on),
            *(("free_steps", "renewal", "retirement") if rounds else ()),
        ),
    )


def _thread(thread: Thread) -> _search.ThreadData:
    length = len(thread.steps) if isinstance(thread, Straight) and thread.first == 0 else -1
    return thread.host, thread.rank, thread.first, length, thread.step, thread.next


def _events(program: MachineProgram) -> int:
    straight = [thread for thread in program.threads if isinstance(thread, Straight)]
    events = (step.place for thread in straight for step in thread.steps if step.do in (Do.RECORD, Do.AWAIT))
    return max(1 + max(events, default=-1), EVENTS_UNKNOWN if len(straight) < len(program.threads) else 0)


def _finding(
    machine: Machine, moves: Sequence[_search.MoveData], ahead: _search.MoveData
) -> tuple[SearchFinding, Schedule]:
    """In the definition's words: what it says of the state that the schedule leads to."""
    schedule, state = concrete(machine, [Abstract(*move) for move in moves], Abstract(*ahead) if ahead[0] else None)
    return complaint(machine, state) or stuck(machine, state), schedule


def _reason(stopped: int, trouble: int, budget: Budget) -> str:
    return {
        _STATES_SPENT: f"the budget of {budget.states} states is spent",
        _BYTES_SPENT: f"the budget of {budget.nbytes} bytes is spent",
        _SECONDS_SPENT: f"the budget of {budget.seconds:g} s is spent",
        _IN_TROUBLE: _TROUBLES[trouble],
    }.get(stopped, "")


class _Outcomes(Mapping[FinalState, Schedule]):
    """Schedules are worked out when they are asked for."""

    def __init__(self, machine: Machine, paths: dict[FinalState, list[_search.MoveData]]) -> None:
        self._machine, self._paths = machine, paths

    def __getitem__(self, outcome: FinalState) -> Schedule:
        return concrete(self._machine, [Abstract(*move) for move in self._paths[outcome]])[0]

    def __iter__(self) -> Iterator[FinalState]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)
