"""A search over the executions of a program, one run for each: the order of events matters only where they conflict.

Wakeup trees and sleep sets (Abdulla, Aronis, Jonsson, Sagonas: Optimal Dynamic Partial Order Reduction, POPL 2014): a
run shows which of its events race; for each race some run is made in which the later event comes first, behind all that
it needs. What has been tried at a place sleeps behind it until an event that conflicts with it; a branch of the tree
wakes all that sleeps. Only where hosts poll does a run come to an execution that another one has shown. With a bound on
preemptions there are source sets in place of trees, only moves of lines sleep, and a race is also turned round where
its thread's turn began (Coons, Musuvathi, McKinley: Bounded Partial-Order Reduction, OOPSLA 2013).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from faults.programs.every.events import EVICT, FETCH, Actor, Look, Move, RunEvent, Trace, comes_past
from faults.programs.every.evictions import Chance, examined, is_seen_by_a_third, noticed
from faults.programs.turns import MOVE_TURNS, TEARS, steps_of

Turns = tuple[tuple[int, int], ...]
Ran = TypeVar("Ran")


@dataclass(slots=True, eq=False)
class Branch:
    """What is to be tried at a place, and then behind it: the first of the branches there."""

    actor: Actor
    event: RunEvent | None = None  # None: whatever the actor does there
    behind: list[Branch] = field(default_factory=list)
    turns: Turns | None = None  # of the run that tries it, once they were asked for

    def first_way(self) -> list[RunEvent]:
        """List the events up to the end of the first branch."""
        way: list[RunEvent] = []
        branches = [self]
        while branches and (event := branches[0].event) is not None:
            way.append(event)
            branches = branches[0].behind
        return way


@dataclass(slots=True)
class TriedPlace:
    """A place in an execution: what was done there, and what is still to be tried instead."""

    event: RunEvent | None  # what this execution does there; None: nothing new
    enabled: frozenset[int]
    asleep: dict[Actor, RunEvent]
    thread: int | None  # the one whose turn it was before
    switches: bool  # whether its turn had ended there without a preemption
    preemptions: int  # up to here
    evictions: int
    done: dict[Actor, RunEvent | None] = field(default_factory=dict)
    todo: list[Branch] = field(default_factory=list)
    spare: list[Actor] = field(default_factory=list)  # to be tried if all before turn out to sleep

    def add(self, actor: Actor) -> None:
        """Try this as well, unless it was."""
        if actor not in self.done and not self.does(actor) and all(branch.actor != actor for branch in self.todo):
            self.todo.append(Branch(actor))

    def does(self, actor: Actor) -> bool:
        return self.event is not None and self.event.actor == actor

    def cost(self, actor: Actor) -> int:
        """Count the preemptions up to here and by this."""
        forced = self.thread in (None, actor) or self.switches or self.thread not in self.enabled
        return self.preemptions + (isinstance(actor, int) and not forced)


class EverySearch(Generic[Ran]):
    """All executions of a program, as runs that are made one after another.

    Args:
        run: Makes the run that follows these turns, and goes on as it likes. Returns it, and its trace, in which as
            many steps are left as they are as it is told.
        preemptions: How often a turn may end before a step that its thread could make; None: as often as possible.
        evictions: How many lines may leave a cache that no instruction drops.
        reduced: Whether executions that differ in the order of independent events count as one.
        in_time: Called at each event of a run; what it raises gives the run up, which is then to be made again.
    """

    def __init__(
        self,
        run: Callable[[Turns, int], tuple[Ran, Trace]],
        *,
        preemptions: int | None = None,
        evictions: int = 0,
        reduced: bool = True,
        in_time: Callable[[], None] = lambda: None,
    ) -> None:
        self._run, self._bound, self._evictions, self._reduced = run, preemptions, evictions, reduced
        self._in_time = in_time
        self.places: list[TriedPlace] = []
        self._evicted = 0  # how many events lie before all evictions that are still to be tried
        self._vain: dict[Look, set[int]] = {}  # looks that change nothing, and what they see then
        self.executions = 0  # those that differ
        self.faults = 0  # executions in which something breaks
        self.repeated = 0  # runs that showed nothing new
        self.strayed = (
            0  # runs that did not do what they were told: the program depends on what the search does not see
        )
        self.incomplete = 0  # runs whose record was cut off

    def all(self) -> Iterator[Ran]:
        """Make every run, the one without any choice first."""
        if not self.executions:
            yield self._explore(None)
        while self.places:
            self._again()
            left = self._left(self.places[-1])
            if left:
                yield self._explore(left[0])
            else:
                self.places.pop()

    def once(self, turns: Turns) -> Ran:
        """Make the run that begins with these turns, which is none of the search."""
        return self._run(turns, 0)[0]

    def state(self) -> dict[str, Any]:
        """Return what another call of the search needs beside the places, as plain data."""
        return {}

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on from the state that an earlier call has returned."""

    def _again(self) -> None:
        """Let the last place be tried again with the event that it has, if that may come out otherwise."""

    def open_places(self) -> int:
        """Count the places in the last execution at which something is still to be tried."""
        return sum(bool(self._left(place)) for place in self.places if place.todo)

    def following(self) -> Turns | None:
        """Write the turns of the run behind the one that is being made, if that shows nothing more to try."""
        for k in reversed(range(len(self.places))):
            place = self.places[k]
            left = self._left(place)[k == len(self.places) - 1 :]
            if left:
                return self._turns(k, left[0])
        return None

    def _turns(self, offset: int, branch: Branch) -> Turns:
        """Write the turns that lead to a place, and then along a branch, which is only ever one of this place."""
        if branch.turns is None:
            lead = branch.first_way()
            branch.turns = turns_of([*_events_of(self.places[:offset]), *lead], None if lead else branch.actor)
        return branch.turns

    def _left(self, place: TriedPlace) -> list[Branch]:
        return place.todo and [
            branch
            for branch in place.todo
            if branch.actor not in place.asleep
            and (self._bound is None or place.cost(branch.actor) <= self._bound)
            and place.evictions + sum(its.evicts for its in branch.first_way()) <= self._evictions
        ]

    def _explore(self, branch: Branch | None) -> Ran:
        """Run the events up to the last place, then a branch there, and go on."""
        known = len(self.places)
        try:
            return self._explored(branch)
        except BaseException:
            del self.places[known:]
            if branch is not None and branch not in (place := self.places[-1]).todo:
                place.todo.insert(0, branch)
                place.event = None
            raise

    def _explored(self, branch: Branch | None) -> Ran:
        """Do so; no place changes before the run's end."""
        begun, lead = _events_of(self.places[:-1]), branch.first_way() if branch else []
        self._evicted = min(self._evicted, len(begun))
        turns = self._turns(len(self.places) - 1, branch) if branch else ()
        result, trace = self._run(turns, steps_of(turns))
        self.incomplete += not trace.complete
        for look, saw in trace.vain:
            self._vain.setdefault(look, set()).add(saw)
        events, offset = trace.events, len(begun)
        if branch is not None:
            place, chosen = self.places[-1], branch.actor
            if place.event is not None:
                place.done[place.event.actor] = place.event
            place.event, place.done[chosen] = None, None
            place.todo.remove(branch)
            made = {event.actor for event in events[offset:]}
            ways = [its.actor for its in lead if isinstance(its.actor, tuple) and its.actor[0] in (EVICT, *TEARS)]
            gone = not made.issuperset(ways)  # of a line that left where all threads waited, which they do not here
            same = all(map(RunEvent.same_as, begun, events))
            if gone or not same or not _begins(events, offset, chosen):
                ended = same and trace.repeats and len(events) == offset  # before the step that was chosen
                cannot = gone or ended or _may_be_impossible(chosen, begun)
                self.strayed += not cannot
                self.repeated += cannot
                return result
            spare, place.spare = place.spare, []
            if events[offset].actor in place.asleep or place.done.get(events[offset].actor) is not None:
                place.todo += map(Branch, spare[:1])
                place.spare = spare[1:]
                self.repeated += 1
                return result
            place.done.pop(events[offset].actor, None)
            place.event = events[offset]
            self._turn_round(trace, offset)
            offset += 1
        ahead = branch.behind if branch else []
        for k in range(offset, len(events)):
            place = self._next_place(trace, k)
            self.places.append(place)
            if ahead:
                (first, *place.todo), ahead = ahead, ahead[0].behind
                if not _begins(events, k, first.actor):
                    self.strayed += not _may_be_impossible(first.actor, events[:k])
                    ahead = []
                elif events[k].actor != first.actor:  # a move that its step needs
                    ahead = [first]
            if events[k].actor in place.asleep:
                place.event = None
                place.spare = [actor for actor in self._possible(trace, k) if actor not in place.asleep]
                place.todo += map(Branch, place.spare[:1])
                place.spare = place.spare[1:]
                self.repeated += 1
                return result
            self._turn_round(trace, k)
        self._try_unasked(trace)
        if not self._reduced:
            self._branch(trace)
        self.executions += not trace.repeats
        self.repeated += trace.repeats
        return result

    def _next_place(self, trace: Trace, k: int) -> TriedPlace:
        """Make the place of an event that the run went on with by itself."""
        event, enabled = trace.events[k], trace.enabled[k]
        if not self.places:
            return TriedPlace(event, enabled, {}, None, True, 0, 0)
        last = self.places[-1]
        assert last.event is not None
        asleep: dict[Actor, RunEvent] = {}
        if self._reduced and (last.asleep or last.done):
            known = last.asleep | {actor: step for actor, step in last.done.items() if step is not None}
            asleep = {
                actor: step
                for actor, step in known.items()
                if actor != last.event.actor and not step.conflicts(last.event)
                if self._bound is None or not isinstance(actor, int)  # a move is no preemption, wherever it comes
            }
        stays = last.event.actor
        thread = stays if isinstance(stays, int) else last.thread
        switches = isinstance(event.actor, int) and event.actor != thread
        evictions = last.evictions + last.event.evicts
        return TriedPlace(event, enabled, asleep, thread, switches, last.cost(stays), evictions)

    # --- what else to try --------------------------------------------------------------------------------------------

    def _turn_round(self, trace: Trace, offset: int) -> None:
        """For each event that races with this one, or with a round of a cycle behind it, try what comes before that."""
        self._in_time()
        if not self._reduced:
            return
        self._let_come_first(trace, offset, trace.events[offset])
        for behind, place in trace.rounds:
            if behind == offset + 1:
                self._let_come_first(trace, behind, place)

    def _let_come_first(self, trace: Trace, offset: int, event: RunEvent) -> None:
        events, raced = trace.events, event
        for behind in raced.races:
            event, first = raced, self._before_vain_looks(events, behind, offset, raced)
            if first is None:
                continue
            if first != behind:
                event = replace(raced, before=raced.apart)
            between = [k for k in range(first + 1, offset) if not events[k].before >> first & 1]
            later = {k: events[k] for k in between} | {offset: event}
            place, ahead = self.places[first], _fetched_ahead(later)
            initials = [
                k
                for k in _initials(later)
                if (actor := later[k].actor) in place.enabled  # else it would go round again
                or (not isinstance(actor, int) and k not in ahead)
            ]
            if not initials:
                continue
            if self._bound is None:
                known = list((place.asleep | place.done).items())
                if events[first].crashes:  # behind the last end there is no place for one
                    known = [its for its in known if not (its[1] and its[1].ends)]
                if _stand_beside(known, later) and is_seen_by_a_third(events, first, raced.host):
                    later[len(events)] = replace(events[first], before=sum(1 << k for k in later))
                if not _stand_beside(known, later):
                    _insert(place.todo, {initials[0]: later[initials[0]]} | later)
                continue
            began = self._turn_began(events, first)
            waits_for, mover = event.waits_for, event.actor
            for actor in (later[k].actor for k in initials):
                if not isinstance(actor, int):
                    place.add(actor)
            for actor in {*(later[k].actor for k in initials), waits_for[0] if waits_for else mover}:
                for where in (first, began):
                    if isinstance(actor, int) and actor in self.places[where].enabled:
                        self.places[where].add(actor)

    def _before_vain_looks(self, events: Sequence[RunEvent], first: int, offset: int, event: RunEvent) -> int | None:
        """Return the last arrival, up to one that an event races with, before which its look may change something."""
        while self._is_vain(events, first, offset, event):
            assert event.look is not None
            line = event.look[2]
            first = next((k for k in range(first - 1, -1, -1) if line in events[k].arrived), -1)
            if first < 0 or event.apart >> first & 1:
                return None
        return first

    def _is_vain(self, events: Sequence[RunEvent], first: int, offset: int, event: RunEvent) -> bool:
        """Say whether all that comes of an event before another one is a look that is known to change nothing.

        Its thread knows as much there, if all of its steps before it can come before the other one, too.
        """
        if event.look is None or self._bound is not None:
            return False
        thread, _, line = event.look
        return any(
            its == line and saw in self._vain.get(event.look, ()) for its, saw in events[first].replaced
        ) and not any(events[k].actor == thread and events[k].before >> first & 1 for k in range(first + 1, offset))

    @staticmethod
    def _turn_began(events: Sequence[RunEvent], offset: int) -> int:
        """Return the place at which the turn began that an event is in."""
        began, thread = offset, events[offset].actor
        for k in range(offset, -1, -1):
            if not isinstance(events[k].actor, int):
                continue
            if isinstance(thread, int) and events[k].actor != thread:
                break
            began, thread = k, events[k].actor
        return began

    def _possible(self, trace: Trace, offset: int) -> list[Actor]:
        """List what could be done in place of an event: steps of threads, then moves that come later in this run."""
        moves: list[Actor] = []
        touched: set[tuple[int, bool, tuple[int, int]]] = set()
        held: set[tuple[int, bool, tuple[int, int]]] = set()  # by more than a flush, before which a fetch may come
        for event in trace.events[offset:]:
            lines = {(event.host, False, line) for line in event.cached} | {
                (event.host, True, line) for line in event.posted
            }
            move = None if isinstance(event.actor, int) or event.actor in moves else event.actor
            posted = {its for its in lines if its[1]}
            needs = posted if move and comes_past(move) else lines  # what is stored past the cache awaits that alone
            if move and not needs & (held if move[0] == FETCH else touched):
                moves.append(move)
            touched |= lines
            held |= lines - {(event.host, False, line) for line in event.linger}
        return [*sorted(trace.enabled[offset]), *moves]

    def _branch(self, trace: Trace) -> None:
        """Without a reduction: try everything else before each event that other hosts can observe."""
        hosts = {event.actor: event.host for event in trace.events if isinstance(event.actor, int)}
        alone = {host for host in hosts.values() if list(hosts.values()).count(host) == 1}
        for k, place in enumerate(self.places):
            event = place.event
            goes_on = event is not None and place.thread == event.actor and event.host in alone
            if event is None or (goes_on and not (event.fetched or event.arrived or event.linger)):
                continue
            for actor in self._possible(trace, k):
                place.add(actor)

    def _try_unasked(self, trace: Trace) -> None:
        """Try what no event of an execution races with, as it is not in there: evictions, arrivals behind the end."""
        places = enumerate(self.places)
        until = next((k for k, place in places if place.evictions >= self._evictions), len(self.places))
        if until or any(event.old for event in trace.events):
            for chance in noticed(trace, self._evicted, until, self._in_time, self._vain):
                self._try(chance)
            self._evicted = len(trace.events) - 1
        if until or trace.invariants:
            for chance in examined(trace, until):
                self._try(chance)

    def _try(self, chance: Chance) -> None:
        at = chance.at
        if at < len(self.places) and (chance.owed or self.places[at].evictions < self._evictions):
            self.places[at].add(chance.actor)


