"""What can happen: the living definition of docs/memory-model.md, literal and unreduced. Searches are held to it.

``enabled`` lists the moves of a state, ``apply`` does one. Moves that are enabled and not nature's to choose happen at
some time (a posted line arrives); those in ``schedule.VOLUNTARY`` may never happen, and nothing may rely on them.
"""

from __future__ import annotations

from collections.abc import Iterator

from cxlemu.errors import ArgumentError
from faults.machine.program import Do, Program, Step
from faults.machine.schedule import Act, Move, Schedule
from faults.machine.state import CRASHED, Cached, Posted, State, initial, put, put2

TWO_MOVES = (Do.INVALIDATE, Do.WAIT)
NOBODY: frozenset[int] = frozenset()


class Machine:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.words = [[w for w, word in enumerate(program.words) if word.line == line] for line in _lines(program)]
        self._slot = {word: slot for words in self.words for slot, word in enumerate(words)}

    def initial(self) -> State:
        return initial(self.program)

    def step_of(self, s: State, thread: int) -> Step | None:
        """The step that the thread is at; None: it has ended or crashed."""
        node = s.nodes[thread]
        return None if node == CRASHED else self.program.threads[thread].step(node)

    def ended(self, s: State) -> bool:
        """All threads have, and nothing posted is under way. Dirty lines stay where they are, or nature evicts them."""
        return all(self.step_of(s, t) is None for t in range(len(s.nodes))) and not any(map(any, (*s.posted, *s.nt)))

    def enabled(self, s: State) -> list[Move]:
        return [*self._threads_moves(s), *self._natures_moves(s)]

    def _threads_moves(self, s: State) -> Iterator[Move]:
        for t in range(len(s.nodes)):
            step = self.step_of(s, t)
            if step is not None:
                if self._can(s, t, step):
                    yield Move(Act.STEP, t)
                elif step.do == Do.WAIT and self._looked_in_vain(s, t, step):
                    yield Move(Act.AGAIN, t)

    def _can(self, s: State, t: int, step: Step) -> bool:
        thread = self.program.threads[t]
        match step.do:
            case Do.FAIL:
                return False
            case Do.STORE | Do.SIGNAL:  # a cached store waits for this rank's own non-temporal stores to the line
                return not s.nt[thread.rank][self._line(step)]
            case Do.FENCE:
                fenced = all(self._fenced(s, thread.host, thread.rank, line) for line in _lines(self.program))
                return fenced and not any(s.nt[thread.rank])
            case Do.INVALIDATE | Do.WAIT if s.begun[t]:
                fenced = self._fenced(s, thread.host, thread.rank, self._line(step))
                return fenced and (step.do == Do.INVALIDATE or self.visible(s, t, step.place) >= step.value)
            case Do.AWAIT:
                return step.place in s.events
        return True

    def _looked_in_vain(self, s: State, t: int, step: Step) -> bool:
        """A wait that saw an old word in the cache flushes the line again. An absent line is fetched with each look."""
        thread, line = self.program.threads[t], self._line(step)
        return s.caches[thread.host][line] is not None and self._fenced(s, thread.host, thread.rank, line)

    def _natures_moves(self, s: State) -> Iterator[Move]:
        crashed = {thread.host for t, thread in enumerate(self.program.threads) if s.nodes[t] == CRASHED}
        for host, lines in enumerate(s.caches):
            for line, cached in enumerate(lines):
                posted = s.posted[host][line]
                if posted:
                    yield Move(Act.LAND, host, line)
                    if host in crashed:
                        yield Move(Act.LOSE, host, line)
                if host in crashed:
                    continue
                if cached is None:
                    yield Move(Act.PREFETCH, host, line)
                    continue
                if cached.dropping:
                    yield Move(Act.DROPPED, host, line)
                if not cached.dirty:
                    yield Move(Act.DROP, host, line)
                elif not posted:
                    yield Move(Act.EVICT, host, line)
        for rank, stores in enumerate(s.nt):
            for line, pending in enumerate(stores):
                if pending and not s.posted[self._host(rank)][line]:  # what its host posted to the line goes first
                    yield Move(Act.LAND_NT, rank, line)

    def apply(self, s: State, move: Move) -> State:
        """The state after an enabled move."""
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
                if cached.dirty:  # stored to meanwhile: the flush writes that back, too
                    s = self._post(s, move.who, move.line, cached.dropping)
                return self._absent(s, move.who, move.line)
            case Act.EVICT:
                s = self._arrive(s, move.line, self._cached(s, move.who, move.line).values)
        return self._absent(s, move.who, move.line)  # EVICT, DROP

    def _step(self, s: State, t: int) -> State:
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

    # -- what steps do to memory

    def visible(self, s: State, t: int, word: int) -> int:
        """What a load by the thread sees now: its rank's own non-temporal store, the cache, or what it would fetch."""
        thread, line = self.program.threads[t], self.program.words[word].line
        for stored, value in reversed(s.nt[thread.rank][line]):
            if stored == word:
                return value
        return self._cached(self._fetch(s, thread.host, line), thread.host, line).values[self._slot[word]]

    def _fetch(self, s: State, host: int, line: int) -> State:
        """An absent line enters the cache, from this host's own newest write-back that is under way, else the pool."""
        if s.caches[host][line] is not None:
            return s
        posted = s.posted[host][line]
        values = posted[-1].values if posted else tuple(s.pool[word] for word in self.words[line])
        return s._replace(caches=put2(s.caches, host, line, Cached(values, False, NOBODY)))

    def _store(self, s: State, t: int, word: int, value: int) -> State:
        host, line = self.program.threads[t].host, self.program.words[word].line
        s = self._fetch(s, host, line)
        cached = self._cached(s, host, line)
        cached = cached._replace(values=put(cached.values, self._slot[word], value), dirty=True)
        return s._replace(caches=put2(s.caches, host, line, cached))

    def _store_nt(self, s: State, t: int, word: int, value: int) -> State:
        thread, line = self.program.threads[t], self.program.words[word].line
        cached = s.caches[thread.host][line]
        if cached is not None and cached.dirty:
            s = self._post(s, thread.host, line, frozenset({thread.rank}))
        return s._replace(nt=put2(s.nt, thread.rank, line, (*s.nt[thread.rank][line], (word, value))))

    def _land_nt(self, s: State, rank: int, line: int) -> State:
        (word, value), *rest = s.nt[rank][line]
        host = self._host(rank)
        cached = s.caches[host][line]
        if cached is not None and cached.dirty:
            s = self._arrive(s, line, cached.values)
        s = s._replace(nt=put2(s.nt, rank, line, tuple(rest)), pool=put(s.pool, word, value))
        return self._absent(s, host, line)

    def _flush(self, s: State, t: int, line: int, *, keep: bool = False) -> State:
        """Post the line if it is dirty. This rank's fence will wait for all that is under way, and that it is gone."""
        thread = self.program.threads[t]
        cached, rank = s.caches[thread.host][line], frozenset({thread.rank})
        if cached is not None and cached.dirty:
            s = self._post(s, thread.host, line, rank)
        posted = tuple(back._replace(ranks=back.ranks | rank) for back in s.posted[thread.host][line])
        s = s._replace(posted=put2(s.posted, thread.host, line, posted))
        if cached is not None and not keep:
            leaving = self._cached(s, thread.host, line)._replace(dropping=cached.dropping | rank)
            s = s._replace(caches=put2(s.caches, thread.host, line, leaving))
        return s

    def _post(self, s: State, host: int, line: int, ranks: frozenset[int]) -> State:
        """A dirty line's write-back is on its way; the line is clean."""
        cached = self._cached(s, host, line)
        posted = (*s.posted[host][line], Posted(cached.values, ranks))
        s = s._replace(posted=put2(s.posted, host, line, posted))
        return s._replace(caches=put2(s.caches, host, line, cached._replace(dirty=False)))

    def _fenced(self, s: State, host: int, rank: int, line: int) -> bool:
        cached = s.caches[host][line]
        leaving = cached is not None and rank in cached.dropping
        return not leaving and not any(rank in back.ranks for back in s.posted[host][line])

    def _arrive(self, s: State, line: int, values: tuple[int, ...]) -> State:
        for word, value in zip(self.words[line], values, strict=True):
            s = s._replace(pool=put(s.pool, word, value))
        return s

    def _absent(self, s: State, host: int, line: int) -> State:
        return s._replace(caches=put2(s.caches, host, line, None))

    def _crash(self, s: State, host: int) -> State:
        """The cache and the non-temporal stores are gone; what is posted may arrive yet."""
        lines = len(self.program.lines)
        s = s._replace(caches=put(s.caches, host, (None,) * lines))
        for t, thread in enumerate(self.program.threads):
            if thread.host == host:
                s = s._replace(nodes=put(s.nodes, t, CRASHED), begun=put(s.begun, t, False))
                s = s._replace(nt=put(s.nt, thread.rank, ((),) * lines))
        return s

    # -- small words

    def _at(self, s: State, t: int) -> Step:
        step = self.step_of(s, t)
        assert step is not None
        return step

    def _line(self, step: Step) -> int:
        return step.place if step.do == Do.INVALIDATE else self.program.words[step.place].line

    def _value(self, s: State, step: Step) -> int:
        return step.value if step.source < 0 else s.registers[step.source]

    def _cached(self, s: State, host: int, line: int) -> Cached:
        cached = s.caches[host][line]
        assert cached is not None
        return cached

    def _host(self, rank: int) -> int:
        return next(thread.host for thread in self.program.threads if thread.rank == rank)


def replay(machine: Machine, schedule: Schedule) -> list[State]:
    """The states along a schedule, the initial one first; ArgumentError where a move is not possible."""
    states = [machine.initial()]
    for at, move in enumerate(schedule):
        if move not in machine.enabled(states[-1]):
            text = " ".join(map(str, move[: 2 if move.line < 0 else 3]))
            raise ArgumentError(f"move {at} of the schedule, {text}, is not possible there")
        states.append(machine.apply(states[-1], move))
    return states


def _lines(program: Program) -> range:
    return range(len(program.lines))
