"""What happened in one run, as events that a search reorders.

Each step of a thread is an event. What a line does between the pool and a cache is one of its own: it is fetched before
the step that needs it, at any time since it left the cache; what was flushed arrives before the fence, at any time
since the flush. The crash of a host is one as well: it could come before or behind each step of this host that changes
what it leaves, and each step of others on a line that it may leave in several ways.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from faults.programs.commands import CoherentRange
from faults.programs.turns import CRASH, MOVE_TURNS, crash_in

LINE_BYTES = 64
EVICT, FETCH, LAND = range(3)  # enum action of cxlemu/native/adversary.h
_ENTRY = struct.Struct("<IIIHBBBBBB4x")  # record_entry of native/record.h
_LOAD, _STORE, _RMW, _NT_STORE, _FLUSH, _FENCE, _MSYNC, _YIELD = range(1, 9)
_PROCESS_START, _PROCESS_END, _THREAD_END, _OPERATION, _DEVICE_SEEN = 14, 15, 12, 18, 20
_BEGINS, _ENDS = 1, 2
# In place of a pool, where the order of two events matters though no cache can tell: an operation that ends before
# another one begins, and lines of an invariant that arrive.
_OPERATIONS, _INVARIANTS = 254, 255
_WAITS = 1  # a cycle in which nothing arrives where its thread looks: CYCLE_WAITS of native/record.h
_MOVE, _BORN, _CYCLE = 32, 64, 65
_MOVE_FETCH, _MOVE_FETCH_POSTED, _MOVE_POST, _MOVE_LAND, _MOVE_WRITE_BACK, _MOVE_DROP, _MOVE_NT, _MOVE_LOST = range(
    33, 41
)
_FLUSH_ORDERED, _FLUSH_KEEP = 2, 3
_FENCE_STORES, _FENCE_LOADS = 1, 2
_BY_NATURE = 2

Line = tuple[int, int]  # a pool and its line
Move = tuple[int, int, int, int]  # EVICT, FETCH or LAND; host, pool, line. Or CRASH; host, 0, 0
Actor = int | Move  # who makes an event: a thread, or the cache of a host with one of its lines
NO_LINES: frozenset[Line] = frozenset()


@dataclass(slots=True, eq=False)
class RunEvent:
    """A step of a thread, or a move of a line."""

    actor: Actor
    host: int
    fetched: frozenset[Line] = NO_LINES  # from the pool
    arrived: frozenset[Line] = NO_LINES  # in the pool
    cached: frozenset[Line] = NO_LINES  # touched in the host's cache
    posted: frozenset[Line] = NO_LINES  # touched among its write-backs
    stored: frozenset[Line] = NO_LINES  # made dirty
    stage: int = 0
    number: int = 0  # of its step in the run
    steps: int = 1  # of its thread: more in a round of a cycle
    stores: bool = False  # whether it lets threads look again that go round in cycles
    leaves: bool = False  # whether it changes what a crash of its host leaves
    yields: bool = False
    ends: bool = False  # its thread
    owed: bool = False  # a move that nobody chose: all threads wait, and what was flushed leaves or arrives
    waits_for: tuple[int, int] | None = None  # a move's: the thread and its event that make it where nobody has before
    before: int = 0  # events that happen before it, as bits
    races: list[int] = field(default_factory=list)  # events that could also come after it

    @property
    def crashes(self) -> bool:
        """Whether its host crashes."""
        return not isinstance(self.actor, int) and self.actor[0] == CRASH

    def same_as(self, event: RunEvent) -> bool:
        """Say whether two events of different runs are the same one."""
        return (self.actor, self.fetched, self.arrived) == (event.actor, event.fetched, event.arrived)

    def conflicts(self, event: RunEvent) -> bool:
        """Say whether it matters which of two events that could come next comes first."""
        if self.actor == event.actor:
            return True
        if self.arrived & (event.arrived | event.fetched) or self.fetched & event.arrived:
            return True
        if (self.crashes and event.ends) or (event.crashes and self.ends):
            return True  # behind the last end there is no place for a crash
        if self.host != event.host:
            return False
        if self.crashes or event.crashes:  # moves of a restarted host have the same names as before
            return (self.leaves and event.leaves) or not (isinstance(self.actor, int) or isinstance(event.actor, int))
        if isinstance(self.actor, int) and isinstance(event.actor, int):
            return True  # they share memory that is not seen
        return bool(self.cached & event.cached or self.posted & event.posted)


class Trace(NamedTuple):
    """The events of one run, in their order.

    A round of a cycle is none of them, as it changes nothing. Yet it may race with an event before it: with the bytes
    from before that, its thread might have gone on.
    """

    events: list[RunEvent]
    enabled: list[frozenset[int]]  # for each event: the threads that could have made a step in its place
    complete: bool  # whether all of the run was recorded
    rounds: Sequence[tuple[int, RunEvent]] = ()  # those of cycles, each with the number of events before it


class _Entry(NamedTuple):
    number: int
    line: int
    more: int
    thread: int
    kind: int
    what: int
    host: int
    pool: int
    cause: int
    stage: int

    def lines(self) -> list[Line]:
        return [(self.pool, self.line + k) for k in range(self.more)]


def read(
    record: tuple[int, bytes],
    turns: Sequence[tuple[int, int]],
    sure: int = 0,
    coherent: Sequence[CoherentRange] = (),
    invariants: Sequence[frozenset[Line]] = (),
) -> Trace:
    """Read what a run has recorded.

    Args:
        record: How many entries were made, and those that were kept.
        turns: The turns that were taken; those of moves are one step each.
        sure: How many steps, from the first one on, are left as they are.
        coherent: Where loads and stores are those of the pool itself.
        invariants: Of each the lines whose bytes must fit together.

    Returns:
        The events. Those of cycles are left out behind the steps that are sure: a thread is where it was before.
    """
    count, raw = record
    owners: list[int | tuple[int, int]] = [-1]
    for thread, steps in turns:
        owners += [(thread, steps)] if thread >= MOVE_TURNS else [thread] * steps
    entries = list(map(_Entry._make, _ENTRY.iter_unpack(raw)))
    return _Reader(owners, entries, len(raw) == count * _ENTRY.size, sure, coherent, invariants).read()


def holds_nt(record: tuple[int, bytes]) -> bool:
    """Say whether a run stored past the cache."""
    return any(entry[4] == _NT_STORE for entry in _ENTRY.iter_unpack(record[1]))


class _Reader:
    def __init__(
        self,
        owners: list[int | tuple[int, int]],
        entries: list[_Entry],
        complete: bool,
        sure: int,
        coherent: Sequence[CoherentRange],
        invariants: Sequence[frozenset[Line]],
    ) -> None:
        self._owners, self._complete, self._coherent, self._invariants = owners, complete, coherent, invariants
        self._of: dict[int, list[_Entry]] = {}  # entries of each step
        self._born: dict[int, list[_Entry]] = {}
        self._cycles: dict[int, list[_Entry]] = {}
        for entry in entries:
            into = {_BORN: self._born, _CYCLE: self._cycles}.get(entry.kind, self._of)
            into.setdefault(entry.number, []).append(entry)
        self._hosts = {entry.thread: entry.host for births in self._born.values() for entry in births}
        self._in_cycle = {
            number
            for its in self._cycles.values()
            for cycle in its
            for number in range(cycle.more + 1, cycle.number + 1)
            if cycle.what == _WAITS and cycle.more >= sure and owners[number] == cycle.thread
        }
        self._flushed: dict[int, set[Line]] = {}  # by thread, since its last fence
        self._lingering: dict[int, set[Line]] = {}  # since its last full fence
        self._pending: set[tuple[int, int, int]] = set()  # hosts and lines
        self._left = _LeftLines()
        self._dead: set[int] = set()  # threads of a host that has crashed
        self._events: list[RunEvent] = []
        self._order = _Order(self._events)

    def read(self) -> Trace:
        enabled: list[frozenset[int]] = []
        rounds: list[tuple[int, RunEvent]] = []
        alive: set[int] = set()
        waits: dict[int, frozenset[Line]] = {}  # threads in cycles, and the lines that they look at
        ordinals: dict[int, int] = {}
        makers: dict[int, int] = {}
        for number in range(len(self._owners)):
            for event in self._step(number, ordinals) if number else ():
                event.arrived |= self._together(event.arrived)
                event.leaves |= bool(event.arrived)
                now = frozenset(alive.difference(waits))
                needs = self._needs(event, makers)
                self._events.append(event)
                enabled.append(now)
                self._order.add(event, needs)
                if event.stores:
                    waits.clear()
                if event.ends and isinstance(event.actor, int):
                    alive.discard(event.actor)
                if event.crashes:
                    self._dead = {thread for thread in alive if self._hosts[thread] == event.host}
                    alive -= self._dead
            for born in self._born.get(number, ()):
                alive.add(born.thread)
                makers[born.thread] = len(self._events)
            for cycle in self._cycles.get(number, ()):
                steps = [
                    index for index in range(cycle.more + 1, cycle.number + 1) if self._owners[index] == cycle.thread
                ]
                entries = [entry for offset in steps for entry in self._of.get(offset, ())]
                if steps and steps[0] in self._in_cycle:
                    rounds.append((len(self._events), self._round(cycle, entries, len(steps))))
                    self._order.judge(rounds[-1][1])
                loads = (entry for entry in entries if entry.kind in (_LOAD, _RMW))
                lines = frozenset(line for entry in loads for line in entry.lines())
                if cycle.what == _WAITS:
                    waits[cycle.thread] = lines
                self._order.waits(cycle.thread, lines, cycle.more)
        for host, pool, line in sorted(self._pending):  # what has not arrived may have
            its = frozenset({(pool, line)})
            arrived = its | self._together(its)
            self._events.append(RunEvent((LAND, host, pool, line), host, arrived=arrived, posted=its, stores=True))
            enabled.append(frozenset())
            self._order.add(self._events[-1], 0)
        return Trace(self._events, enabled, self._complete, rounds)

    @staticmethod
    def _round(cycle: _Entry, entries: Iterable[_Entry], steps: int) -> RunEvent:
        """Write a round of a cycle as one event: the lines that it fetched and touched."""
        fetched, cached = set[Line](), set[Line]()
        for entry in entries:
            if entry.kind in (_MOVE_FETCH, _MOVE_FETCH_POSTED) and entry.cause != _BY_NATURE:
                fetched.add((entry.pool, entry.line))
            elif entry.kind <= _FLUSH and entry.pool < 8:
                cached.update(entry.lines())
        return RunEvent(cycle.thread, cycle.host, frozenset(fetched), cached=frozenset(cached), steps=steps)

    def _together(self, arrived: frozenset[Line]) -> frozenset[Line]:
        """Name the invariants on whose lines these are."""
        return frozenset((_INVARIANTS, k) for k, lines in enumerate(self._invariants) if lines & arrived)

    def _needs(self, event: RunEvent, makers: dict[int, int]) -> int:
        """Find the events without which a thread's first one could not be: those up to its birth, as bits."""
        bits = 0
        for k, its in enumerate(self._events[: makers.pop(event.actor, 0)] if isinstance(event.actor, int) else ()):
            steps = isinstance(its.actor, int) and (its.host == event.host or its.stage < event.stage)
            bits |= its.before | 1 << k if steps or its.crashes else 0
        return bits

    def _step(self, number: int, ordinals: dict[int, int]) -> Iterator[RunEvent]:
        owner, entries = self._owners[number], self._of.get(number, [])
        moves = [entry for entry in entries if _MOVE < entry.kind < _BORN]
        for entry in moves:
            if entry.kind == _MOVE_POST:
                self._pending.add((entry.host, entry.pool, entry.line))
            elif entry.kind in (_MOVE_LAND, _MOVE_LOST):
                self._pending.discard((entry.host, entry.pool, entry.line))
        if not isinstance(owner, int) and (crash := crash_in([owner])):
            host = crash[0]
            left = self._left.of(host)
            yield RunEvent((CRASH, host, 0, 0), host, arrived=left, number=number, stores=True, leaves=True)
            return
        self._left.note(entries)
        for entry in moves if not isinstance(owner, int) else [m for m in moves if m.cause == _BY_NATURE]:
            for move in self._move(entry, number):
                move.owed = isinstance(owner, int)
                yield move
        if not isinstance(owner, int):
            return
        if number in self._in_cycle:
            self._note_flushes(owner, entries)
            return
        ordinal = ordinals[owner] = ordinals.get(owner, -1) + 1
        event = RunEvent(owner, self._hosts.get(owner, 0), number=number)
        posted: set[Line] = set()
        arrived: set[Line] = set()
        again: set[Line] = set()  # fetched behind a store past the cache that this step has waited for
        for entry in moves:
            line = (entry.pool, entry.line)
            if entry.cause == _BY_NATURE and entry.kind != _MOVE_NT:  # a process lets its last ones go when it ends
                continue
            if entry.kind == _MOVE_POST:
                posted.add(line)
            elif entry.kind == _MOVE_FETCH and line in arrived:
                again.add(line)
            elif entry.kind in (_MOVE_FETCH, _MOVE_FETCH_POSTED) or (entry.kind == _MOVE_LAND and line not in posted):
                for move in self._move(entry, number):
                    move.waits_for = (owner, ordinal)
                    yield move
            elif entry.kind in (_MOVE_LAND, _MOVE_WRITE_BACK, _MOVE_NT, _MOVE_LOST):
                arrived.add(line)
        self._fill(event, owner, entries, posted, arrived)
        event.fetched |= again
        yield event

    def _move(self, entry: _Entry, number: int) -> Iterator[RunEvent]:
        lines = frozenset({(entry.pool, entry.line)})
        offset = (entry.host, entry.pool, entry.line)
        if entry.kind in (_MOVE_FETCH, _MOVE_FETCH_POSTED):
            posted = lines if entry.kind == _MOVE_FETCH_POSTED else NO_LINES
            yield RunEvent((FETCH, *offset), entry.host, fetched=lines, cached=lines, posted=posted, number=number)
        elif entry.kind in (_MOVE_LAND, _MOVE_LOST):
            yield RunEvent((LAND, *offset), entry.host, arrived=lines, posted=lines, number=number, stores=True)
        elif entry.kind == _MOVE_WRITE_BACK:
            yield RunEvent(
                (EVICT, *offset), entry.host, arrived=lines, cached=lines, posted=lines, number=number, stores=True
            )
        elif entry.kind == _MOVE_DROP and not (self._events and self._events[-1].number == number):
            yield RunEvent((EVICT, *offset), entry.host, cached=lines, number=number, stores=True)

    def _note_flushes(self, thread: int, entries: Iterable[_Entry]) -> tuple[set[Line], set[Line]]:
        """Note which lines a thread has flushed; return those that its fence completes: of stores, of later loads."""
        done: set[Line] = set()
        gone: set[Line] = set()
        flushed, lingering = self._flushed.setdefault(thread, set()), self._lingering.setdefault(thread, set())
        for entry in entries:
            if entry.kind == _FLUSH and entry.pool < 8:
                flushed.update(entry.lines())
                lingering.update(entry.lines())
            if entry.kind == _DEVICE_SEEN:  # its thread's next fence awaits what the device has posted
                flushed |= self._flushed.pop(entry.more, set())
                lingering |= self._lingering.pop(entry.more, set())
            if entry.kind == _FENCE and entry.what != _FENCE_LOADS:
                done |= flushed
                flushed.clear()
                if entry.what != _FENCE_STORES:
                    gone |= lingering
                    lingering.clear()
        return done, gone

    def _fill(
        self, event: RunEvent, thread: int, entries: Iterable[_Entry], posted: set[Line], arrived: set[Line]
    ) -> None:
        entries = [entry for entry in entries if entry.kind != _PROCESS_END or entry.thread not in self._dead]
        done, gone = self._note_flushes(thread, entries)
        cached, written_back, stored, fetched = done | gone, done | posted | arrived, set[Line](), set[Line]()
        for entry in entries:
            kind = entry.kind
            if kind >= _MOVE:
                if entry.cause != _BY_NATURE:
                    cached.add((entry.pool, entry.line))
                continue
            event.stage = entry.stage
            if kind <= _FLUSH and entry.pool < 8:
                lines = entry.lines()
                cached.update(lines)
                if kind in (_STORE, _RMW):
                    stored.update(lines)
                if kind == _NT_STORE:
                    written_back.update(lines)
                if self._coherent and kind != _FLUSH:
                    (fetched if kind == _LOAD else arrived).update(filter(self._is_coherent, lines))
            event.stores |= kind in (_STORE, _RMW, _NT_STORE) or (kind > _YIELD and kind != _OPERATION)
            event.leaves |= kind in (_STORE, _RMW, _NT_STORE, _OPERATION)
            event.yields |= kind == _YIELD
            event.ends |= kind in (_PROCESS_END, _THREAD_END)
        event.stores |= bool(posted or arrived)
        for entry in entries:  # what ends before another one begins comes before it in each order that explains them
            if entry.kind == _OPERATION and entry.what == _BEGINS:
                fetched |= {(_OPERATIONS, host) for host in self._hosts}
            elif entry.kind == _OPERATION and entry.what == _ENDS:
                arrived.add((_OPERATIONS, thread))
        event.cached, event.posted, event.stored = frozenset(cached), frozenset(written_back), frozenset(stored)
        event.arrived, event.fetched = frozenset(arrived), frozenset(fetched)

    def _is_coherent(self, line: Line) -> bool:
        return any(span.pool == line[0] and span.begin <= line[1] * LINE_BYTES < span.end for span in self._coherent)


