"""What can happen: the living definition of docs/memory-model.md, literal and unreduced. Searches are held to it.

``enabled`` lists the moves of a state, ``apply`` does one. Moves that are enabled and not nature's to choose happen at
some time (a posted line arrives); those in ``schedule.VOLUNTARY`` may never happen, and nothing may rely on them.
"""

from collections.abc import Iterator

from cxlemu.errors import ArgumentError
from faults.machine.memory import MachineMemory
from faults.machine.program import Do, Step
from faults.machine.schedule import Act, MachineMove, Schedule
from faults.machine.state import CRASHED, MachineState, initial, put, put2

TWO_MOVES = (Do.INVALIDATE, Do.WAIT)


class Machine(MachineMemory):
    """The abstract machine of one program. States are values: no method changes one."""

    def initial(self) -> MachineState:
        """Return the state before the first move."""
        return initial(self.program)

    def step_of(self, s: MachineState, thread: int) -> Step | None:
        """Return the step that a thread is at; None if the thread has ended or its host crashed."""
        node = s.nodes[thread]
        return None if node == CRASHED else self.program.threads[thread].step(node)

    def ended(self, s: MachineState) -> bool:
        """Say whether all threads have ended and nothing posted is under way.

        Dirty lines stay where they are, or nature evicts them.
        """
        return all(self.step_of(s, t) is None for t in range(len(s.nodes))) and not any(map(any, (*s.posted, *s.nt)))

    def enabled(self, s: MachineState) -> list[MachineMove]:
        return [*self._threads_moves(s), *self._natures_moves(s)]

    def allows(self, s: MachineState, move: MachineMove) -> bool:
        return move in (self._threads_moves(s) if move.act in (Act.STEP, Act.AGAIN) else self._natures_moves(s))

    def _threads_moves(self, s: MachineState) -> Iterator[MachineMove]:
        for t in range(len(s.nodes)):
            step = self.step_of(s, t)
            if step is not None:
                if self._can(s, t, step):
                    yield MachineMove(Act.STEP, t)
                elif step.do == Do.WAIT and self._looked_in_vain(s, t, step):
                    yield MachineMove(Act.AGAIN, t)

    def _can(self, s: MachineState, t: int, step: Step) -> bool:
        thread = self.program.threads[t]
        match step.do:
            case Do.FAIL:
                return False
            case Do.STORE | Do.SIGNAL:  # a cached store waits for this rank's own non-temporal stores to the line
                return not s.nt[thread.rank][self._line(step)]
            case Do.FENCE:
                fenced = all(self._fenced(s, thread.host, thread.rank, line) for line in self.lines)
                return fenced and not any(s.nt[thread.rank])
            case Do.INVALIDATE | Do.WAIT if s.begun[t]:
                fenced = self._fenced(s, thread.host, thread.rank, self._line(step))
                return fenced and (step.do == Do.INVALIDATE or self.visible(s, t, step.place) >= step.value)
            case Do.AWAIT:
                return step.place in s.events
        return True

    def _looked_in_vain(self, s: MachineState, t: int, step: Step) -> bool:
        """A wait that saw an old word in the cache flushes the line again. An absent line is fetched with each look."""
        thread, line = self.program.threads[t], self._line(step)
        return s.caches[thread.host][line] is not None and self._fenced(s, thread.host, thread.rank, line)

    def _natures_moves(self, s: MachineState) -> Iterator[MachineMove]:
        crashed = {thread.host for t, thread in enumerate(self.program.threads) if s.nodes[t] == CRASHED}
        for host, lines in enumerate(s.caches):
            for line, cached in enumerate(lines):
                posted = s.posted[host][line]
                if posted:
                    yield MachineMove(Act.LAND, host, line)
                    if host in crashed:
                        yield MachineMove(Act.LOSE, host, line)
                if host in crashed:
                    continue
                if cached is None:
                    yield MachineMove(Act.PREFETCH, host, line)
                    continue
                if cached.dropping:
                    yield MachineMove(Act.DROPPED, host, line)
                if not cached.dirty:
                    yield MachineMove(Act.DROP, host, line)
                elif not posted:
                    yield MachineMove(Act.EVICT, host, line)
        for rank, stores in enumerate(s.nt):
            for line, pending in enumerate(stores):
                if pending and not s.posted[self._host(rank)][line]:  # what its host posted to the line goes first
                    yield MachineMove(Act.LAND_NT, rank, line)

    def apply(self, s: MachineState, move: MachineMove) -> MachineState:
        """Return the state after a move, which must be enabled in ``s``: this is not checked."""
        match move.act:
            case Act.STEP:
                return self._step(s, move.who)
            case Act.AGAIN:
                return self._flush(s, move.who, self._line(self._at(s, move.who)))
            case Act.LAND | Act.LOSE:
                first, *rest = s.posted[move.who][move.line]
                s = s._replace(posted=put2(s.posted, move.who, move.line, tuple(rest)))
                return self._arrive(s, move.line, first.values) if move.act == Act.LAND else s
            case Act.LAND_NT:
                return self._land_nt(s, move.who, move.line)
            case Act.PREFETCH:
                return self._fetch(s, move.who, move.line)
            case Act.DROPPED:
                cached = self._cached(s, move.who, move.line)
                if cached.dirty:  # stored to meanwhile: the flush also writes that back
                    s = self._post(s, move.who, move.line, cached.dropping)
                return self._absent(s, move.who, move.line)
            case Act.EVICT:
                s = self._arrive(s, move.line, self._cached(s, move.who, move.line).values)
        return self._absent(s, move.who, move.line)  # EVICT, DROP

    def _step(self, s: MachineState, t: int) -> MachineState:
        thread, step, seen = self.program.threads[t], self._at(s, t), 0
        if step.do in TWO_MOVES and not s.begun[t]:
            return self._flush(s, t, self._line(step))._replace(begun=put(s.begun, t, True))
        match step.do:
            case Do.STORE | Do.SIGNAL:
                s = self._store(s, t, step.place, self._value(s, step))
                if step.do == Do.SIGNAL:
                    s = self._flush(s, t, self._line(step))
            case Do.STORE_NT:
                s = self._store_nt(s, t, step.place, self._value(s, step))
            case Do.FLUSH:
                s = self._flush(s, t, step.place)
            case Do.FLUSH_KEEP:
                s = self._flush(s, t, step.place, keep=True)
            case Do.LOAD:
                seen = self.visible(s, t, step.place)
                s = self._fetch(s, thread.host, self._line(step))
                if step.register >= 0:
                    s = s._replace(registers=put(s.registers, step.register, seen))
            case Do.WAIT:
                s = self._fetch(s, thread.host, self._line(step))
            case Do.RECORD:
                s = s._replace(events=s.events | {step.place})
            case Do.CRASH:
                return self._crash(s, thread.host)
        node = thread.next(s.nodes[t], seen)
        return s._replace(nodes=put(s.nodes, t, node), begun=put(s.begun, t, False))

    def _at(self, s: MachineState, t: int) -> Step:
        step = self.step_of(s, t)
        assert step is not None
        return step

    def _line(self, step: Step) -> int:
        return step.place if step.do == Do.INVALIDATE else self.program.words[step.place].line

    def _value(self, s: MachineState, step: Step) -> int:
        return step.value if step.source < 0 else s.registers[step.source]


def replay(machine: Machine, schedule: Schedule) -> list[MachineState]:
    """Follow a schedule from the initial state on; return the states along it, the initial one first."""
    states = [machine.initial()]
    for index, move in enumerate(schedule):
        if not machine.allows(states[-1], move):
            text = " ".join(map(str, move[: 2 if move.line < 0 else 3]))
            raise ArgumentError(f"move {index} of the schedule, {text}, is not possible there")
        states.append(machine.apply(states[-1], move))
    return states
