"""From a reduced execution to one of the definition: where the copies come from that the reduced one never followed.

A load of a reduced execution says how old the version was that it saw. In the definition that version has to be in the
cache: it is fetched while the pool holds it, as late as can be, so that no flush before the load takes it out again.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from faults.machine.program import Do
from faults.machine.schedule import Act, MachineMove, Schedule
from faults.machine.state import MachineState
from faults.machine.steps import TWO_MOVES, Machine

# As enum what in native/line.h counts; any step of a thread is a 1.
_ACTS = {
    1: Act.STEP,
    16: Act.AGAIN,
    17: Act.LAND,
    18: Act.LAND_NT,
    19: Act.DROPPED,
    20: Act.EVICT,
    21: Act.DROP,
    22: Act.PREFETCH,
    23: Act.LOSE,
}
NO_CHOICE = -2  # instead of an age: no version had to be chosen; -1: the copy that was seen before


class Abstract(NamedTuple):
    what: int  # the kind of move, as the enum what in native/line.h counts
    who: int  # a thread, a rank or a host, as in a `MachineMove`
    line: int
    # count of versions of the line that were made since the one that was chosen; -1: the copy that was seen before;
    # NO_CHOICE: no version had to be chosen
    age: int
    made: int  # whether the move made a version: the pool's line changed

    @property
    def move(self) -> MachineMove:
        act = _ACTS[self.what]
        return MachineMove(act, self.who) if act in (Act.STEP, Act.AGAIN) else MachineMove(act, self.who, self.line)


def concrete(
    machine: Machine, path: Sequence[Abstract], ahead: Abstract | None = None
) -> tuple[Schedule, MachineState]:
    """Turn a path of the search in C into a schedule and its last state; ``ahead`` is possible there, and not made."""
    planned = [*path, ahead] if ahead else path
    fetches = _fetches(machine, planned)
    run = _Run(machine)
    for index, abstract in enumerate(planned):
        if abstract.move.act == Act.STEP:
            run.take_out_flushed(abstract)
        for fetch in fetches[index]:
            run.fetch(fetch)
        if index < len(path):
            run.do(abstract.move)
    if ahead is None and not machine.ended(run.state):
        run.look_in_vain()
    return tuple(run.moves), run.state


class _Fetch(NamedTuple):
    host: int
    line: int
    looks: bool  # the next move looks at the line, and so fetches it if it is absent


def _fetches(machine: Machine, path: Sequence[Abstract]) -> defaultdict[int, list[_Fetch]]:
    """List, for each move, what is fetched before it.

    A line is fetched when it is looked at or, if that comes first, when the next version is made.
    """
    fetches: defaultdict[int, list[_Fetch]] = defaultdict(list)
    made: defaultdict[int, list[int]] = defaultdict(list)  # for each line, the moves that made its versions
    for index, abstract in enumerate(path):
        if abstract.age >= 0:
            when = made[abstract.line][-abstract.age] if abstract.age else index
            fetches[when].append(_Fetch(machine.program.threads[abstract.who].host, abstract.line, when == index))
        if abstract.made:
            made[abstract.line].append(index)
    return fetches


class _Run:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.state = machine, machine.initial()
        self.moves: list[MachineMove] = []

    def do(self, move: MachineMove) -> None:
        self.state = self.machine.apply(self.state, move)
        self.moves.append(move)

    def fetch(self, fetch: _Fetch) -> None:
        if self.state.caches[fetch.host][fetch.line] is not None:
            self.do(MachineMove(Act.DROP, fetch.host, fetch.line))
        if not fetch.looks:
            self.do(MachineMove(Act.PREFETCH, fetch.host, fetch.line))

    def look_in_vain(self) -> None:
        for _ in range(2 * len(self.state.nodes)):  # a wait flushes its line, which leaves
            for move in self.machine.enabled(self.state):
                if move.act in (Act.AGAIN, Act.DROPPED) and move in self.machine.enabled(self.state):
                    self.do(move)

    def take_out_flushed(self, abstract: Abstract) -> None:
        """A reduced execution does so in the step that waits for it: a fence, of all lines or of one."""
        thread, step = self.machine.program.threads[abstract.who], self.machine.step_of(self.state, abstract.who)
        assert step is not None
        lines: Sequence[int] = ()
        ranks = {thread.rank}
        if step.do == Do.FENCE:
            lines = range(len(self.machine.program.lines))
        elif step.do in TWO_MOVES and self.state.begun[abstract.who]:
            lines = [abstract.line]
        elif step.do in (Do.STORE, Do.SIGNAL) and abstract.age == NO_CHOICE:  # onto what is still under way to the pool
            lines, ranks = [abstract.line], {thread.rank for thread in self.machine.program.threads}
        for line in lines:
            cached = self.state.caches[thread.host][line]
            if cached is not None and cached.dropping & ranks:
                self.do(MachineMove(Act.DROPPED, thread.host, line))