class _LeftLines:
    """The lines with stores that have not arrived for sure: what a crash leaves of them is open."""

    def __init__(self) -> None:
        self._dirty: dict[tuple[int, Line], bool] = {}  # by host and line: whether all of its stores are posted
        self._past: Counter[tuple[int, Line]] = Counter()  # stores past the cache

    def note(self, entries: Iterable[_Entry]) -> None:
        for entry in entries:
            key = (entry.host, (entry.pool, entry.line))
            if entry.kind in (_STORE, _RMW):
                self._dirty |= {(entry.host, line): False for line in entry.lines()}
            elif entry.kind == _NT_STORE:
                self._past.update((entry.host, line) for line in entry.lines())
            elif entry.kind == _MOVE_POST and key in self._dirty:
                self._dirty[key] = True
            elif entry.kind == _MOVE_WRITE_BACK or (entry.kind == _MOVE_LAND and self._dirty.get(key)):
                self._dirty.pop(key, None)
            elif entry.kind == _MOVE_NT:
                self._past[key] -= 1

    def of(self, host: int) -> frozenset[Line]:
        return frozenset(line for holder, line in (*self._dirty, *+self._past) if holder == host)


class _Order:
    """Finds what happens before each event, and which events race with it."""

    def __init__(self, events: list[RunEvent]) -> None:
        self._events = events
        self._last_of: dict[Actor, int] = {}
        self._threads: dict[int, dict[int, int]] = {}  # by host: the last event of each thread
        self._arrived: dict[Line, int] = {}
        self._fetched: dict[Line, list[int]] = {}
        self._cached: dict[tuple[int, Line], int] = {}  # by host and line: the last event that touched it
        self._posted: dict[tuple[int, Line], int] = {}
        # threads that have gone round in a cycle, until what they wait for
        self._waits: dict[int, frozenset[Line]] = {}
        self._wakers: dict[int, int] = {}  # the event that was the first of what they waited for
        self._crashed: dict[int, int] = {}  # by host: its crash

    def waits(self, thread: int, lines: frozenset[Line], since: int) -> None:
        """Note that a thread goes round in a cycle since a step, looking at these lines: perhaps one has arrived."""
        self._waits[thread] = lines
        self._wakers.pop(thread, None)
        behind = takewhile(lambda k: self._events[k].number > since, range(len(self._events) - 1, -1, -1))
        if arrived := [k for k in behind if self._events[k].arrived & lines]:
            self._wakers[thread] = arrived[-1]

    def add(self, event: RunEvent, needs: int) -> None:
        """Take up the last event."""
        self.judge(event, needs)
        offset = len(self._events) - 1
        if event.crashes:
            self._crashed[event.host] = offset
        actor, thread = event.actor, isinstance(event.actor, int)
        if isinstance(actor, int):
            self._waits.pop(actor, None), self._wakers.pop(actor, None)
            self._threads.setdefault(event.host, {})[actor] = offset
        for line in event.arrived:
            self._fetched.pop(line, None)
            self._arrived[line] = offset
        for line in event.fetched:
            self._fetched.setdefault(line, []).append(offset)
        for lines, touched in ((event.cached, self._cached), (event.posted, self._posted)):
            touched.update(dict.fromkeys([(event.host, line) for line in lines], offset))
        self._last_of[actor] = offset
        for one, lines in self._waits.items():
            if one in self._wakers or one == actor:
                continue
            beside = thread and event.stores and self._host_of(one) == event.host
            if beside or event.arrived & lines or (event.stores and self._evicts(event) and event.cached & lines):
                self._wakers[one] = offset

    def judge(self, event: RunEvent, needs: int = 0) -> None:
        """Find what happens before an event that comes next, and which events race with it."""
        actor = event.actor
        firm: set[int] = set()  # what it cannot be without
        loose: set[int] = set()  # what it conflicts with
        if actor in self._last_of:
            firm.add(self._last_of[actor])
        if event.host in self._crashed:
            firm.add(self._crashed[event.host])
        if event.crashes:
            earlier = (k for k, its in enumerate(self._events) if its is not event)
            loose.update(k for k in earlier if self._events[k].host == event.host and self._events[k].leaves)
        waiter = actor if isinstance(actor, int) else event.waits_for[0] if event.waits_for else -1
        if waiter in self._wakers:
            firm.add(self._wakers[waiter])
        if isinstance(actor, int):
            loose.update([last for other, last in self._threads.get(event.host, {}).items() if other != actor])
        for line in event.fetched | event.arrived if event.fetched or event.arrived else ():
            if line in self._arrived:
                loose.add(self._arrived[line])
        for line in event.arrived:
            loose.update(self._fetched.get(line, ()))
        for lines, touched in ((event.cached, self._cached), (event.posted, self._posted)):
            for line in lines:
                last = touched.get((event.host, line))
                if last is not None:
                    other = self._events[last].actor
                    moves = [mover for mover in (actor, other) if not isinstance(mover, int)]
                    loosely = not moves or (len(moves) == 1 and moves[0][0] == EVICT)
                    (loose if loosely else firm).add(last)
        direct, beside_it = needs, needs
        for k in firm | loose:
            beside_it |= self._events[k].before
            direct |= 1 << k
        event.before = beside_it | direct
        event.races = [k for k in loose - firm if not beside_it >> k & 1]

    @staticmethod
    def _evicts(event: RunEvent) -> bool:
        return not isinstance(event.actor, int) and event.actor[0] == EVICT

    def _host_of(self, thread: int) -> int:
        return self._events[self._last_of[thread]].host