def _events_of(places: Sequence[TriedPlace]) -> list[RunEvent]:
    return [place.event for place in places if place.event is not None]


def _initials(among: Mapping[int, RunEvent]) -> list[int]:
    """Number the events, of these of one run, that no other one happens before."""
    all_of_them = sum(1 << k for k in among)
    return [k for k, event in among.items() if not event.before & all_of_them]


def _fetched_ahead(among: Mapping[int, RunEvent]) -> set[int]:
    """Number the fetches that no event among these needs, but the last one: they are as well made later."""
    needed, last = 0, max(among, default=-1)
    for event in among.values():
        needed |= event.before
    moves = {k: event.actor for k, event in among.items() if not isinstance(event.actor, int)}
    return {k for k, actor in moves.items() if actor[0] == FETCH and k != last and not needed >> k & 1}


def _may_come_first(actor: Actor, step: RunEvent | None, among: Mapping[int, RunEvent]) -> int | None:
    """Number an actor's step among events of one run that could all come behind it; None: it cannot.

    -1 stands beside them: what comes behind it shows as much as without it. Of chance that is not known, as another
    one may be tried in its place, and as a crash ends what nobody races with; nor of what was owed, which is of chance
    where it comes first.
    """
    its = next((k for k, event in among.items() if event.actor == actor), None)
    if its is not None:
        return its if its in _initials(among) else None
    if step is None or step.by_chance or step.owed:
        return None
    return None if any(map(step.conflicts, among.values())) else -1


