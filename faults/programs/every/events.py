"""What happened in one run, as events that a search reorders.

Each step of a thread is an event. What a line does between the pool and a cache is one of its own: it is fetched before
the step that needs it, at any time since it left the cache; what was flushed arrives before the fence, at any time
since the flush. The crash of a host is one as well: it could come before or behind each step of this host that changes
what it leaves, and each step of others on a line that it may leave in several ways. So is damage: a line that is
poisoned or a card that is lost, before or behind each fetch from there and each arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from faults.programs.turns import CRASH, LOSE, PAST, POISON, TEARS

EVICT, FETCH, LAND = range(3)  # enum action of cxlemu/native/adversary.h
EVICTIONS = frozenset((EVICT, *TEARS))

Line = tuple[int, int]  # a pool and its line
# EVICT, FETCH, LAND, PAST or one of TEARS; host, pool, line. Or CRASH, host, 0, 0; POISON, 0, pool, line; or
# LOSE, 0, pool, 0.
Move = tuple[int, int, int, int]
Actor = int | Move  # who makes an event: a thread, or the cache of a host with one of its lines
NO_LINES: frozenset[Line] = frozenset()
# A load that is the only one in a round, or that a fetch is for: its thread, what that knew before (a digest of what
# it had done and loaded), and its line.
Look = tuple[int, int, Line]


def comes_past(actor: Actor) -> bool:
    """Say whether what a thread has stored past the cache arrives: beside PAST, the move names the thread."""
    return not isinstance(actor, int) and actor[0] & 255 == PAST


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
    torn: frozenset[Line] = NO_LINES  # of these, those of which some words could arrive before others
    flushed: frozenset[Line] = NO_LINES  # to leave its cache
    dropped: frozenset[Line] = NO_LINES  # as what was stored past the cache arrives
    linger: frozenset[Line] = NO_LINES  # by a clflushopt, and where its host has gone round in no cycle
    old: frozenset[Line] = NO_LINES  # loaded or stored to though they were flushed: they might have left before
    stage: int = 0
    number: int = 0  # of its step in the run
    steps: int = 1  # of its thread: more in a round of a cycle
    stores: bool = False  # whether it lets threads look again that go round in cycles
    leaves: bool = False  # whether it changes what a crash of its host leaves
    ends: bool = False  # its thread
    owed: bool = False  # a move that is no chance: what was flushed leaves or, as all threads wait, arrives
    waits_for: tuple[int, int] | None = None  # a move's: the thread and its event that make it where nobody has before
    look: Look | None = None  # of a fetch, what it is for; of a round, its only load
    replaced: frozenset[tuple[Line, int]] = frozenset()  # digests of what the pool held of the lines that arrive
    before: int = 0  # events that happen before it, as bits
    apart: int = 0  # those before its look, apart from what has arrived there
    races: list[int] = field(default_factory=list)  # events that could also come after it

    @property
    def crashes(self) -> bool:
        """Whether its host crashes."""
        return not isinstance(self.actor, int) and self.actor[0] == CRASH

    @property
    def damages(self) -> bool:
        """Whether it poisons a line, or loses a card."""
        return not isinstance(self.actor, int) and self.actor[0] in (POISON, LOSE)

    @property
    def by_chance(self) -> bool:
        """Whether it need not happen, as a crash, damage or an eviction that nobody waits for."""
        return (
            not isinstance(self.actor, int)
            and self.actor[0] not in (FETCH, LAND)
            and not self.owed
            and not comes_past(self.actor)
        )

    @property
    def evicts(self) -> bool:
        """Whether a line leaves a cache by chance, before a store or in its middle."""
        return not isinstance(self.actor, int) and self.actor[0] in EVICTIONS and not self.owed

    @property
    def tears(self) -> bool:
        """Whether a line leaves a cache in the middle of a store."""
        return not isinstance(self.actor, int) and self.actor[0] in TEARS

    def breaks(self, lines: Iterable[Line]) -> bool:
        """Say whether it damages any of these lines."""
        if isinstance(self.actor, int) or self.actor[0] not in (POISON, LOSE):
            return False
        what, _, pool, line = self.actor
        return any(its[0] == pool and (what == LOSE or its[1] == line) for its in lines)

    def same_as(self, event: RunEvent) -> bool:
        """Say whether two events of different runs are the same one."""
        return self is event or (
            (self.actor, self.fetched, self.arrived) == (event.actor, event.fetched, event.arrived)
        )

    def conflicts(self, event: RunEvent) -> bool:
        """Say whether it matters which of two events that could come next comes first."""
        if self.actor == event.actor:
            return True
        if self.arrived & (event.arrived | event.fetched) or self.fetched & event.arrived:
            return True
        if self.breaks(event.fetched | event.arrived) or event.breaks(self.fetched | self.arrived):
            return True
        if (self.crashes and event.ends) or (event.crashes and self.ends):
            return True  # behind the last end there is no place for a crash
        if self.host != event.host:
            return False
        if (self.tears and isinstance(event.actor, int)) or (event.tears and isinstance(self.actor, int)):
            return True  # it comes before its thread's next step
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
    repeats: bool = False  # whether the run has ended since what follows is that of another one
    vain: Sequence[tuple[Look, int]] = ()  # looks after which a thread was where it was before, and what they saw
    invariants: Sequence[frozenset[Line]] = ()  # of each the lines that it reads whenever one of them arrives


def copied(value: Any) -> Any:
    """Copy a state, whose parts are containers; events and all that is frozen stay the same ones."""
    kind = type(value)
    if kind is dict or kind is Counter:
        return kind({key: its if type(its) is int else copied(its) for key, its in value.items()})
    if kind is set or kind is list:
        return kind(value)
    if hasattr(value, "__dict__"):
        other = object.__new__(kind)
        vars(other).update({name: copied(its) for name, its in vars(value).items()})
        return other
    return value


class EventOrder:
    """Finds what happens before each event, and which events race with it."""

    def __init__(self, events: list[RunEvent]) -> None:
        self.events = events
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
        self._torn: dict[int, int] = {}  # by host: the last line that left its cache in the middle of a store
        self._damages: list[int] = []

    def waits(self, thread: int, lines: frozenset[Line], since: int) -> None:
        """Note that a thread goes round in a cycle since a step, looking at these lines: perhaps one has arrived."""
        self._waits[thread] = lines
        self._wakers.pop(thread, None)
        behind = takewhile(lambda k: self.events[k].number > since, range(len(self.events) - 1, -1, -1))
        if arrived := [k for k in behind if self.events[k].arrived & lines]:
            self._wakers[thread] = arrived[-1]

    def add(self, event: RunEvent, needs: int) -> None:
        """Take up the last event."""
        self.judge(event, needs)
        offset = len(self.events) - 1
        actor, host, arrived = event.actor, event.host, event.arrived
        thread = isinstance(actor, int)
        if isinstance(actor, int):
            self._waits.pop(actor, None), self._wakers.pop(actor, None)
            self._threads.setdefault(host, {})[actor] = offset
        elif event.crashes:
            self._crashed[host] = offset
        elif event.damages:
            self._damages.append(offset)
        elif event.tears:
            self._torn[host] = offset
        for line in arrived:
            self._fetched.pop(line, None)
            self._arrived[line] = offset
        for line in event.fetched:
            self._fetched.setdefault(line, []).append(offset)
        for line in event.cached:
            self._cached[host, line] = offset
        for line in event.posted:
            self._posted[host, line] = offset
        self._last_of[actor] = offset
        for one, lines in self._waits.items():
            if one in self._wakers or one == actor:
                continue
            beside = thread and event.stores and self._host_of(one) == host
            if (
                beside
                or arrived & lines
                or event.breaks(lines)
                or (event.stores and self._evicts(event) and event.cached & lines)
            ):
                self._wakers[one] = offset

    def judge(self, event: RunEvent, needs: int = 0) -> None:
        """Find what happens before an event that comes next, and which events race with it."""
        events, actor, host = self.events, event.actor, event.host
        firm: set[int] = set()  # what it cannot be without
        loose: set[int] = set()  # what it conflicts with
        if (last := self._last_of.get(actor)) is not None:
            firm.add(last)
        if host in self._crashed:
            firm.add(self._crashed[host])
        thread = isinstance(actor, int)
        if thread and host in self._torn:
            firm.add(self._torn[host])
        if event.ends:
            firm.update(self._crashed.values())
        if not isinstance(actor, int) and actor[0] in (CRASH, POISON, LOSE):
            earlier = [(k, its) for k, its in enumerate(events) if its is not event]
            if event.crashes:
                loose.update(k for k, its in earlier if its.host == host and its.leaves)
            loose.update(k for k, its in earlier if event.breaks(its.fetched | its.arrived))
        if self._damages:
            loose.update([k for k in self._damages if events[k].breaks(event.fetched | event.arrived)])
        if self._wakers:
            waiter = actor if isinstance(actor, int) else event.waits_for[0] if event.waits_for else -1
            if waiter in self._wakers:
                firm.add(self._wakers[waiter])
        if thread:
            threads = self._threads.get(host, {})
            if len(threads) > 1 or actor not in threads:
                loose.update([last for other, last in threads.items() if other != actor])
        news = {self._arrived[line] for line in event.fetched if line in self._arrived}
        loose |= news
        for line in event.arrived:
            if line in self._arrived:
                loose.add(self._arrived[line])
            loose.update(self._fetched.get(line, ()))
        for lines, latest in ((event.cached, self._cached), (event.posted, self._posted)):
            for line in lines:
                last = latest.get((host, line))
                if last is not None and (other := events[last]).actor != actor:  # else it comes before the actor's last
                    loosely = self._loosely(actor, other, line, cached=latest is self._cached)
                    (loose if loosely else firm).add(last)
        direct, beside_it = needs, needs
        for k in firm | loose:
            beside_it |= events[k].before
            direct |= 1 << k
        if event.fetched:
            event.apart = needs
            for k in firm | (loose - news):
                event.apart |= events[k].before | 1 << k
        event.before = beside_it | direct
        event.races = [k for k in loose - firm if not beside_it >> k & 1]

    @staticmethod
    def _loosely(one: Actor, before: RunEvent, line: Line, *, cached: bool) -> bool:
        """Say whether an event and one before it that touches the same line of its cache could come in either order.

        A flush leaves a line there up to its fence: fetched before, the line may still be old behind the flush.
        What is stored past the cache arrives behind that step, and what its host has posted; then steps may need it.
        """
        other = before.actor
        if comes_past(one):
            return isinstance(other, int) or comes_past(other) or other[0] not in (EVICT, LAND)
        if comes_past(other):
            return cached and line not in before.dropped
        if isinstance(one, int):
            return isinstance(other, int) or other[0] == EVICT
        return isinstance(other, int) and (one[0] == EVICT or (one[0] == FETCH and line in before.linger))

    def damaged(self, line: Line) -> bool:
        """Say whether the line was damaged at any time."""
        return any(self.events[k].breaks([line]) for k in self._damages)

    @staticmethod
    def _evicts(event: RunEvent) -> bool:
        return not isinstance(event.actor, int) and event.actor[0] == EVICT

    def _host_of(self, thread: int) -> int:
        return self.events[self._last_of[thread]].host
