"""Reads what a run has recorded as events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from cxlemu.memory.line import LINE_BYTES
from faults.programs.commands import CoherentRange
from faults.programs.every.entries import ENTRY, MOVE, MOVES, STEPS, Entry, LeftLines, alike, look_of
from faults.programs.every.events import (
    EVICT,
    FETCH,
    LAND,
    NO_LINES,
    Actor,
    EventOrder,
    Line,
    Look,
    RunEvent,
    Trace,
    comes_past,
    copied,
)
from faults.programs.every.evictions import LOOKED_AT
from faults.programs.turns import CRASH, LOSE, MOVE_TURNS, PAST, POISON, TEARS, crash_in, moves_in

_LOAD, _STORE, _RMW, _NT_STORE, _FLUSH, _FENCE, _, _YIELD = STEPS
_STORES = (_STORE, _RMW, _NT_STORE)
_THREAD_END, _PROCESS_END, _OPERATION, _DEVICE_SEEN, _INVARIANT = 12, 15, 18, 20, 21
_BEGINS, _ENDS = 1, 2
# In place of a pool, where the order of two events matters though no cache can tell: an operation that ends before
# another one begins, and lines of an invariant that arrive.
_OPERATIONS, _INVARIANTS = 254, 255
_WAITS, _STAYS, _REPEATS = 1, 3, 4  # what cycles come to: enum cycle of native/record.h
_BORN, _CYCLE, _AWAITS, _AWAITS_END, _AWAITS_OVER = 64, 65, 66, 1, 2  # record_kind and awaits, likewise
_MOVE_FETCH, _MOVE_FETCH_POSTED, _MOVE_POST, _MOVE_LAND, _MOVE_WRITE_BACK, _MOVE_DROP, _MOVE_NT, _MOVE_LOST = MOVES
_MOVE_FAILED = 42
_FLUSH_KEEP = 3
_FENCE_STORES, _FENCE_LOADS = 1, 2
_BY_NATURE = 2
_NO_HOST = -1


class RecordReader:
    """Reads what runs have recorded, one after another: of each only what comes behind what it begins with as another.

    Args:
        coherent: Where loads and stores are those of the pool itself.
        in_time: Called at each step that is read; what it raises gives the run up.
    """

    def __init__(self, coherent: Sequence[CoherentRange] = (), in_time: Callable[[], None] = lambda: None) -> None:
        self._coherent, self._in_time = coherent, in_time
        self._last: _Reader | None = None

    def read(
        self,
        record: tuple[int, bytes],
        turns: Sequence[tuple[int, int]],
        sure: int = 0,
        invariants: Sequence[frozenset[Line]] = (),
    ) -> Trace:
        """Read what a run has recorded.

        Args:
            record: How many entries were made, and those that were kept.
            turns: The turns that were taken; those of moves are one step each.
            sure: How many steps, from the first one on, are left as they are.
            invariants: Of each the lines whose bytes must fit together.

        Returns:
            The events. Those of cycles are left out behind the steps that are sure: a thread is where it was before.
        """
        count, raw = record
        owners: list[int | tuple[int, int]] = [-1]
        for thread, steps in turns:
            owners += [(thread, steps)] if thread >= MOVE_TURNS else [thread] * steps
        last = self._last
        its = self._last = _Reader(owners, raw, last, sure, self._coherent, invariants)
        return its.read(last, self._in_time, complete=len(raw) == count * ENTRY.size)


def read(
    record: tuple[int, bytes],
    turns: Sequence[tuple[int, int]],
    sure: int = 0,
    coherent: Sequence[CoherentRange] = (),
    invariants: Sequence[frozenset[Line]] = (),
) -> Trace:
    """Read what one run has recorded, as a RecordReader does that has read no other."""
    return RecordReader(coherent).read(record, turns, sure, invariants)


# What a reader knows of the run up to some step. Everything else of it is known before.
_STATE = (
    *("_flushed", "_lingering", "_past", "_stored_past", "_lands", "_leaving", "_pending", "_in_rounds", "_gone"),
    *("_left", "_ahead"),
    *("_dead", "_alive", "_waits", "_blocked", "_ordinals", "_makers", "_ends"),
    *("_now", "_order", "_enabled", "_rounds", "_vain", "_stay", "_repeats"),
)
EVENTS_MOST = 1 << 17  # whose orders take a gigabyte
_APART_LEAST, _MARKS = 16, 16  # how many steps lie between two marks, and how many marks a run has


class _Reader:
    def __init__(
        self,
        owners: list[int | tuple[int, int]],
        raw: bytes,
        last: _Reader | None,
        sure: int,
        coherent: Sequence[CoherentRange],
        invariants: Sequence[frozenset[Line]],
    ) -> None:
        self._owners, self._raw = owners, raw
        self._coherent, self._invariants = coherent, invariants
        self._as_last = alike(raw, last._raw) // ENTRY.size if last else 0  # how many entries
        self._entries: list[Entry] = last._entries[: self._as_last] if last else []
        self._entries += map(Entry._make, ENTRY.iter_unpack(raw[self._as_last * ENTRY.size :]))
        self._of: dict[int, list[Entry]] = {}  # entries of each step
        self._born, self._cycles, self._awaits = (dict[int, list[Entry]]() for _ in range(3))
        others = {_BORN: self._born, _CYCLE: self._cycles, _AWAITS: self._awaits}
        for entry in self._entries:
            others.get(entry.kind, self._of).setdefault(entry.number, []).append(entry)
        self._hosts = {entry.thread: entry.host for births in self._born.values() for entry in births}
        # A round is asked for from its first look on, as record_cycle says: steps of others may have come before.
        self._in_cycle = {
            number
            for its in self._cycles.values()
            for cycle in its
            for number in range(cycle.more + 1, cycle.number + 1)
            if cycle.what == _WAITS and cycle.line >= sure and owners[number] == cycle.thread
        }
        self._flushed: dict[int, set[Line]] = {}  # by thread, since its last fence
        self._lingering: dict[int, set[Line]] = {}  # since its last full fence
        self._past: dict[int, set[Line]] = {}  # by thread, stored to past the cache since its last fence
        self._stored_past: dict[int, int] = {}  # by the number of such a store, its event
        self._lands = 0  # such a store that arrives in the next event
        # Hosts and lines that leave since an event, their flush; until they are fetched again or stored to.
        self._leaving: dict[tuple[int, int, int], int] = {}
        self._pending: set[tuple[int, int, int]] = set()  # hosts and lines
        self._in_rounds: set[tuple[int, int, int]] = set()  # hosts and lines that only a round left out has fetched
        self._gone: set[tuple[int, int, int]] = set()  # those that only such a round has let leave
        self._left = LeftLines()
        self._ahead: dict[tuple[int, int, int], int] = {}  # hosts and lines that no step has fetched: the event
        self._crashes = crash_in([owner for owner in owners if not isinstance(owner, int)]) is not None
        self._dead: set[int] = set()  # threads of a host that has crashed
        self._alive: set[int] = set()
        self._waits: dict[int, frozenset[Line]] = {}  # threads in cycles, and the lines that they look at
        self._blocked: set[int] = set()  # threads that wait for the end of another one
        self._ordinals: dict[int, int] = {}
        self._makers: dict[Actor, int] = {}
        self._ends: dict[Actor, int] = {}  # the event that a thread has waited for
        self._stay: set[int] = set()  # threads that make no further step in this run
        self._repeats = False
        self._now: frozenset[int] | None = None  # threads that could make a step
        self._order = EventOrder([])
        self._enabled: list[frozenset[int]] = []
        self._rounds: list[tuple[int, RunEvent]] = []
        self._vain: list[tuple[Look, int]] = []
        self._marks: list[tuple[int, dict[str, Any]]] = []  # states before some steps

    @property
    def _events(self) -> list[RunEvent]:
        return self._order.events

    def read(self, last: _Reader | None, in_time: Callable[[], None], *, complete: bool) -> Trace:
        """Read the run, but what it begins with as the last one that was read."""
        apart = max(_APART_LEAST, len(self._owners) // _MARKS)
        for number in range(self._go_on_from(last) if last else 0, len(self._owners)):
            if number % LOOKED_AT == 0:
                in_time()
            if len(self._events) >= EVENTS_MOST:
                complete = False
                break
            if not self._marks or number >= self._marks[-1][0] + apart:
                self._marks.append((number, {name: copied(getattr(self, name)) for name in _STATE}))
            self._take(number)
        for host, pool, line in sorted(self._pending):  # what has not arrived may have
            its = frozenset({(pool, line)})
            arrived = its | self._together(its)
            self._events.append(RunEvent((LAND, host, pool, line), host, arrived=arrived, posted=its, stores=True))
            self._enabled.append(frozenset())
            self._order.add(self._events[-1], 0)
        return Trace(self._events, self._enabled, complete, self._rounds, self._repeats, self._vain, self._invariants)

    def _go_on_from(self, last: _Reader) -> int:
        """Take over the last state of another run up to which both are the same; returns the step that comes next."""
        if (self._hosts, self._crashes, self._invariants) != (last._hosts, last._crashes, last._invariants):
            return 0
        others = (its.number for each in (self, last) for its in each._entries[self._as_last :])  # or of earlier steps
        number = min((alike(self._owners, last._owners), *others, *self._in_cycle ^ last._in_cycle))
        self._marks = [mark for mark in last._marks if mark[0] <= number]
        begins, state = self._marks[-1]
        for name, value in state.items():
            setattr(self, name, copied(value))
        for fetch in self._ahead.values():
            self._events[fetch].look = None  # what it is for comes behind this state
        return begins

    def _take(self, number: int) -> None:
        """Take up a step, the threads that are born in it, and the cycles that end with it."""
        cycles = self._cycles.get(number, ())
        ends_early = cycles and any(cycle.what == _REPEATS for cycle in cycles)  # before the step is made
        for event in self._step(number) if number and not ends_early else ():
            if event.arrived:
                event.arrived |= self._together(event.arrived)
                event.leaves = True
            if self._now is None:
                self._now = frozenset(self._alive.difference(self._waits, self._stay, self._blocked))
            needs = self._needs(event)
            if event.waits_for and (failing := self._might_fail(event, number)):
                self._order.judge(failing)
                self._rounds.append((len(self._events) + 1, failing))
            self._events.append(event)
            self._enabled.append(self._now)
            self._order.add(event, needs)
            if event.stores and self._waits:
                self._waits.clear()
                self._now = None
            if event.ends and isinstance(event.actor, int):
                self._alive.discard(event.actor)
                self._now = None
            if self._crashes and event.crashes:
                self._dead = {thread for thread in self._alive if self._hosts[thread] == event.host}
                self._alive -= self._dead
                self._now = None
        for born in self._born.get(number, ()):
            self._now = None
            self._alive.add(born.thread)
            self._makers[born.thread] = len(self._events)
        for entry in self._awaits.get(number, ()):
            self._now = None
            (self._blocked.add if entry.what == _AWAITS_END else self._blocked.discard)(entry.thread)
            self._ends |= {entry.thread: len(self._events) - 1} if entry.what == _AWAITS_OVER else {}
        for cycle in cycles:
            steps = [index for index in range(cycle.more + 1, cycle.number + 1) if self._owners[index] == cycle.thread]
            entries = [entry for offset in steps for entry in self._of.get(offset, ())]
            look = self._look(cycle.thread, cycle.host, entries)
            self._vain += [look] if look else ()
            if cycle.what in (_STAYS, _REPEATS):
                self._stay.add(cycle.thread)
                self._repeats |= cycle.what == _REPEATS
                self._now = None
                continue
            if steps and steps[0] in self._in_cycle:
                self._rounds.append((len(self._events), self._round(cycle, entries, len(steps))))
                self._rounds[-1][1].look = look and look[0]
                self._order.judge(self._rounds[-1][1])
            loads = (entry for entry in entries if entry.kind in (_LOAD, _RMW))
            lines = frozenset(line for entry in loads for line in entry.lines())
            if cycle.what == _WAITS:
                self._waits[cycle.thread] = lines
                self._now = None
            self._order.waits(cycle.thread, lines, cycle.line)

    @staticmethod
    def _round(cycle: Entry, entries: Iterable[Entry], steps: int) -> RunEvent:
        """Write a round of a cycle as one event: the lines that it fetched and touched."""
        fetched, cached = set[Line](), set[Line]()
        for entry in entries:
            if entry.kind in (_MOVE_FETCH, _MOVE_FETCH_POSTED) and entry.cause != _BY_NATURE:
                fetched.add((entry.pool, entry.line))
            elif entry.kind <= _FLUSH and entry.pool < 8:
                cached.update(entry.lines())
        return RunEvent(cycle.thread, cycle.host, frozenset(fetched), cached=frozenset(cached), steps=steps)

    def _look(self, thread: int, host: int, entries: Iterable[Entry]) -> tuple[Look, int] | None:
        """Name a thread's only look in some steps, and what it saw, where that alone tells what its host does then."""
        alone = not self._coherent and list(self._hosts.values()).count(host) == 1
        return look_of(thread, entries) if alone else None

    def _note_look(self, look: Look, host: int) -> None:
        """Note what a fetch was for that was made ahead, if it came behind the thread's last step."""
        fetch = self._ahead.pop((host, *look[2]), None)
        if fetch is not None and all(event.actor != look[0] for event in self._events[fetch:]):
            self._events[fetch].look = look

    def _together(self, arrived: frozenset[Line]) -> frozenset[Line]:
        """Name the invariants on whose lines these are."""
        return frozenset((_INVARIANTS, k) for k, lines in enumerate(self._invariants) if lines & arrived)

    def _needs(self, event: RunEvent) -> int:
        """Find the events without which one could not be: up to its thread's birth, its line's flush, or an end."""
        flush = self._leaving.get(event.actor[1:]) if event.owed and isinstance(event.actor, tuple) else None
        store = self._stored_past.get(self._lands) if comes_past(event.actor) else None
        causes = (self._ends.pop(event.actor, None), flush, store)
        bits = next((self._events[k].before | 1 << k for k in causes if k is not None), 0)
        for k, its in enumerate(self._events[: self._makers.pop(event.actor, 0)]):
            steps = isinstance(its.actor, int) and (its.host == event.host or its.stage < event.stage)
            bits |= its.before | 1 << k if steps or its.crashes else 0
        return bits

    def _step(self, number: int) -> Iterator[RunEvent]:
        owner, entries = self._owners[number], self._of.get(number, [])
        moves = [entry for entry in entries if MOVE < entry.kind < _BORN]
        for entry in moves:
            if entry.kind == _MOVE_POST:
                self._pending.add((entry.host, entry.pool, entry.line))
            elif entry.kind in (_MOVE_LAND, _MOVE_LOST):
                self._pending.discard((entry.host, entry.pool, entry.line))
        for fault in moves_in([owner], CRASH, POISON, LOSE) if not isinstance(owner, int) else ():
            actor, host = (fault.action, fault.host, fault.pool, fault.line), fault.host
            if fault.action == CRASH:
                left = self._left.of(host)
                yield RunEvent(actor, host, arrived=left, number=number, stores=True, leaves=True)
            else:
                yield RunEvent(actor, _NO_HOST, number=number, stores=True)
            return
        if self._crashes:
            self._left.note(entries)
        for tear in moves_in([owner], *TEARS) if not isinstance(owner, int) and moves else ():
            lines = frozenset({(tear.pool, tear.line)})
            torn = RunEvent((tear.action, tear.host, tear.pool, tear.line), tear.host, number=number)
            torn.fetched = torn.arrived = torn.cached = torn.posted = lines
            torn.stores = torn.leaves = True
            yield torn
            return
        kinds = {entry.kind for entry in entries}
        last = (_MOVE_LAND, _MOVE_NT) if kinds & {_THREAD_END, _PROCESS_END} else ()  # of a thread that ends
        by_nature = [its for its in moves if its.cause == _BY_NATURE and not (its.thread == owner and its.kind in last)]
        for entry in by_nature if isinstance(owner, int) else moves:
            for move in self._move(entry, number):
                move.owed, chosen = self._leaves(move), not isinstance(owner, int)
                move.stores &= not (move.owed and chosen)
                move.owed |= not chosen
                if entry.kind == _MOVE_FETCH:
                    self._ahead[entry.host, entry.pool, entry.line] = len(self._events)
                yield move
        if not isinstance(owner, int):
            return
        if number in self._in_cycle:
            self._note_flushes(owner, entries)
            for entry in moves:  # a line that was there before leaves and comes back
                its = {(entry.host, entry.pool, entry.line)}
                if entry.kind in (_MOVE_FETCH, _MOVE_FETCH_POSTED):
                    self._in_rounds, self._gone = self._in_rounds | its - self._gone, self._gone - its
                elif entry.kind == _MOVE_DROP:
                    self._gone, self._in_rounds = self._gone | its - self._in_rounds, self._in_rounds - its
            return
        ordinal = self._ordinals[owner] = self._ordinals.get(owner, -1) + 1
        event = RunEvent(owner, self._hosts.get(owner, 0), number=number)
        posted: set[Line] = set()
        arrived: set[Line] = set()
        again: set[Line] = set()  # fetched behind a store past the cache that this load lets arrive early, or in vain
        early = _LOAD in kinds and _FENCE not in kinds
        ahead = (_MOVE_FETCH, _MOVE_FETCH_POSTED, *(() if early else (_MOVE_NT,)))
        for entry in moves:
            line = (entry.pool, entry.line)
            if entry in by_nature:
                continue
            if entry.kind == _MOVE_POST:
                posted.add(line)
            elif (entry.kind == _MOVE_FETCH and line in arrived) or entry.kind == _MOVE_FAILED:
                again.add(line)
                self._leaving.pop((entry.host, *line), None)
            elif entry.kind in ahead or (entry.kind == _MOVE_LAND and line not in posted):
                for move in self._move(entry, number):
                    move.waits_for = (owner, ordinal)
                    if entry.kind == _MOVE_FETCH and (look := self._look(owner, entry.host, entries)):
                        move.look = look[0]
                    yield move
            elif entry.kind in (_MOVE_LAND, _MOVE_WRITE_BACK, _MOVE_NT, _MOVE_LOST):
                if line not in arrived and entry.bytes:
                    event.replaced |= {(line, entry.bytes)}
                arrived.add(line)
        if self._ahead and (look := self._look(owner, event.host, entries)):
            self._note_look(look[0], event.host)
        self._fill(event, owner, entries, posted, arrived)
        event.fetched |= again
        yield event

    def _leaves(self, move: RunEvent) -> bool:
        return isinstance(move.actor, tuple) and move.actor[0] == EVICT and move.actor[1:] in self._leaving

    def _might_fail(self, event: RunEvent, number: int) -> RunEvent | None:
        """Name the step that fetches a line which was damaged, as it fails where nothing has arrived there since."""
        if not event.waits_for or not event.fetched or not any(map(self._order.damaged, event.fetched)):
            return None
        return RunEvent(event.waits_for[0], event.host, event.fetched, cached=event.cached, number=number, stores=True)

    def _move(self, entry: Entry, number: int) -> Iterator[RunEvent]:
        lines = frozenset({(entry.pool, entry.line)})
        offset = (entry.host, entry.pool, entry.line)
        past = PAST | entry.thread << 17  # native/moves.h
        whole = [(what, *offset) for what in (EVICT, LAND, past)]  # moves of which it may be a part
        if entry.kind in (_MOVE_FETCH, _MOVE_FETCH_POSTED):
            posted = lines if entry.kind == _MOVE_FETCH_POSTED else NO_LINES
            self._in_rounds.discard(offset)
            self._leaving.pop(offset, None)
            yield RunEvent((FETCH, *offset), entry.host, fetched=lines, cached=lines, posted=posted, number=number)
        elif entry.kind in (_MOVE_LAND, _MOVE_LOST, _MOVE_WRITE_BACK):
            leaves = RunEvent((LAND, *offset), entry.host, arrived=lines, posted=lines, number=number, stores=True)
            if entry.kind == _MOVE_WRITE_BACK:
                leaves.actor, leaves.cached = (EVICT, *offset), lines
            leaves.replaced = frozenset({((entry.pool, entry.line), entry.bytes)})
            yield leaves
        elif entry.kind == _MOVE_NT:
            self._lands = entry.more
            drops = lines if entry._replace(kind=_MOVE_DROP, more=0) in self._of[number] else NO_LINES
            arrives = RunEvent((past, *offset), entry.host, arrived=lines, cached=lines, posted=lines, number=number)
            arrives.stores, arrives.dropped = True, drops
            yield arrives
        elif entry.kind == _MOVE_DROP and offset in self._in_rounds:
            self._in_rounds.discard(offset)  # in the events that are left the line is not there to leave
        elif entry.kind == _MOVE_DROP and not any(
            its.number == number and its.actor in whole for its in self._events[-1:]
        ):
            yield RunEvent((EVICT, *offset), entry.host, cached=lines, number=number, stores=True)

    def _note_flushes(self, thread: int, entries: Iterable[Entry]) -> tuple[set[Line], set[Line]]:
        """Note which lines a thread has flushed; return those that its fence completes: of stores, of later loads."""
        done: set[Line] = set()
        gone: set[Line] = set()
        flushed, lingering = self._flushed.setdefault(thread, set()), self._lingering.setdefault(thread, set())
        past = self._past.setdefault(thread, set())
        for entry in entries:
            if entry.kind == _NT_STORE:
                past.update(entry.lines())
            elif entry.kind in (_LOAD, _STORE):
                done |= past.intersection(entry.lines())
            if entry.kind == _FLUSH and entry.pool < 8:
                flushed.update(entry.lines())
                lingering.update(entry.lines())
            if entry.kind == _DEVICE_SEEN:  # its thread's next fence awaits what the device has posted
                flushed |= self._flushed.pop(entry.more, set())
                lingering |= self._lingering.pop(entry.more, set())
            fences = entry.kind == _FENCE and entry.what != _FENCE_LOADS
            if fences or entry.kind in (_THREAD_END, _PROCESS_END):
                done |= past
                past.clear()
            if fences:
                done |= flushed
                flushed.clear()
                if entry.what != _FENCE_STORES:
                    gone |= lingering
                    lingering.clear()
        return done, gone

    def _fill(
        self, event: RunEvent, thread: int, entries: Iterable[Entry], posted: set[Line], arrived: set[Line]
    ) -> None:
        if self._dead:
            entries = [entry for entry in entries if entry.kind != _PROCESS_END or entry.thread not in self._dead]
        done, gone = self._note_flushes(thread, entries)
        cached, written_back, stored, fetched = done | gone, done | posted | arrived, set[Line](), set[Line]()
        torn, stores = set[Line](), bool(posted or arrived)
        for entry in entries:
            kind = entry.kind
            if kind == _MOVE_FAILED:
                event.stage, stores = entry.stage, True
            if kind >= MOVE:
                if entry.cause != _BY_NATURE:
                    cached.add((entry.pool, entry.line))
                continue
            event.stage = entry.stage
            if kind <= _FLUSH and entry.pool < 8:
                lines = entry.lines()
                cached.update(lines)
                if kind in _STORES:
                    (written_back if kind == _NT_STORE else stored).update(lines)
                    torn.update(lines if entry.what else ())
                self._note_leaving(event, entry, lines)
                if self._coherent and kind != _FLUSH:
                    (fetched if kind == _LOAD else arrived).update(filter(self._is_coherent, lines))
            if kind == _NT_STORE:
                self._stored_past[entry.number] = len(self._events)
            if kind in _STORES:
                stores = event.leaves = True
            elif kind == _OPERATION:
                event.leaves = True
                # what ends before another one begins comes before it in each order that explains them
                if entry.what == _BEGINS:
                    fetched.update((_OPERATIONS, host) for host in self._hosts)
                elif entry.what == _ENDS:
                    arrived.add((_OPERATIONS, thread))
            elif kind > _YIELD:
                fetched |= self._together(frozenset(entry.lines())) if kind == _INVARIANT else NO_LINES
                stores = True
                event.ends |= kind in (_PROCESS_END, _THREAD_END)
        event.stores = stores
        event.cached, event.posted, event.stored = frozenset(cached), frozenset(written_back), frozenset(stored)
        event.arrived, event.fetched, event.torn = frozenset(arrived), frozenset(fetched), frozenset(torn)

    def _note_leaving(self, event: RunEvent, entry: Entry, lines: Iterable[Line]) -> None:
        for line in lines:
            key = (entry.host, *line)
            if entry.kind == _FLUSH and entry.what != _FLUSH_KEEP:
                self._leaving[key] = len(self._events)
                event.flushed |= {line}
                if not entry.cause:
                    event.linger |= {line}
            elif entry.kind in (_LOAD, _STORE, _RMW) and key in self._leaving:
                event.old |= {line}
                if entry.kind != _LOAD:
                    del self._leaving[key]

    def _is_coherent(self, line: Line) -> bool:
        return any(span.pool == line[0] and span.begin <= line[1] * LINE_BYTES < span.end for span in self._coherent)