def _stand_beside(known: Iterable[tuple[Actor, RunEvent | None]], among: Mapping[int, RunEvent]) -> bool:
    """Say whether one of these steps may come first: what comes behind it shows as much."""
    return any(_may_come_first(actor, step, among) is not None for actor, step in known)


def _insert(tree: list[Branch], events: Mapping[int, RunEvent]) -> None:
    """Add a branch of these events of one run, unless there is one that leads to them."""
    while True:
        for branch in tree:
            its = _may_come_first(branch.actor, branch.event, events)
            if its is not None:
                break
        else:
            break
        if not branch.behind:
            return
        dead = events[its].host if its in events and events[its].crashes else None  # its steps have come before
        tree, events = branch.behind, {k: event for k, event in events.items() if k != its and event.host != dead}
    ahead = _fetched_ahead(events)
    for k, event in events.items():
        if k not in ahead:
            tree.append(Branch(event.actor, event))
            tree = tree[-1].behind


def _begins(events: Sequence[RunEvent], offset: int, actor: Actor) -> bool:
    """Say whether an event is the actor's, or a move that the actor's step needs."""
    if offset >= len(events):
        return False
    event = events[offset]
    return event.actor == actor or (event.waits_for is not None and event.waits_for[0] == actor)


def _may_be_impossible(actor: Actor, before: Sequence[RunEvent]) -> bool:
    """Say whether it is a move that there need not be: of a line that has left, or a fetch of a damaged one."""
    moves = (EVICT, FETCH, *TEARS) if any(event.damages for event in before) else (EVICT, *TEARS)
    return isinstance(actor, tuple) and actor[0] in moves


def turns_of(events: Sequence[RunEvent], chosen: Actor | None = None) -> Turns:
    """Write a schedule: a thread's step, or a move where no step behind it makes it by itself."""
    turns: list[tuple[int, int]] = []
    counts: dict[int, int] = {}
    for k, event in enumerate(events):
        actor, waits_for = event.actor, event.waits_for
        if isinstance(actor, int):
            counts[actor] = counts.get(actor, 0) + event.steps
            _add_turn(turns, actor, event.steps)
            continue
        later = k + 1
        while waits_for and later < len(events) and events[later].waits_for == waits_for:
            later += 1
        following = events[later].actor if later < len(events) else chosen
        if not waits_for or following != waits_for[0] or counts.get(waits_for[0], 0) != waits_for[1]:
            turns.append(_turn_of(actor))
    if isinstance(chosen, int):
        _add_turn(turns, chosen, 1)
    elif chosen is not None:
        turns.append(_turn_of(chosen))
    return tuple(turns)


def _add_turn(turns: list[tuple[int, int]], thread: int, steps: int) -> None:
    if turns and turns[-1][0] == thread:
        turns[-1] = (thread, turns[-1][1] + steps)
    else:
        turns.append((thread, steps))


def _turn_of(move: Move) -> tuple[int, int]:
    action, host, pool, line = move
    return MOVE_TURNS | pool << 12 | host << 8 | action, line
